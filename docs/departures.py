"""The list of departures, read from the `Departs:` paragraphs of docstrings."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from docs.markdown import plain, table

PACKAGE = Path(__file__).resolve().parents[1] / "nmtgrid"
_PARAGRAPH = re.compile(r"Departs:\s+(.*?)(?=\n\s*\n|\nRaises|\Z)", re.DOTALL)
_PACKAGES = {
    "text": "Text", "layers": "Layers of models (chapters 2 and 3)", "models": "Models",
    "online": "Online translation (chapter 4)", "adaptive": "Depth-adaptive decoding (chapter 5)",
    "smoothing": "Loss smoothing (appendix E)", "metrics": "Metrics", "analysis": "Analysis",
}  # fmt: skip


def departures() -> str:
    """Return a table for each subpackage: location, summary, and how it departs."""
    rows: dict[str, list[tuple[str, str, str]]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        for name, text in docstrings(path):
            for departure in _PARAGRAPH.findall(text):
                summary = plain(text.strip().split("\n\n")[0])
                where = f"`{module}`" + (f" `{name}`" if name else "")
                row = (where, summary, plain(departure))
                rows.setdefault(module.partition("/")[0], []).append(row)
    return "\n".join(
        f"### {_PACKAGES.get(package, package)}\n\n"
        + table(("where", "what it is", "how it departs"), rows[package])
        for package in [*_PACKAGES, *sorted(set(rows) - set(_PACKAGES))]
        if package in rows
    )


@functools.cache
def docstrings(path: Path) -> Sequence[tuple[str, str]]:
    """Return (qualified name, docstring) of a module, its classes and its functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return ("", ast.get_docstring(tree) or ""), *_below(tree, "")


def _below(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)):
            name = f"{prefix}{child.name}"
            yield name, ast.get_docstring(child) or ""
            yield from _below(child, f"{name}.")
