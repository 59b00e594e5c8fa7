"""A signal at any moment ends the program cleanly, with one line and its own exit code."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_SIGNALS = [signal.SIGINT, signal.SIGTERM]


def _start(folder: Path, project: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=folder,
        env={**os.environ, "PYTHONPATH": str(project)}, stderr=subprocess.PIPE, text=True,
        # A background job and its children start with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def _until_caught(process: subprocess.Popen[str]) -> None:
    """Wait until `process` has handlers of its own."""
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():  # not Linux
        time.sleep(5.0)
        return
    end = time.monotonic() + 60
    while time.monotonic() < end:
        caught = next(x for x in status.read_text().splitlines() if x.startswith("SigCgt"))
        # Python itself catches SIGINT from the start, the program SIGTERM later.
        if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.02)
    raise AssertionError("no handler after a minute")


@pytest.mark.parametrize("seconds", [0.0, 0.3, 1.5])  # as it starts, loads its parts, and works
@pytest.mark.parametrize("number", _SIGNALS)
def test_an_early_signal_leaves_nothing_and_says_so_once(
    project: Path, tmp_path: Path, number: signal.Signals, seconds: float
) -> None:
    run = _start(tmp_path, project, "-m", "nmtgrid", "preprocess", "--toy", "1000000",
                 "--out", "data")  # fmt: skip
    _until_caught(run)
    time.sleep(seconds)
    run.send_signal(number)
    message = run.communicate(timeout=60)[1]
    assert run.returncode == 128 + number
    assert message == "Interrupted.\n"
    assert list(tmp_path.iterdir()) == []


# While a dataclass is created; afterwards Python would end `python -m` with SIGINT.
_WHILE_CODE_IS_MADE = """
import os, signal
from nmtgrid.cli import app

app._run = lambda given: exec("os.kill(os.getpid(), signal.{name})", vars(app) | globals())
app.program()
"""
_WHAT_ELSE_IS_REGISTERED = """
import atexit, os, signal, sys
from nmtgrid.cli import app

def run(given):
    atexit.register(print, "tidied", file=sys.stderr)
    os.kill(os.getpid(), signal.{name})

app._run = run
app.program()
"""
_WHERE_EXCEPTIONS_ARE_IGNORED = """
import os, signal, time
from nmtgrid.cli import app

class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        time.sleep(0.01)

def run(given):
    Dropped()
    time.sleep(30)

app._run = run
app.program()
"""


@pytest.mark.parametrize("number", _SIGNALS)
@pytest.mark.parametrize(
    ("program", "message"),
    [
        (_WHILE_CODE_IS_MADE, "Interrupted.\n"),
        (_WHAT_ELSE_IS_REGISTERED, "Interrupted.\ntidied\n"),
        (_WHERE_EXCEPTIONS_ARE_IGNORED, "Interrupted.\n"),
    ],
    ids=["while code is made", "with an exit handler", "where exceptions are ignored"],
)
def test_a_signal_in_an_odd_place_has_its_own_code_too(
    project: Path, tmp_path: Path, program: str, message: str, number: signal.Signals
) -> None:
    (tmp_path / "started.py").write_text(program.format(name=number.name))
    run = _start(tmp_path, project, "-m", "started")
    said = run.communicate(timeout=60)[1]
    assert (run.returncode, said) == (128 + number, message)
