"""The list of departures, read from the `Departs:` paragraphs of docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from docs.markdown import plain, table

PACKAGE = Path(__file__).resolve().parents[1] / "nmtgrid"
_PARAGRAPH = re.compile(r"Departs:\s+(.*?)(?=\n\s*\n|\nRaises|\Z)", re.DOTALL)
_ROOMS = {
    "text": "Text", "layers": "Layers of models (chapters 2 and 3)", "models": "Models",
    "online": "Online translation (chapter 4)", "adaptive": "Depth-adaptive decoding (chapter 5)",
    "smoothing": "Loss smoothing (appendix E)", "metrics": "Metrics", "analysis": "Analysis",
}  # fmt: skip


def departures() -> str:
    """Return one table for each room of the package: where, what it is, how it departs."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        for name, text in docstrings(path):
            for said in _PARAGRAPH.findall(text):
                first = plain(text.strip().split("\n\n")[0].partition("Departs:")[0])
                where = f"`{place}`" + (f" `{name}`" if name else "")
                found.setdefault(place.partition("/")[0], []).append((where, first, plain(said)))
    order = [*_ROOMS, *sorted(set(found) - set(_ROOMS))]
    return "\n".join(
        f"### {_ROOMS.get(room, room)}\n\n"
        + table(("where", "what it is", "how it departs"), found[room])
        for room in order
        if room in found
    )


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (name, docstring) of a module, its classes and its functions, names within names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield "", ast.get_docstring(tree) or ""
    yield from _below(tree, "")


def _below(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)):
            name = f"{prefix}{child.name}"
            yield name, ast.get_docstring(child) or ""
            yield from _below(child, f"{name}.")
