"""Comparison with other toolkits, each in a separate process: `python -m benchmarks.peers`."""
