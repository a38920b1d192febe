"""Labels from a worker's seat: what the answers of the label holder give away."""
