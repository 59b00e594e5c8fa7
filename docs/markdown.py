"""Tables, code, plain text and generated blocks in Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells must not contain line breaks; bars are escaped."""
    lines = [table_row(heads), table_row(["---"] * len(heads)), *map(table_row, rows)]
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """Return `text` as code; an empty string stays empty."""
    return f"`{text}`" if text else ""


def plain(text: str) -> str:
    """Return `text` on one line, with `<` escaped outside of code."""
    pieces = " ".join(text.split()).split("`")
    # Text between backticks is shown verbatim.
    pieces[0::2] = [piece.replace("<", "&lt;") for piece in pieces[0::2]]
    return "`".join(pieces)


def fill_blocks(page: str, contents: Mapping[str, Callable[[], str]]) -> str:
    """Return a page with the contents of its generated blocks replaced, by name.

    Raises ValueError if the page has no block, KeyError if `contents` lacks one.
    """
    text, count = _BLOCK.subn(lambda match: match[1] + contents[match[2]]() + match[3], page)
    if count == 0:
        raise ValueError("the page has no generated block")
    return text


def table_row(cells: Sequence[str]) -> str:
    """Return a row of a table; bars in `cells` are escaped."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
