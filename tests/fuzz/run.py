"""Draws cases for a reader, and counts those that it accepts, refuses or crashes on.

A reader may raise nothing but a proper error, within `SECONDS` and with `MEMORY` in addition to
what the program takes anyway.
"""

import contextlib
import dataclasses
import io
import resource
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from nmtgrid.base.errors import NmtgridError
from tests.fuzz.folders import folders
from tests.fuzz.single import single

SECONDS = 10
MEMORY = 2 << 30
_PAGE = resource.getpagesize()


@dataclasses.dataclass
class Count:
    """The outcomes of a reader's cases; `faults` are tracebacks, each with its smallest case."""

    cases: int = 0
    accepted: int = 0
    refused: int = 0
    faults: list[str] = dataclasses.field(default_factory=list)


class TooSlow(Exception):
    """Raised if a reader does not finish in time."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Limit the memory of this process; memory already in use is not counted."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def readers(only: str = "") -> Iterator[tuple[str, st.SearchStrategy[Any], Callable[[Any], Any]]]:
    """Yield each reader's name, the strategy for its cases, and the function to run on them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for label, reader in single(folder).items():
            if only in label:
                yield label, reader.drawn, _reads_file(folder / "case", reader.read)
        if any(only in label for label in ("model", "dataset", "saved state", "kept exits")):
            with contextlib.redirect_stderr(io.StringIO()):
                by_name = folders(folder)
            for label, (where, cases, read) in by_name.items():
                if only in label:
                    yield label, cases, _reads_folder(where, read)


def _reads_file(path: Path, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    def call(content: bytes) -> Any:
        path.write_bytes(content)
        return read(path)

    return call


def _reads_folder(folder: Path, read: Callable[[Path], Any]) -> Callable[[tuple[str, bytes]], Any]:
    def call(case: tuple[str, bytes]) -> Any:
        name, content = case
        path = folder / name
        before = path.read_bytes()
        try:
            path.write_bytes(content)
            return read(folder)
        finally:
            path.write_bytes(before)

    return call


def run(
    drawn: st.SearchStrategy[Any], call: Callable[[Any], Any], cases: int, number: int
) -> Count:
    """Return the outcomes of so many cases; `number` is the seed."""
    count = Count()

    @seed(number)
    @settings(
        max_examples=cases, deadline=None, database=None, report_multiple_bugs=True,
        suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink),
        print_blob=False,
    )  # fmt: skip
    @given(drawn)
    def check(case: Any) -> None:
        count.cases += 1
        try:
            _in_time(call, case)
            count.accepted += 1
        except NmtgridError:
            count.refused += 1

    try:
        with limited(), contextlib.redirect_stdout(io.StringIO()):
            check()
    except Exception as fault:
        faults = fault.exceptions if isinstance(fault, ExceptionGroup) else [fault]
        count.faults = [_told(cause) for cause in faults]
    return count


def _told(fault: BaseException) -> str:
    """Return the location of the fault, its message, and the smallest case with it."""
    frames = traceback.extract_tb(fault.__traceback__)[-6:]
    where = [f"  {frame.filename}:{frame.lineno} {frame.line}" for frame in frames]
    notes = " ".join(getattr(fault, "__notes__", ()))
    return "\n".join([*where, f"  {type(fault).__name__}: {str(fault)[:300]}", f"  {notes[:600]}"])


def _in_time(call: Callable[[Any], Any], case: Any) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        call(case)
    except SystemExit as fault:  # a package that ends the program
        raise RuntimeError("the program was ended") from fault
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
