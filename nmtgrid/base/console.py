"""The only module below the command line that prints: tables, progress bars, messages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

output = Console(soft_wrap=True, highlight=False)
# Messages go to standard error, so that the output of `decode` can be piped.
messages = Console(stderr=True, soft_wrap=True, highlight=False)
_speaker = ""
_is_quiet = False
# Width of a table that is not written to a terminal.
_UNBOUNDED = 10_000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def mute(speaker: str) -> None:
    """Print nothing while `messages.quiet` is set: another process of the same run prints.

    `speaker` is the name of this process, which is put before its errors later.
    """
    global _speaker
    messages.quiet, _speaker = True, f"{speaker}: "


def set_quiet(value: bool) -> None:
    """If `value`, print only warnings, errors and results on standard output."""
    global _is_quiet
    _is_quiet = value


def say(text: str) -> None:
    """Print a message for people on standard error."""
    if _is_quiet:
        return
    messages.print(printable(text), markup=False)


def warn(text: str) -> None:
    """Print a warning on standard error."""
    messages.print(printable(f"warning: {text}"), style="yellow", markup=False)


def error(problem: str, advice: str = "") -> None:
    """Print an error on standard error."""
    messages.print(printable(f"{_speaker}error: {problem}"), style="bold red", markup=False)
    if advice:
        messages.print(printable(f"       {advice}"), markup=False)


def table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[Any]],
    is_right: Sequence[bool] | None = None,
    console: Console = messages,
    width: int | None = None,
) -> None:
    """Print a table on standard error; numbers, or the columns in `is_right`, are right-aligned.

    `width` limits its width in characters if it is not written to a terminal.
    """
    if _is_quiet and console is messages:
        return
    content = Table(title=Text(printable(title), style="table.title"), title_justify="left")
    rows = [list(row) for row in rows]
    for column, heading in enumerate(headings):
        numeric = bool(rows) and all(isinstance(row[column], (int, float)) for row in rows)
        numeric = numeric if is_right is None else is_right[column]
        # Folded, not cut, so that whole cells can be copied.
        content.add_column(
            Text(heading),
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=column == 0 and console is output,
        )
    for row in rows:
        # Text, not a string: `[b]` in a cell is not markup.
        content.add_row(*(Text(_format(cell)) for cell in row))
    # A file or a pipe has no width: the table is then as wide as its content, or as `width`.
    if not (console.is_terminal or "COLUMNS" in os.environ):
        quiet = console.quiet
        console = Console(
            file=console.file, width=width or _UNBOUNDED, quiet=quiet, soft_wrap=True,
            highlight=False,
        )  # fmt: skip
    console.print(content)


class Bar:
    """A progress bar."""

    def __init__(self, progress: Progress, description: str, total: float | None) -> None:
        self._progress = progress
        self._id = progress.add_task(description, total=total, note="")

    @property
    def seconds(self) -> float:
        """Seconds since the bar was shown or its last stage began."""
        return self._progress.tasks[0].elapsed or 0.0

    def update(self, **changes: Any) -> None:
        """Update `advance`, `completed`, `total` or `note` (a text such as a rate)."""
        self._progress.update(self._id, **changes)

    def stage(self, description: str) -> None:
        """Restart the bar with a new description; do nothing if it is the current one."""
        if description != self._progress.tasks[0].description:
            self._progress.reset(self._id, description=description)


@contextmanager
def progress(
    description: str, total: float | None = None, *, hidden: bool = False
) -> Iterator[Bar]:
    """Show a progress bar on a terminal, unless `hidden`; nothing elsewhere."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=messages,
        transient=True,
        # In a log file each step of a bar would be a line.
        disable=hidden or _is_quiet or not sys.stderr.isatty(),
    )
    with bar:
        yield Bar(bar, description, total)


def _format(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:,.2f}"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    return printable(str(cell))


def printable(text: str) -> str:
    """Return `text` with characters that are unsafe on a terminal written as escapes.

    These are control characters, which may be terminal commands, and lone surrogates (undecodable
    bytes of file names).
    """
    return _CONTROL.sub(
        lambda match: f"\\x{ord(match[0]):02x}", text.encode("utf-8", "backslashreplace").decode()
    )
