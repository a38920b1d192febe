"""Benchmarks behind `cafe bench NAME`: ratios measured side by side in one run."""

NAMES = ("all", "federation", "training", "attack", "matching", "defences", "side", "faults", "load", "scale")
"""Each is a module of this package, and `cafe bench` has its function."""
