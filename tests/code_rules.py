"""Rules for the package's source code, checked with `ast`: layers, imports, names, sizes.

`violations(root)` returns one line for each violation of a rule without exceptions. Counts that are
not yet zero are recorded in `tests/code_baseline.json` and may only decrease: `measure(root)`
counts, and `python -m tests.count_code --lower` writes lower counts to that file.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

LAYERS = {
    "base": 0, "text": 1, "layers": 1, "metrics": 1, "data": 2, "models": 3, "search": 4,
    "convert": 4, "training": 5, "online": 6, "adaptive": 6, "smoothing": 6, "analysis": 7,
    "serve": 7, "cli": 8,
}  # fmt: skip
"""A module may import its own package, or packages with a lower number."""

IMPORTED_BY = {
    "torch": "*",
    "numpy": "*",
    "sacremoses": "text/moses.py",
    "subword_nmt": "text/bpe.py",
    "sentencepiece": "text/sentencepiece_model.py",
    "sacrebleu": "metrics/*",
    "compare_mt": "analysis/quality/words.py",
    "matplotlib": "analysis/plotting/figure.py",
    "safetensors": "base/io/arrays.py",
    "msgspec": "base/io/records.py",
    "rich": "base/console.py",
    "typer": "cli/*",
    "triton": "layers/kernels/*",
    "ctranslate2": "convert/to_ctranslate2.py",
    "simuleval": "online/simuleval_agent.py",
}
"""Each third-party package, with the only files that may import it."""

PICKLES = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
STORES = {
    *(f"torch.{name}" for name in ("load", "save")),
    *(f"{package}.{name}" for package in ("np", "numpy")
      for name in ("load", "save", "savez", "savez_compressed")),
}  # fmt: skip
"""Functions that pickle, or may pickle."""
PROTOCOL = {"api", "card", "directory", "zoo"}
"""Modules of `models` that search and training may import: never a specific architecture."""
BANNED_NAMES = {
    "held", "found", "given", "wanted", "told", "made", "one", "place", "deed", "ready",
}  # fmt: skip
"""Names of variables and arguments that do not describe what they are."""
MODULES_PER_FOLDER = 15
LONG_FUNCTION, LONGEST_FUNCTION = 60, 120
"""Maximum number of lines."""
MAY_HAVE_ONE_IMPORTER = (
    "layers/kernels/*", "*config.py", "convert/*", "cli/*", "__main__.py", "*__init__.py",
)  # fmt: skip
"""Kernels, configurations that do not load torch, converters and subcommands."""
REGISTRY = "models/zoo.py"
"""Imports each architecture to list it."""


def violations(root: Path) -> list[str]:
    """Return every breach of a rule in `root/nmtgrid`, as `file:line: what`."""
    package = root / "nmtgrid"
    messages: list[str] = []
    graph: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imports = list(_imports(tree, path, package))
        graph[name] = _imported_files(imports, package) - {name}
        messages += [f"{name}:{n}: {what}" for n, what in _bad_imports(name, imports, package)]
        messages += [f"{name}:{n}: {what}" for n, what in _bad_calls(name, tree)]
        messages += [
            f"{name}:{function.lineno}: {function.name} has {length} lines, more than "
            f"{LONGEST_FUNCTION}"
            for function, length in _functions(tree)
            if length > LONGEST_FUNCTION
        ]
        if path.stem in ("utils", "util", "misc", "common", "helpers"):
            messages.append(f"{name}:1: a module's name says what it is about")
    sizes = Counter(path.parent for path in package.rglob("*.py") if path.stem != "__init__")
    for folder, size in sorted(sizes.items()):
        if size > MODULES_PER_FOLDER:
            where = folder.relative_to(root).as_posix()
            messages.append(f"{where}: has {size} modules, more than {MODULES_PER_FOLDER}")
    return messages + [f"{cycle[0]}:1: cycle {' -> '.join(cycle)}" for cycle in _cycles(graph)]


def measure(root: Path) -> dict[str, Any]:
    """Return the counts that may only decrease.

    `banned_names`: for each package and for benchmarks/, docs/, recipes/ and tests/, how often
    variables and arguments have a name of `BANNED_NAMES`; `single_importer`: modules with only one
    importer, in the same folder; `long_functions`: those with more than `LONG_FUNCTION` lines.
    """
    package = root / "nmtgrid"
    names: Counter[str] = Counter()
    importers: dict[str, set[str]] = defaultdict(set)
    long_functions = []
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names[name.split("/")[0]] += _banned(tree)
        for imported in _imported_files(_imports(tree, path, package), package) - {name}:
            importers[imported].add(name)
        long_functions += [
            f"{name}:{function.name}"
            for function, length in _functions(tree)
            if length > LONG_FUNCTION
        ]
    for folder in ("benchmarks", "docs", "recipes", "tests"):
        for path in sorted((root / folder).rglob("*.py")):
            names[folder] += _banned(ast.parse(path.read_text(encoding="utf-8")))
    single = sorted(
        module
        for module, users in importers.items()
        if len(users) == 1
        and not any(fnmatch(module, pattern) for pattern in MAY_HAVE_ONE_IMPORTER)
        and REGISTRY not in users
        and next(iter(users)).rpartition("/")[0] == module.rpartition("/")[0]
    )
    return {
        "banned_names": {name: count for name, count in sorted(names.items()) if count},
        "single_importer": single,
        "long_functions": sorted(long_functions),
    }


def risen(counts: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[str]:
    """Return the entries that are higher in `counts` than in `baseline` (both from `measure`)."""
    names = baseline["banned_names"]
    messages = [
        f"{package}/: {count} variables or arguments are called one of "
        f"{', '.join(sorted(BANNED_NAMES))}; there were {names.get(package, 0)}"
        for package, count in counts["banned_names"].items()
        if count > names.get(package, 0)
    ]
    for key, what in (
        ("single_importer", "has a single importer, beside it: merge them"),
        ("long_functions", f"has more than {LONG_FUNCTION} lines"),
    ):
        messages += [f"{item}: {what}" for item in counts[key] if item not in baseline[key]]
    return messages


def _banned(tree: ast.AST) -> int:
    """Return how many variables and arguments of a module have a banned name.

    Imported names, such as `given` of hypothesis, are not counted.
    """
    nodes = list(ast.walk(tree))
    imported = {
        alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    banned = BANNED_NAMES - imported
    return sum(
        (isinstance(node, ast.Name) and node.id in banned)
        or (isinstance(node, ast.arg) and node.arg in banned)
        for node in nodes
    )


def _functions(tree: ast.AST) -> Iterator[tuple[ast.FunctionDef, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node, (node.end_lineno or node.lineno) - node.lineno + 1


def _imports(tree: ast.AST, path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, full module name) for each import, also within functions."""
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


