"""Runs a case in a forked process with limited memory and time, and judges its outcome."""

import contextlib
import dataclasses
import json
import os
import re
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nmtgrid.cli.app import main
from tests.fuzz.commands.cases import Case
from tests.fuzz.commands.lines import INPUT, Line
from tests.fuzz.commands.values import AMOUNTS, LARGE, LARGE_TEXTS

SECONDS, WALL_SECONDS = 10, 45
MEMORY = 1 << 30
_ADDRESSES = 2 << 30
"""Address space beyond what the program takes anyway: more than `MEMORY`, as some is unused."""
_NOBODY = 65534
_PAGE = resource.getpagesize()
_FITTING = (0, 2)
_HANGS, _SLOW = 124, -signal.SIGXCPU


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a case ended, the end of its messages, and its time and memory."""

    code: int
    said: str
    seconds: float
    bytes_used: int
    words: list[str]

    def fault(self, case: Case) -> str | None:
        """Return the kind of fault, if any."""
        is_asked = case.target in AMOUNTS or case.kind == "setting"
        # A very large request may take long, or fail for lack of memory.
        may_be_large = (is_asked and case.value in LARGE) or (
            case.kind == "content" and case.value in LARGE_TEXTS
        )
        is_full = "memory of this machine is full" in self.said or self.bytes_used > MEMORY
        if "Traceback (most" in self.said or "a bug in nmtgrid" in self.said:
            return "traceback"
        if self.code == _SLOW or self.seconds > SECONDS:
            return None if may_be_large else "slow"
        if self.code == _HANGS:
            return "hangs"
        if is_full:
            return None if may_be_large else "memory"
        return None if self.code in _FITTING else f"exit code {self.code}"

    def where(self) -> str:
        """Return the innermost line of nmtgrid in a traceback, and the error."""
        frames = re.findall(r'File "[^"]*/(nmtgrid/[^"]+)", line (\d+), in (\S+)', self.said)
        errors = re.findall(r"^(\w+(?:\.\w+)*(?:Error|Exception|Fault)\b[^\n]*)", self.said, re.M)
        frame = "{}:{} {}".format(*frames[-1]) if frames else "?"
        return f"{frame}: {errors[-1][:160] if errors else self.said[-160:]}"


def run(case: Case | None, line: Line, stock: Path, work: Path, debug: bool = False) -> Outcome:
    """Run a case (None: the unchanged line) in a copy of the files that it needs from the stock."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    work.chmod(0o777)
    said, facts = work / "said", work / "facts"
    base = _resident()
    began = time.monotonic()
    child = os.fork()
    if not child:
        _child(lambda: _prepare(case, line, stock, work / "case"), said, facts, debug)
    code, usage = _wait(child)
    shown = said.read_bytes()[-20_000:].decode(errors="replace") if said.exists() else ""
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    words = json.loads(facts.read_text())["words"] if facts.exists() else []
    return Outcome(
        code if words else _HANGS if code == _HANGS else 1,
        shown + ("" if words else f"\n(not prepared after {time.monotonic() - began:.1f} s)"),
        usage.ru_utime + usage.ru_stime,
        max(0, usage.ru_maxrss * 1024 - base),
        words,
    )


def read_files(line: Line, stock: Path, work: Path) -> list[str]:
    """Return the files of the stock that a line reads, by their names."""
    opened = work.with_name("opened")
    opened.unlink(missing_ok=True)
    opened.touch()
    opened.chmod(0o666)
    home = str(work / "case")

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
            path = os.path.join(home, os.fsdecode(arguments[0]))
            if "/case/" in path and os.path.isfile(path):
                names.add(os.path.relpath(path, home))

    names: set[str] = set()
    child = os.fork()
    if not child:
        shutil.rmtree(work, ignore_errors=True)
        words = _prepare(None, line, stock, work / "case")
        os.chdir(work / "case")
        _silence(work / "said")
        sys.addaudithook(note)
        with contextlib.suppress(BaseException):
            main(words)
        seen = sorted(name for name in names if (stock / name).is_file())
        opened.write_text(json.dumps(seen))
        os._exit(0)
    os.waitpid(child, 0)
    names_read: list[str] = json.loads(opened.read_text() or "[]")
    return names_read


def _prepare(case: Case | None, line: Line, stock: Path, folder: Path) -> list[str]:
    """Create the folder of a case; return the words of the command line."""
    folder.mkdir(parents=True)
    for name in {*line.needs, "text"}:
        if (stock / name).is_dir():
            shutil.copytree(stock / name, folder / name)
        else:
            shutil.copy(stock / name, folder / name)
    (folder / "some-file").write_text("a b\n")
    return line.words() if case is None else case.apply(folder)


def _child(prepare: Callable[[], list[str]], said: Path, facts: Path, debug: bool) -> None:
    """Do the work of the child, which never returns."""
    code = 1
    try:
        os.setsid()
        if os.geteuid() == 0:
            # Devices and other users' files must be safe from the cases.
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
        words = prepare()
        facts.write_text(json.dumps({"words": words}))
        os.chdir(facts.parent / "case")
        _silence(said)
        os.environ["TMPDIR"] = str(facts.parent)
        _limit()
        code = main(["--debug", *words] if debug else words)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        with contextlib.suppress(BaseException):
            os.write(2, traceback.format_exc()[-4000:].encode())
    finally:
        os._exit(code)


def _silence(said: Path) -> None:
    """Read from the case's input, and write to `said`."""
    read = os.open(INPUT, os.O_RDONLY)
    write = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for handle, stream in ((read, 0), (write, 1), (write, 2)):
        os.dup2(handle, stream)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115


def _limit() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
    resource.setrlimit(resource.RLIMIT_AS, (used + _ADDRESSES, used + _ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 2))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def _wait(child: int) -> tuple[int, resource.struct_rusage]:
    handle = os.pidfd_open(child)
    try:
        ended = select.select([handle], [], [], WALL_SECONDS)[0]
        if not ended:
            with contextlib.suppress(OSError):
                os.killpg(child, signal.SIGKILL)
            os.kill(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
    finally:
        os.close(handle)
    return (os.waitstatus_to_exitcode(status) if ended else _HANGS), usage
