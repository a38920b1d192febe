"""`python -m vfl.cli` is the `cafe` command."""

from vfl.cli import main

main()
