"""Named settings in a model directory, chosen for particular weights: stored and checked.

    {"format": 1, "settings": {"fast": {..., "weights": "best", "checksum": "whole:.."}}}

Exits (adaptive/exit_presets.py) and reading policies (online/policy_presets.py) are stored this
way, each kind in its own file.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from nmtgrid.base.errors import ConfigError, StorageError, nearest
from nmtgrid.base.io.atomic import damaged_error, with_checksum, write_json
from nmtgrid.base.io.records import Record, convert, read_record
from nmtgrid.base.spans import is_whole_number
from nmtgrid.models.directory import LoadedModel

FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9._-]+")


class NamedSettings(Protocol):
    """Base of stored settings: a name, and the weights they were chosen for (None: unknown).

    The constructor raises ConfigError for an invalid name or invalid settings.
    """

    @property
    def name(self) -> str:
        """The key in the file."""

    @property
    def weights(self) -> str | None:
        """The name of the weights."""

    @property
    def checksum(self) -> str | None:
        """The checksum of the weights' file."""


Kind = TypeVar("Kind", bound=NamedSettings)


class _File(Record):
    settings: dict[str, dict[str, Any]]


def check_name(name: str, what: str, reserved: Iterable[str]) -> None:
    """Raise ConfigError for an invalid name, a number, or a `reserved` word."""
    if not _NAME.fullmatch(name) or is_whole_number(name) or name in reserved:
        raise ConfigError(
            f"{what} cannot be named `{name}`.",
            "Use letters, digits, dots, dashes and underscores, not "
            f"{' nor '.join([*reserved, 'only a number'])}.",
        )


@dataclasses.dataclass(frozen=True)
class SettingsFile(Generic[Kind]):
    """A kind of stored settings and its file in a model directory; messages call it `what`.

    `parts` names the values that depend on the weights, and `command` chooses them.
    """

    file: str
    kind: type[Kind]
    what: str
    parts: str
    command: str

    def load(self, folder: Path) -> dict[str, Kind]:
        """Return the settings in a model directory by name, `{}` if there are none.

        Raises StorageError for a file that differs from what was written.
        """
        path = folder / self.file
        if not path.exists():
            return {}
        presets = {}
        for name, preset in read_record(path, _File, FORMAT).settings.items():
            try:
                presets[name] = convert({**preset, "name": name}, self.kind)
            except ValueError as fault:
                raise damaged_error(path, f"in `{name}`, {fault}") from fault
            except ConfigError as fault:
                raise ConfigError(f"`{name}` in {path}: {fault.problem}", fault.advice) from fault
        return presets

    def load_one(self, folder: Path, name: str) -> Kind:
        """Return the settings stored under `name`. Raises ConfigError if there are none."""
        presets = self.load(folder)
        if name not in presets:
            advice = nearest(name, presets) or f"`{self.command}` stores them."
            raise ConfigError(f"{folder} holds no {self.what} named `{name}`.", advice)
        return presets[name]

    def save(
        self,
        folder: Path,
        presets: Iterable[Kind],
        is_replaced: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """Store `presets`, replacing those of the same names and those that `is_replaced` selects.

        Raises StorageError if they cannot be written.
        """
        kept = {name: old for name, old in self.load(folder).items() if not is_replaced(name)}
        kept |= {preset.name: preset for preset in presets}
        table: dict[str, dict[str, Any]] = {}
        for name, preset in kept.items():
            fields: Any = preset
            table[name] = dataclasses.asdict(fields)
            del table[name]["name"]  # it is the key
        write_json(folder / self.file, with_checksum({"format": FORMAT, "settings": table}))

    def check_writable(self, folder: Path) -> None:
        """Raise StorageError if settings cannot be stored in `folder`; called before long work."""
        # A damaged file would otherwise be noticed only after hours of work.
        self.load(folder)
        if not os.access(folder, os.W_OK):
            raise StorageError(
                f"{folder} is read-only: no settings can be stored in it.",
                "Add `--no-keep`, or tune a copy of the model.",
            )

    def check_weights(self, preset: Kind, loaded: LoadedModel, warn: Callable[[str], None]) -> None:
        """Warn if the weights have changed since the settings were chosen for them.

        Raises ConfigError if both their name and their checksum differ. Settings without a checksum
        are not checked.
        """
        # The checksum decides, not the name: "best" may have been trained on since.
        if preset.checksum is None or preset.checksum == loaded.checksum:
            return
        path = loaded.folder / self.file
        if preset.weights is not None and preset.weights != loaded.weights:
            raise ConfigError(
                f"`{preset.name}` in {path} was tuned on the weights `{preset.weights}`, but "
                f"`{loaded.weights}` are used.",
                f"Decode with `--weights {preset.weights}`, or tune {self.parts} for these: "
                f"`{self.command} --weights {loaded.weights}`.",
            )
        warn(
            f"`{preset.name}` in {path} was tuned on other weights than the current ones: its "
            f"{self.parts} may not suit them. Tune again: `{self.command}`."
        )
