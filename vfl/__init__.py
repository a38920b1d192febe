"""What every party agrees on: configuration, models, partitions, data sets, scoring, and the `cafe` command."""