def _imported_files(
    imports: Iterator[tuple[int, str]] | list[tuple[int, str]], package: Path
) -> set[str]:
    return {file for _, module in imports if (file := _file(module, package))}


def _file(module: str, package: Path) -> str | None:
    """Return the path of `module` inside the package, or None if it is not part of the package."""
    head, *rest = module.split(".")
    if head != "nmtgrid":
        return None
    base = package.joinpath(*rest)
    for path in (base.with_suffix(".py") if rest else base / "__init__.py", base / "__init__.py"):
        if path.is_file():
            return path.relative_to(package).as_posix()
    return None


def _bad_imports(
    name: str, imports: list[tuple[int, str]], package: Path
) -> Iterator[tuple[int, str]]:
    folder = name.split("/")[0] if "/" in name else ""
    if folder and folder not in LAYERS:
        yield 1, f"the package {folder}/ belongs to no layer"
        return
    for line, module in imports:
        head, *rest = module.split(".")
        if head == "nmtgrid":
            other = rest[0] if rest else ""
            if _file(module, package) is None:
                yield line, f"{module} does not exist"
            elif not folder or not other or other == folder:
                continue
            elif other not in LAYERS or LAYERS[other] > LAYERS[folder]:
                yield line, f"{folder}/ imports {module} from a higher layer"
            elif LAYERS[other] == LAYERS[folder]:
                yield line, f"{folder}/ imports {module} from another package of its own layer"
            elif (
                other == "models"
                and folder in ("search", "training")
                and not PROTOCOL.intersection(rest[1:2])
            ):
                yield line, f"{folder}/ depends on the architecture {module}"
        elif head in PICKLES:
            yield line, f"imports {head}"
        elif head not in sys.stdlib_module_names and not fnmatch(name, IMPORTED_BY.get(head, "-")):
            allowed = IMPORTED_BY.get(head, "nothing")
            yield line, f"imports {head}, which only {allowed} may import"


def _bad_calls(name: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
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


def _cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return one cycle for each group of files that import each other."""
    cycles: list[list[str]] = []
    state: dict[str, int] = {}
    trail: list[str] = []

    def visit(node: str) -> None:
        state[node] = 1
        trail.append(node)
        for other in sorted(graph.get(node, ())):
            if state.get(other) == 1:
                cycles.append([*trail[trail.index(other) :], other])
            elif other not in state:
                visit(other)
        state[node] = 2
        trail.pop()

    for node in sorted(graph):
        if node not in state:
            visit(node)
    return cycles
