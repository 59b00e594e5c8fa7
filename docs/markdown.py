"""Tables, code and plain text in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells must not contain line breaks; bars are escaped."""
    lines = [_row(heads), _row(["---"] * len(heads)), *(_row(row) for row in rows)]
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


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
