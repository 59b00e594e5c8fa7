"""Writes the generated parts of the documentation: `python -m docs.generate`.

These are the reference pages, and blocks of other pages between

    <!-- generated: NAME -->
    <!-- end -->

With `--check` nothing is written, and the exit code is 1 if a page is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from docs.commands import commands
from docs.departures import departures
from docs.equations import equations
from docs.launches import launches
from docs.markdown import fill_blocks, plain, table
from docs.recipes import recipes
from docs.recordings import recordings
from docs.settings import objective_page, presets, settings

FOLDER = Path(__file__).resolve().parent
PAGES: dict[str, Callable[[], str]] = {
    "reference-commands.md": commands,
    "reference-settings.md": settings,
    "reference-objectives.md": objective_page,
    "reference-presets.md": presets,
    "reference-recipes.md": recipes,
}
TUTORIALS = ("pervasive", "online", "adaptive", "smoothing", "captions", "analysis")
"""The tutorials in their order."""


def tutorials() -> str:
    """Return the table of tutorials, with the first paragraph of each."""
    rows = []
    for name in TUTORIALS:
        title, _, rest = (FOLDER / f"{name}.md").read_text(encoding="utf-8").partition("\n\n")
        paragraph = plain(rest.strip().split("\n\n")[0])
        rows.append((f"[{title.removeprefix('# ')}]({name}.md)", paragraph))
    return table(("tutorial", "content"), rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "tutorials": tutorials,
    "departures": departures,
    "equations": equations,
    "launches": launches,
    "recordings": recordings,
}


def stale(folder: Path = FOLDER) -> dict[Path, str]:
    """Return the pages in `folder` that are out of date, with their new text."""
    pages = {folder / name: make() for name, make in PAGES.items()}
    for path in sorted(folder.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if path not in pages and "<!-- generated: " in text:
            pages[path] = fill_blocks(text, BLOCKS)
    return {
        path: text
        for path, text in pages.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or check them; return the exit code."""
    pages = stale()
    for path, text in pages.items():
        if "--check" in arguments:
            sys.stderr.write(f"{path} is out of date: run `python -m docs.generate`.\n")
        else:
            path.write_text(text, encoding="utf-8")
            sys.stderr.write(f"{path} written\n")
    return int(bool(pages) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
