"""The errors that users see: each says what is wrong and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path


class NmtgridError(Exception):
    """An error that the user can fix: `problem` says what is wrong, `advice` what to do."""

    def __init__(self, problem: str, advice: str = "") -> None:
        self.problem = problem
        self.advice = advice
        super().__init__(f"{problem} {advice}".strip())


class InputError(NmtgridError):
    """An error in a text file, with its line (from 1) if known."""

    def __init__(
        self, problem: str, advice: str = "", *, path: str | Path = "", line: int = 0
    ) -> None:
        where = f"{path}:{line}: " if path and line else f"{path}: " if path else ""
        self.path, self.line = str(path), line
        super().__init__(where + problem, advice)


class ConfigError(NmtgridError):
    """One or more invalid settings, all named in one message."""

    def __init__(self, faults: str | Sequence[str], advice: str = "") -> None:
        self.faults = [faults] if isinstance(faults, str) else list(faults)
        super().__init__("\n".join(self.faults), advice)


def merged(errors: Sequence[ConfigError]) -> ConfigError:
    """Return one error with the faults of all, and with their advice unless it differs."""
    advice = {error.advice for error in errors if error.advice}
    faults = [fault for error in errors for fault in error.faults]
    return ConfigError(faults, advice.pop() if len(advice) == 1 else "")


class StorageError(NmtgridError):
    """A file of nmtgrid that cannot be written, or is missing, truncated or altered."""


class DataError(NmtgridError):
    """A dataset directory that is incomplete or unsuitable."""


class ModelError(NmtgridError):
    """A model directory that is incomplete or does not fit."""


class DeviceError(NmtgridError):
    """A device that is unavailable or too small."""


class TrainingError(NmtgridError):
    """Training that cannot continue, for example because the loss is not finite."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``Did you mean `x`?`` for the known name nearest to `word`, or a list of the names.

    The same last part in another group, or a name that `word` abbreviates, counts as nearest.
    """
    names = sorted(set(known))
    last = word.rpartition(".")[2]
    close = []
    for name in names:
        # A name without its groups, and its initials if it has several words.
        short = name.rpartition(".")[2]
        initials = "".join(part[:1] for part in short.split("_")) if "_" in short else short
        close += [name] if last in (short, initials) else []
    # Similar spelling comes second: an abbreviation such as `lr` is spelt unlike its full name.
    close = close or difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"Did you mean `{close[0]}`?"
    return f"Known: {listed([f'`{name}`' for name in names], 15)}." if names else ""


def listed(items: Sequence[object], most: int = 10, between: str = ", ") -> str:
    """Return the first `most` of `items` for a message, and how many more there are."""
    shown = between.join(map(str, items[:most]))
    more = len(items) - most
    return f"{shown} and {more:,} more" if more > 0 else shown


def list_names(names: Sequence[str]) -> str:
    """Return the first 5 of `names` for a message, and how many more there are."""
    return listed([f"`{name}`" for name in names], 5)
