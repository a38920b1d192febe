"""`cafe doctor`: what would go wrong in a run between these machines, found before it starts."""
