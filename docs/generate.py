"""Writes what is generated of the documentation: `python -m docs.generate`.

Whole pages (the references), and blocks of other pages between

    <!-- generated: NAME -->
    <!-- end -->

With `--check` nothing is written, and the exit code is 1 where a page is not current.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from docs.commands import commands
from docs.departures import departures
from docs.equations import equations
from docs.launches import launches
from docs.markdown import plain, table
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
"""The tutorials in their order; one that has not been written yet is left out."""
_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tutorials() -> str:
    """Return the table of the tutorials that there are, with the first sentence of each."""
    rows = []
    for name in TUTORIALS:
        path = FOLDER / f"{name}.md"
        if path.is_file():
            title, _, rest = path.read_text(encoding="utf-8").partition("\n\n")
            sentence = plain(rest.strip().split("\n\n")[0])
            rows.append((f"[{title.removeprefix('# ')}]({name}.md)", sentence))
    return table(("tutorial", "what happens"), rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "tutorials": tutorials,
    "departures": departures,
    "equations": equations,
    "launches": launches,
    "recordings": recordings,
}


def stale(folder: Path = FOLDER) -> dict[Path, str]:
    """Return the pages in `folder` that are not current, with what they should hold."""
    found: dict[Path, str] = {}
    for name, make in PAGES.items():
        found[folder / name] = make()
    for path in sorted(folder.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if path not in found and _BLOCK.search(text):
            found[path] = _BLOCK.sub(lambda m: f"{m[1]}{BLOCKS[m[2]]()}{m[3]}", text)
    return {
        path: text
        for path, text in found.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or check them; return the exit code."""
    pages = stale()
    for path, text in pages.items():
        if "--check" in arguments:
            sys.stderr.write(f"{path} is not current: run `python -m docs.generate`.\n")
        else:
            path.write_text(text, encoding="utf-8")
            sys.stderr.write(f"{path} written\n")
    return int(bool(pages) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
