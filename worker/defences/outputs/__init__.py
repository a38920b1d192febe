"""Defences of outputs that take part in training: the bottom model learns to tell the label holder less."""
