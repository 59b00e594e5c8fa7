"""`python -m nmtgrid` is the same as `nmtgrid`."""

from __future__ import annotations

import sys

from nmtgrid.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
