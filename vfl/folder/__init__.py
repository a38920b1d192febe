"""A run's folder: what a run writes there, and how it is read again."""
