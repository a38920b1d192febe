"""Benchmarks behind `cafe bench NAME`: ratios measured side by side in one run."""

NAMES = ("all", "federation", "training", "attack", "matching", "defences", "side", "faults", "load", "scale")
"""Each is a module of this package with a function bench_NAME."""
