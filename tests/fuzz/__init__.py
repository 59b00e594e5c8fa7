"""Readers under files that nobody meant: `python -m tests.fuzz --cases 20000` (see __main__.py)."""
