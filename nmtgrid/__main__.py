"""`python -m nmtgrid` is the same as `nmtgrid`."""

from __future__ import annotations

from nmtgrid.cli.app import program

if __name__ == "__main__":
    program()
