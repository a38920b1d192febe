"""What the `cafe` command can do, a module for each group of commands; torch is imported when one runs."""
