"""Whole commands, value by value: `python -m tests.fuzz.commands` (see __main__.py)."""
