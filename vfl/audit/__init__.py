"""`cafe audit`: what a federation leaks, to whom, and what stops it; from one config, within a budget."""
