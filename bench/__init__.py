"""Benchmarks behind `cafe bench NAME`: ratios measured side by side in one run."""
