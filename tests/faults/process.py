"""Commands in separate processes, forked from this one, so that torch is loaded only once."""

import dataclasses
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from nmtgrid.cli.app import main
from tests.faults.taps import Tap

LIMIT = 60.0
"""Seconds after which a command counts as hanging."""
HANGS = 124


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (a signal as a negative number) and all its messages."""

    code: int
    said: str
    moments: int = 0

    @property
    def is_refused(self) -> bool:
        """Whether it reported the error in a single message."""
        return self.code == 2 and self.said.count("error: ") == 1 and not self.fell_over

    @property
    def fell_over(self) -> bool:
        """Whether it ended in an invalid way."""
        return self.code in (1, HANGS) or "Traceback" in self.said or "a bug in" in self.said


@dataclasses.dataclass(frozen=True)
class Kill:
    """A signal after some seconds."""

    after: float
    kind: signal.Signals


def run(
    words: Sequence[str], folder: Path, tap: Tap | None = None, kill: Kill | None = None
) -> Ended:
    """Run a command in `folder`, in a forked process."""
    return Running(words, folder, tap).wait(kill)


class Running:
    """A command in a forked process, which may run in parallel with others."""

    def __init__(self, words: Sequence[str], folder: Path, tap: Tap | None = None) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `wait`)
        self._moments = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = os.fork()
        if not self.process:
            _work(lambda: main(words), folder, self._said, self._moments, tap)

    def wait(self, kill: Kill | None = None) -> Ended:
        """Wait until the command ends; return how it ended."""
        with self._said as said, self._moments as moments:
            code = _wait(self.process, kill)
            said.seek(0)
            moments.seek(0)
            return Ended(code, said.read().decode(errors="replace"), int(moments.read() or 0))


def start(words: Sequence[str], folder: Path, kill: Kill) -> Ended:
    """Run a command as a user does, including Python's start and all imports, and kill it."""
    with tempfile.TemporaryFile() as said:
        begun = subprocess.Popen(
            [sys.executable, "-m", "nmtgrid", *words], cwd=folder, stdout=said, stderr=said,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
        try:
            code = begun.wait(kill.after)
        except subprocess.TimeoutExpired:
            begun.send_signal(kill.kind)
            code = begun.wait(LIMIT)
        said.seek(0)
        return Ended(code, said.read().decode(errors="replace"))


def _work(
    work: Callable[[], int], folder: Path, said: IO[bytes], moments: IO[bytes], tap: Tap | None
) -> None:
    """Do the work of the child, which never returns."""
    code = 1
    try:
        os.chdir(folder)
        for stream in (1, 2):
            os.dup2(said.fileno(), stream)
        if tap is not None:
            tap.install()
        code = work()
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(moments.fileno(), str(tap.count if tap else 0).encode())
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _wait(child: int, kill: Kill | None) -> int:
    """Return the exit code of the process `child`."""
    handle = os.pidfd_open(child)
    try:
        ended = select.select([handle], [], [], LIMIT if kill is None else kill.after)[0]
        if not ended and kill is not None:
            os.kill(child, kill.kind)
            ended = select.select([handle], [], [], LIMIT)[0]
        if not ended:
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    finally:
        os.close(handle)
    return os.waitstatus_to_exitcode(status) if ended else HANGS
