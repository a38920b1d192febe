"""Gradient matching: data is guessed, and moved until its gradients are those that were uploaded."""
