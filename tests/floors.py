"""The rules of the house, read from the sources with `ast`: who may import, print and store what.

`faults(root)` returns one line per breach in the package `root/nmtgrid`. The rules are those of
`nmtgrid/__init__.py`: a module imports its own folder or a lower floor.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

FLOORS = {
    "base": 0, "text": 1, "layers": 1, "metrics": 1, "data": 2, "models": 3, "search": 4,
    "convert": 4, "training": 5, "online": 6, "adaptive": 6, "smoothing": 6, "analysis": 7,
    "cli": 8,
}  # fmt: skip

DOORS = {
    "torch": "*",
    "numpy": "*",
    "sacremoses": "text/moses.py",
    "subword_nmt": "text/bpe.py",
    "sacrebleu": "metrics/quality.py",
    "compare_mt": "analysis/quality/words.py",
    "matplotlib": "analysis/plotting/figure.py",
    "safetensors": "base/io/arrays.py",
    "rich": "base/console.py",
    "typer": "cli/*",
    "triton": "layers/kernels/*",
    "ctranslate2": "convert/to_ctranslate2.py",
    "simuleval": "online/simuleval_agent.py",
}
"""Each third-party package and the file, or files, that alone may import it."""

PICKLES = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
STORES = {
    *(f"torch.{name}" for name in ("load", "save")),
    *(f"{package}.{name}" for package in ("np", "numpy")
      for name in ("load", "save", "savez", "savez_compressed")),
}  # fmt: skip
PROTOCOL = {"api", "directory", "zoo"}
"""What search and training may know of models: never one architecture."""


def faults(root: Path) -> list[str]:
    """Return every breach of the rules in `root/nmtgrid`, as `file:line: what`."""
    package = root / "nmtgrid"
    found: list[str] = []
    graph: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        imports = list(_imports(tree, path, package))
        graph[name] = {f for _, m in imports if (f := _file(m, package)) and f != name}
        found += [f"{name}:{line}: {what}" for line, what in _import_faults(name, imports, package)]
        found += [f"{name}:{line}: {what}" for line, what in _deed_faults(name, tree)]
        if path.stem in ("utils", "util", "misc", "common", "helpers"):
            found.append(f"{name}:1: a module's name says what it is about")
    return found + [f"{circle[0]}:1: circle {' -> '.join(circle)}" for circle in _circles(graph)]


def _imports(tree: ast.AST, path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, full module name) for each import, wherever it stands."""
    here = ["nmtgrid", *path.relative_to(package).with_suffix("").parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*here[: -node.level]] if node.level else []
            base += (node.module or "").split(".") if node.module else []
            for alias in node.names:
                whole = ".".join([*base, alias.name])
                is_module = base[0] == "nmtgrid" and _file(whole, package) is not None
                yield node.lineno, whole if is_module else ".".join(base)


def _file(module: str, package: Path) -> str | None:
    """Return the path inside the package of `module`, or None where it is no file of ours."""
    head, *rest = module.split(".")
    if head != "nmtgrid":
        return None
    base = package.joinpath(*rest)
    for path in (base.with_suffix(".py") if rest else base / "__init__.py", base / "__init__.py"):
        if path.is_file():
            return path.relative_to(package).as_posix()
    return None


def _import_faults(
    name: str, imports: list[tuple[int, str]], package: Path
) -> Iterator[tuple[int, str]]:
    folder = name.split("/")[0] if "/" in name else ""
    if folder and folder not in FLOORS:
        yield 1, f"the folder {folder}/ stands on no floor"
        return
    for line, module in imports:
        head, *rest = module.split(".")
        if head == "nmtgrid":
            other = rest[0] if rest else ""
            if _file(module, package) is None:
                yield line, f"{module} does not exist"
            elif not folder or not other or other == folder:
                continue
            elif other not in FLOORS or FLOORS[other] > FLOORS[folder]:
                yield line, f"{folder}/ imports {module} from a higher floor"
            elif FLOORS[other] == FLOORS[folder]:
                yield line, f"{folder}/ imports {module} from a neighbour on its own floor"
            elif (
                other == "models"
                and folder in ("search", "training")
                and not PROTOCOL.intersection(rest[1:2])
            ):
                yield line, f"{folder}/ knows the architecture {module}"
        elif head in PICKLES:
            yield line, f"imports {head}"
        elif head not in sys.stdlib_module_names and not fnmatch(name, DOORS.get(head, "-")):
            yield line, f"imports {head}, whose door is {DOORS.get(head, 'nowhere')}"


def _deed_faults(name: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    may_print = name.startswith("cli/") or name == "base/console.py"
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Attribute, ast.Name)):
            continue
        word = ast.unparse(node)
        if word in STORES:
            yield node.lineno, f"uses {word}"
        elif word in ("print", "pprint") and not may_print:
            yield node.lineno, "prints"
        elif word in ("importlib.import_module", "__import__") and name != "cli/app.py":
            yield node.lineno, f"hides an import behind {word}"


def _circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return one circle for each group of files that import each other."""
    circles: list[list[str]] = []
    state: dict[str, int] = {}
    trail: list[str] = []

    def visit(node: str) -> None:
        state[node] = 1
        trail.append(node)
        for other in sorted(graph.get(node, ())):
            if state.get(other) == 1:
                circles.append([*trail[trail.index(other) :], other])
            elif other not in state:
                visit(other)
        state[node] = 2
        trail.pop()

    for node in sorted(graph):
        if node not in state:
            visit(node)
    return circles
