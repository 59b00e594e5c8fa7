"""The page of recipes: the comment at the head of each shell file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "recipes"
SOURCED = ("common", "losses")
"""Files that recipes source; not recipes themselves."""


def recipes() -> str:
    """Return the page of all recipes by name."""
    parts = [
        "# Recipes\n",
        "Generated from the heads of the shell files in `recipes/`. `SMALL=1` runs a recipe in "
        "minutes, `--dry-run` prints its commands; `bash recipes/small.sh` runs each recipe small, "
        "two at a time. [Results](../recipes/RESULTS.md) compares what they measured with "
        "the published figures.\n",
    ]
    for path in sorted(FOLDER.glob("*.sh")):
        if path.stem not in SOURCED:
            parts.append(f"## `recipes/{path.name}`\n\n```text\n{head(path)}\n```\n")
    return "\n".join(parts)


def head(path: Path) -> str:
    """Return the comment at the head of a shell file, without comment signs."""
    return "\n".join(_lines(path.read_text(encoding="utf-8")))


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines()[1:]:
        if not line.startswith("#"):
            return
        if not line.startswith("#SBATCH"):
            yield line.removeprefix("#").removeprefix(" ")
