"""Measures the size of the code, and how much of it one command runs.

    python -m tests.count_code                         # modules, lines, comments, functions
    python -m tests.count_code --lower                 # and lower tests/code_baseline.json
    python -m tests.count_code trace [--list] decode MODEL FILE --out X

`trace` runs one command of `nmtgrid` in this process and counts the package's functions that are
called, and their files, without lambdas, comprehensions and code that runs on import.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tests.code_rules import LONG_FUNCTION, LONGEST_FUNCTION, measure

ROOT = Path(__file__).parents[1]
BASELINE = ROOT / "tests/code_baseline.json"


def sizes(folder: Path) -> dict[str, int]:
    """Return the counts of the Python files below `folder`."""
    files = sorted(folder.rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in files]
    lines = [line for text in texts for line in text.splitlines()]
    lengths = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    ]
    markers = [path for path in files if path.name == "__init__.py" and _is_marker(path)]
    folders = {path.parent for path in files}
    return {
        "files": len(files),
        "of them package markers": len(markers),
        "lines": len(lines),
        "comment lines": sum(line.lstrip().startswith("#") for line in lines),
        "functions": len(lengths),
        f"functions over {LONG_FUNCTION} lines": sum(n > LONG_FUNCTION for n in lengths),
        f"functions over {LONGEST_FUNCTION} lines": sum(n > LONGEST_FUNCTION for n in lengths),
        "modules in the largest folder": max(
            sum(path.parent == folder and path.name != "__init__.py" for path in files)
            for folder in folders
        ),
    }


def _is_marker(path: Path) -> bool:
    """Return whether an `__init__.py` contains nothing but a docstring."""
    return all(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
    )


def trace(arguments: Sequence[str]) -> tuple[int, dict[str, set[str]]]:
    """Run `nmtgrid` with `arguments`; return its exit code and the functions called, by file."""
    from nmtgrid.cli import app

    package = str(ROOT / "nmtgrid") + "/"
    entered: dict[str, set[str]] = {}

    def record(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        # CO_NEWLOCALS (2) is not set in the bodies of modules and classes.
        if event != "call" or not code.co_flags & 2 or not code.co_filename.startswith(package):
            return
        name = code.co_qualname
        if not any(word in name for word in ("<lambda>", "<genexpr>", "comp>")):
            entered.setdefault(code.co_filename.removeprefix(package), set()).add(name)

    sys.setprofile(record)
    try:
        exit_code = app.main(arguments)
    finally:
        sys.setprofile(None)
    return exit_code, entered


def main(arguments: Sequence[str]) -> int:
    """Print the counts; return the exit code."""
    if arguments[:1] == ["trace"]:
        is_listed = arguments[1:2] == ["--list"]
        exit_code, entered = trace(arguments[2 if is_listed else 1 :])
        for file, names in sorted(entered.items()) if is_listed else ():
            print(f"{file}: {', '.join(sorted(names))}", file=sys.stderr)
        functions = sum(map(len, entered.values()))
        print(f"{functions} functions in {len(entered)} files", file=sys.stderr)
        return exit_code
    for name in ("nmtgrid", "tests"):
        print(f"{name}/")
        counts = sizes(ROOT / name)
        for what, count in counts.items():
            print(f"  {count:6,} {what}")
        print(f"  {counts['comment lines'] / counts['lines']:6.1%} of the lines are comments")
    if arguments == ["--lower"]:
        BASELINE.write_text(json.dumps(measure(ROOT), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
