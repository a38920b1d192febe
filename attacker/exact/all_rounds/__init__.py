"""Layers too narrow for a batch, while parameters move: every sample of all rounds at once, from no start at all."""
