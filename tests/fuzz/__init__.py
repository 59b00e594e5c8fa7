"""Fuzzing of file readers: `python -m tests.fuzz --cases 20000` (see __main__.py)."""
