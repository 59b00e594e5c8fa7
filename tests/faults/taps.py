"""Moments at which a process changes the disk, and disturbances at one of them."""

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable
from typing import Any

KINDS = ("replace", "rename", "link", "unlink", "mkdir", "rmdir", "fsync")
"""Functions of `os` whose calls are moments; others are when files are opened or written."""
_FILLS = ("open", "write", "mkdir", "link", "fsync")
"""Operations that fail on a full disk; those that only move or remove names do not."""


class Tap:
    """Counts the moments of this process; `befall(kind, number)` is called at each.

    If it raises in the middle of a write, half of the bytes are on the disk.
    """

    def __init__(self, befall: Callable[[str, int], None]) -> None:
        self.count = 0
        self._befall = befall

    def moment(self, kind: str) -> None:
        """Record that an operation is about to happen."""
        self.count += 1
        self._befall(kind, self.count)

    def install(self) -> None:
        """Watch this process from now on."""
        for name in KINDS:
            setattr(os, name, self._watched(name, getattr(os, name)))
        opened = self._opener(builtins.open)
        for module in (builtins, io):
            setattr(module, "open", opened)  # noqa: B010

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.moment(name)
            return function(*args, **kwargs)

        return watched

    def _opener(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def opened(
            file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any
        ) -> Any:
            if (
                not set(mode) & set("wax")
                or "+" in mode
                or not isinstance(file, (str, os.PathLike))
            ):
                return plain(file, mode, buffering, *args, **kwargs)
            self.moment("open")
            raw = _Tapped(file, mode.replace("b", "").replace("t", ""))
            raw.tap = self
            writer = io.BufferedWriter(raw)
            return writer if "b" in mode else io.TextIOWrapper(writer, *args, **kwargs)

        return opened


class _Tapped(io.FileIO):
    """A file whose every write has a moment, after half of the bytes are written."""

    tap: Tap

    def write(self, values: Any) -> int:
        whole = memoryview(values).cast("B")
        half = len(whole) // 2
        done = super().write(whole[:half]) or 0
        try:
            self.tap.moment("write")
        except OSError:
            # The buffered writer keeps bytes that it considers unwritten; they must not come twice.
            os.ftruncate(self.fileno(), os.fstat(self.fileno()).st_size - done)
            raise
        return done + (super().write(whole[done:]) or 0)


def killing(at: int, kind: signal.Signals) -> Tap:
    """Return a function that sends this process a signal at moment `at`."""

    def befall(name: str, number: int) -> None:
        if number == at:
            os.kill(os.getpid(), kind)

    return Tap(befall)


def filling(at: int) -> Tap:
    """Return a function that fills the disk permanently at moment `at`."""

    def befall(name: str, number: int) -> None:
        if number >= at and name in _FILLS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return Tap(befall)


def counting() -> Tap:
    """Return a function that only counts."""
    return Tap(lambda name, number: None)
