"""Kills, full disks and flipped bytes: `python -m tests.faults` (see __main__.py)."""
