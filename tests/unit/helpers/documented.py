"""Keys of results according to the documentation."""

import re
from pathlib import Path

_PAGE = Path(__file__).parents[3] / "docs" / "formats.md"


def documented_keys() -> set[str]:
    """Return the JSON keys that docs/formats.md lists under "Results as JSON"."""
    section = _PAGE.read_text(encoding="utf-8").partition("## Results as JSON")[2]
    return set(re.findall(r"`(\w+)`", section))
