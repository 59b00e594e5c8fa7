"""Runs code as new processes of Python would, but in forks of one that has loaded packages.

    python -m tests.forks light      what every command line loads to show its help
    python -m tests.forks drawing    and what analyses of text files load, which is much

Reads requests, and answers each, as lines of JSON. Nothing of nmtgrid is loaded before the fork:
what its modules load of themselves is seen as it is in a process of its own.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_DRAWING = (
    "numpy", "matplotlib.figure", "matplotlib.backends.backend_agg", "sacrebleu.metrics",
    "sacremoses", "compare_mt.scorers",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Ended:
    """How code ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


class Forks:
    """A process that is forked for each code that is run."""

    def __init__(self, project: Path, loaded: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(project)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forks", loaded], cwd=project, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, code: str, *arguments: str, environment: dict[str, str] | None = None) -> Ended:
        """Run `code` with `arguments`, in this process's environment if none is given."""
        variables = dict(os.environ) if environment is None else environment
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([code, arguments, variables]) + "\n")
        self._process.stdin.flush()
        return Ended(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def forks(project: Path, loaded: str) -> Iterator[Forks]:
    """Yield a process to fork, and end it."""
    process = Forks(project, loaded)
    try:
        yield process
    finally:
        process.close()


def _run(code: str, arguments: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
    """Run code in a fork; return its exit code and what it wrote to both streams."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(error.fileno(), 2)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = ["-c", *arguments]
            _work(code)
        status = os.waitpid(child, 0)[1]
        texts = []
        for file in (out, error):
            file.seek(0)
            texts.append(file.read().decode())
    return os.waitstatus_to_exitcode(status), texts[0], texts[1]


def _work(code: str) -> None:
    """Do the work of the child, which never returns."""
    ended: Any = 0
    try:
        exec(code, {"__name__": "__main__"})
    except SystemExit as exit_:
        ended = exit_.code
    except BaseException:
        traceback.print_exc()
        ended = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended if isinstance(ended, int) else int(ended is not None))


def _load(names: tuple[str, ...]) -> None:
    """Load what Typer loads only when it shows help, and packages by name."""
    import typer.main

    program = typer.Typer()
    program.command()(lambda: None)
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        before, sys.stdout = sys.stdout, nothing
        typer.main.get_command(program).main(["--help"], standalone_mode=False)
        sys.stdout = before
    for name in names:
        importlib.import_module(name)


def main() -> None:
    """Answer requests until there are none."""
    _load(_DRAWING if sys.argv[1] == "drawing" else ())
    assert not any(name.split(".")[0] == "nmtgrid" for name in sys.modules)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_run(*json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
