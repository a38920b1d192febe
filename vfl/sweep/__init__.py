"""Many runs: a grid of config changes over a base, each cell a `cafe run`, all results in one table."""
