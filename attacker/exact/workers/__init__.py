"""All workers together: whose candidates belong to one sample, and its label."""
