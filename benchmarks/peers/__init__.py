"""Other toolkits beside nmtgrid: `python -m benchmarks.peers`, and each system in its process."""
