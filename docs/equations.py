"""The table of equations: the function that computes each one, and the tests that check it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from docs.departures import PACKAGE, docstrings
from docs.markdown import plain, table

TESTS = PACKAGE.parent / "tests"
CHAPTERS = {
    "2": "Chapter 2: sequence-to-sequence models",
    "3": "Chapter 3: Pervasive Attention",
    "4": "Chapter 4: simultaneous translation",
    "5": "Chapter 5: depth-adaptive decoding",
    "E": "Appendix E: loss smoothing",
}
_NUMBER = r"\((?:[2-5E])\.\d+[a-z]?\)"
_CITED = re.compile(rf"\b[Ee]q(?:uation)?s?\.? ({_NUMBER}(?:(?:\s*(?:,|to|and|-)\s*){_NUMBER})*)")


def equations() -> str:
    """Return a table for each chapter: equation, what it computes, location, tests.

    An equation belongs to the definitions whose docstrings cite it. Tests are the first four
    files that use the definition by name or, if there are none, its module.
    """
    words = {path: _names(path) for path in sorted(TESTS.rglob("test_*.py"))}
    rows: dict[str, list[tuple[tuple[str, int], tuple[str, str, str, str]]]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        for name, text in docstrings(path):
            for numbers in dict.fromkeys(" ".join(cited.split()) for cited in _CITED.findall(text)):
                chapter, _, rest = numbers[1:].partition(".")
                order = (chapter, int(re.match(r"\d+", rest)[0]))  # type: ignore[index]
                outer = name.partition(".")[0]
                dotted = "nmtgrid." + module.removesuffix(".py").replace("/", ".")
                # Private names are tested through their module, some layers through models only.
                tests = [test for test, known in words.items() if outer in known] or [
                    test for test, known in words.items() if dotted in known
                ]
                shown = [f"`{test.relative_to(TESTS).as_posix()}`" for test in tests[:4]]
                first = plain(text.strip().split("\n\n")[0])
                where = f"`{module}`" + (f" `{name}`" if name else "")
                row = (numbers, first, where, ", ".join(shown) or "those of the models")
                rows[chapter].append((order, row))
    return "\n".join(
        f"### {title}\n\n"
        + table(
            ("equation", "what is computed", "where", "tests that use it"),
            [row for _, row in sorted(rows[chapter], key=lambda item: item[0])],
        )
        for chapter, title in CHAPTERS.items()
        if chapter in rows
    )


def _names(path: Path) -> set[str]:
    """Return the names that a test uses from the package: modules, imports, their attributes."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    imported = {
        alias.asname or alias.name: alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nmtgrid")
        for alias in node.names
    }
    attributes = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in imported
    }
    modules = {
        module
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nmtgrid")
        for alias in node.names
        for module in (node.module or "", f"{node.module}.{alias.name}")
    }
    return attributes | set(imported.values()) | modules
