"""Mutation testing: plants faults in the code, one at a time, and counts those that tests detect.

    python -m tests.mutants nmtgrid/search [MORE...] [--tests tests/unit ...] [--sample N]
        [--seed S] [--workers N] [--seconds N] [--json FILE] [--again FILE]

All tests that are not marked slow are collected and run once, to find out which tests call which
function. Then a process is forked for each fault: it replaces the function's code and runs the
tests that call it, fastest first, until one fails. A fault survives if all of these tests pass, or
all that fit into `--seconds`. Tests that start another process do not see the fault there, so the
number of detected faults is a lower bound; a fault without any observable effect counts as a
survivor. `--again` plants only the faults that no test detected in an earlier `--json FILE`, for
other or new tests, and recounts all faults of that file.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import builtins
import contextlib
import copy
import importlib
import inspect
import itertools
import json
import os
import random
import signal
import sys
import time
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
# A test detects a fault if it takes this many times longer with it, and at least this many seconds.
_PATIENCE, _LEAST_PATIENCE = 5, 30

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A changed function: `code` replaces that of the function that begins in `first_line`."""

    path: str
    function: str
    first_line: int
    line: int
    column: int
    change: str
    code: types.CodeType

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.change} in {self.function}"


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """Yield each change of a node: its description, and the node's replacement (None: pass)."""
    changed: Any
    match node:
        case ast.Compare(ops=[operator]):
            changed = copy.deepcopy(node)
            changed.ops = [_COMPARISONS[type(operator)]()]
            yield "comparison", changed
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _OPERATORS:
            changed = copy.deepcopy(node)
            changed.op = _OPERATORS[type(node.op)]()
            yield "operator", changed
        case ast.BoolOp():
            changed = copy.deepcopy(node)
            changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and, or", changed
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield "operator left out", node.operand
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", ast.Constant(value + 1)
        case ast.If() | ast.While() | ast.IfExp():
            changed = copy.deepcopy(node)
            changed.test = ast.UnaryOp(ast.Not(), changed.test)
            yield "condition", changed
        case ast.Expr(value=ast.Call()) | ast.Raise():
            yield "statement left out", None
        case ast.Call():
            for index, keyword in enumerate(node.keywords):
                if keyword.arg is not None:
                    changed = copy.deepcopy(node)
                    del changed.keywords[index]
                    yield "keyword argument left out", changed
        case ast.Break():
            yield "break, continue", ast.Continue()
        case ast.Continue():
            yield "break, continue", ast.Break()
        case ast.Return(value=ast.expr()) if not _is_none(node.value):
            yield "returned value", ast.Return(ast.Constant(None))


def _is_none(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


class _Replace(ast.NodeTransformer):
    """Replaces the node `old` with `new`."""

    def __init__(self, old: ast.AST, new: ast.AST | None) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        if node is self._old:
            return ast.copy_location(self._new or ast.Pass(), node)
        return self.generic_visit(node)


def faults_of(path: Path) -> list[Fault]:
    """Return every fault that can be planted in the functions of a module."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    faults = []
    for name, function in _functions(tree, ""):
        messages = {id(part) for node in ast.walk(function) if isinstance(node, ast.Raise)
                    for part in ast.walk(node) if part is not node}  # fmt: skip
        for statement in function.body:
            for node in ast.walk(statement):
                if id(node) in messages:  # the words of an error
                    continue
                for change, new in changes(node):
                    code = _compiled(tree, node, new, path, name, function.lineno)
                    if code is not None:
                        line = getattr(node, "lineno", function.lineno)
                        faults.append(
                            Fault(
                                path.relative_to(ROOT).as_posix(), name, code.co_firstlineno, line,
                                getattr(node, "col_offset", 0), change, code,
                            )
                        )  # fmt: skip
    return faults


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _compiled(
    tree: ast.Module, old: ast.AST, new: ast.AST | None, path: Path, name: str, line: int
) -> types.CodeType | None:
    """Return the code of the function `name` in a module whose node `old` became `new`."""
    # The transformer changes lists in place, so it gets a copy, with `old` found by its position.
    order = list(ast.walk(tree))
    index = next(index for index, node in enumerate(order) if node is old)
    whole = copy.deepcopy(tree)
    changed = _Replace(list(ast.walk(whole))[index], new).visit(whole)
    try:
        code: types.CodeType = compile(ast.fix_missing_locations(changed), str(path), "exec")
    except (SyntaxError, ValueError, TypeError):
        return None
    return _code_in(code, name)


def _code_in(code: types.CodeType, name: str) -> types.CodeType | None:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            if constant.co_qualname == name:
                return constant
            if name.startswith(f"{constant.co_qualname}."):
                inner = _code_in(constant, name)
                if inner is not None:
                    return inner
    return None


def _live_function(fault: Fault) -> types.FunctionType | None:
    """Return the function object of an imported module, without its decorators."""
    name = fault.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    value: Any = importlib.import_module(name)
    for part in fault.function.split("."):
        value = inspect.getattr_static(value, part, None)
    for inner in ("__func__", "fget", "func"):  # methods of classes, properties, cached ones
        value = getattr(value, inner, value) if not inspect.isfunction(value) else value
    value = inspect.unwrap(value) if callable(value) else value
    if not isinstance(value, types.FunctionType) or value.__code__.co_freevars != (
        fault.code.co_freevars
    ):
        return None
    return value


class Mutator:
    """A pytest plugin that runs the collected tests as described in the module's docstring."""

    def __init__(
        self,
        paths: Sequence[Path],
        sample: int,
        seed: int,
        workers: int,
        limit: float,
        only: Collection[str] | None = None,
    ) -> None:
        """`only` are the faults to plant, as text (None: all, or a sample of them)."""
        faults = [fault for path in paths for fault in faults_of(path)]
        random.Random(seed).shuffle(faults)
        self.possible = len(faults)
        self.faults = faults[:sample] if sample else faults
        if only is not None:
            self.faults = [fault for fault in faults if str(fault) in only]
        self.workers, self.limit = workers, limit
        self.outcomes: dict[str, list[Fault]] = {"detected": [], "survived": [], "not executed": []}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all tests once, and then, for each fault, those that call its function."""
        entered, seconds = self._baseline(session.items)
        running: dict[int, Fault] = {}
        for number, fault in enumerate(self.faults, start=1):
            function = _live_function(fault)
            tests = entered.get((fault.path, fault.first_line), []) if function else []
            if function is None or not tests:
                self.outcomes["not executed"].append(fault)
                print(f"not executed: {fault}", file=sys.stderr, flush=True)
                continue
            while len(running) >= self.workers:
                self._collect(running)
            process = os.fork()
            if process == 0:
                quickest = sorted(tests, key=seconds.__getitem__)
                sums = list(itertools.accumulate(seconds[test] for test in quickest))
                fitting = max(1, bisect.bisect_right(sums, self.limit))
                _run_changed(function, fault.code, quickest[:fitting], seconds)
            running[process] = fault
            if number % 20 == 0:
                print(f"{number} of {len(self.faults)}", file=sys.stderr, flush=True)
        while running:
            self._collect(running)
        return True

    def _baseline(
        self, items: Sequence[pytest.Item]
    ) -> tuple[dict[tuple[str, int], list[pytest.Item]], dict[pytest.Item, float]]:
        """Return the tests that call each function, and how long each test takes."""
        entered: dict[tuple[str, int], list[pytest.Item]] = {}
        seconds: dict[pytest.Item, float] = {}
        visited: set[tuple[str, int]] = set()
        # Only the functions with a fault record their calls, so nothing else is slowed down.
        vars(builtins)[_VISITED] = visited
        before = {}
        for fault in self.faults:
            function = _live_function(fault)
            if function is not None and function not in before:
                before[function] = function.__code__
                function.__code__ = _noting(fault)
        for number, item in enumerate(items, start=1):
            visited.clear()
            started = time.monotonic()
            if not _passes(item):
                continue
            seconds[item] = time.monotonic() - started
            for key in visited:
                entered.setdefault(key, []).append(item)
            if number % 200 == 0:
                print(f"{number} of {len(items)} tests", file=sys.stderr, flush=True)
        for function, code in before.items():
            function.__code__ = code
        return entered, seconds

    def _collect(self, running: dict[int, Fault]) -> None:
        process, status = os.wait()
        outcome = "survived" if os.waitstatus_to_exitcode(status) == 0 else "detected"
        fault = running.pop(process)
        self.outcomes[outcome].append(fault)
        if outcome == "survived":
            print(f"survived: {fault}", file=sys.stderr, flush=True)


_VISITED = "_nmtgrid_visited_functions"


def _noting(fault: Fault) -> types.CodeType:
    """Return the code of a fault's function without the fault, which first records the call."""
    path = ROOT / fault.path
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node = next(node for name, node in _functions(tree, "") if name == fault.function)
    key = (fault.path, fault.first_line)
    note = ast.parse(f"{_VISITED}.add({key!r})").body
    node.body = [*node.body[:1], *note, *node.body[1:]] if ast.get_docstring(node) else [
        *note, *node.body
    ]  # fmt: skip
    code = _code_in(compile(ast.fix_missing_locations(tree), str(path), "exec"), fault.function)
    assert code is not None
    return code


def _run_changed(
    function: types.FunctionType,
    code: types.CodeType,
    tests: Sequence[pytest.Item],
    seconds: dict[pytest.Item, float],
) -> None:
    """Run the tests with changed code in `function`; exit with 1 when one of them fails."""
    code_of_exit = 1
    # Whatever happens, the forked process must not continue as if it were the parent.
    with contextlib.suppress(BaseException):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        function.__code__ = code
        for item in tests:
            signal.alarm(int(_PATIENCE * seconds[item]) + _LEAST_PATIENCE)
            if not _passes(item):
                os._exit(1)
        code_of_exit = 0
    os._exit(code_of_exit)


def _passes(item: pytest.Item) -> bool:
    from _pytest.runner import runtestprotocol

    reports = runtestprotocol(item, log=False, nextitem=None)
    return all(report.passed or report.skipped for report in reports)


def report(mutator: Mutator, earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the counts, and each fault that survived or whose function no test called."""
    names = {name: {str(fault) for fault in faults} for name, faults in mutator.outcomes.items()}
    survivors, unentered = names["survived"], names["not executed"]
    count, planted = len(mutator.outcomes["detected"]), len(mutator.faults)
    if earlier is not None:
        # Faults in functions that these tests do not call may have survived earlier tests.
        before = set(earlier["survivors"])
        survivors, unentered = survivors | (unentered & before), unentered - before
        planted = earlier["planted"]
        count = planted - len(survivors) - len(unentered)
    tried = planted - len(unentered)
    return {
        "possible": mutator.possible,
        "planted": planted,
        "detected": count,
        "survived": len(survivors),
        "not executed": len(unentered),
        "share_detected": count / tried if tried else None,
        "survivors": sorted(survivors),
        "never entered": sorted(unentered),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--tests", nargs="+", default=["tests/unit", "tests/invariants"])
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0, help="of tests for each fault")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--again", type=Path)
    options = parser.parse_args()
    os.chdir(ROOT)
    paths = [
        path.resolve()
        for root in options.paths
        for path in (sorted(root.rglob("*.py")) if root.is_dir() else [root])
    ]
    earlier, only = None, None
    if options.again is not None:
        earlier = json.loads(options.again.read_text(encoding="utf-8"))
        only = {*earlier["survivors"], *earlier["never entered"]}
    mutator = Mutator(paths, options.sample, options.seed, options.workers, options.seconds, only)
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", *options.tests]
    pytest.main(arguments, plugins=[mutator])
    values = report(mutator, earlier)
    text = json.dumps(values, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(f"{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
