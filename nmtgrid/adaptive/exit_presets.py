"""Named settings of early exit in a model directory, `exits.json`: saved, checked and loaded.

    {"format": 1, "settings": {"fast": {"mechanism": "geometric", "thresholds": [0.4, 0.7],
     "split": "valid", "bleu": 34.7, "average_exit": 1.4, "weights": "best",
     "checksum": "whole:.."}}}

Predictors that choose an exit outright have no thresholds. BLEU and average exit, of the split that
the thresholds were tuned on, may be null; so may the name of the weights that they were tuned on
and the checksum of those weights' file.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.adaptive.halting import (
    AnyHalt,
    FixedExit,
    Mechanism,
    Predicted,
    Thresholds,
    check_halt,
    halt_by,
)
from nmtgrid.base.errors import ConfigError, StorageError, nearest
from nmtgrid.base.io.atomic import (
    damaged_error,
    with_checksum,
    write_json,
)
from nmtgrid.base.io.records import Finite, NonNegative, Percent, Record, convert, read_record
from nmtgrid.base.spans import is_whole_number, whole_number
from nmtgrid.models.api import TranslationModel, with_exits
from nmtgrid.models.directory import EXITS as FILE
from nmtgrid.models.directory import LoadedModel

FORMAT = 1
AUTO = "auto"
"""Stands for a name: the model's own exit predictor, untuned."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")


class _File(Record):
    settings: dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class ExitSettings:
    """A halting mechanism with its thresholds, under a name, and how it did where it was tuned."""

    name: str
    mechanism: Mechanism
    thresholds: tuple[Finite, ...]
    split: str
    bleu: Percent | None = None
    average_exit: NonNegative | None = None
    weights: str | None = None
    checksum: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for a name or thresholds that cannot be."""
        # `--exit` takes a number, "auto" or a name: a name must be neither of the others.
        if not _NAME.fullmatch(self.name) or is_whole_number(self.name) or self.name == AUTO:
            raise ConfigError(
                f"Settings of early exit cannot be named `{self.name}`.",
                f"Use letters, digits, dots, dashes and underscores, not {AUTO} nor a number "
                "alone.",
            )
        if self.mechanism in ("multinomial", "sequence") and self.thresholds:
            raise ConfigError(f"A `{self.mechanism}` predictor has no thresholds.")
        self.halt()

    def halt(self) -> Thresholds | Predicted:
        """Return the halting mechanism."""
        return halt_by(self.mechanism, self.thresholds)


def save_exits(
    folder: Path,
    model: TranslationModel,
    settings: Sequence[ExitSettings],
    tuning: str | None = None,
) -> None:
    """Keep `settings` in a model's directory, instead of any of the same names.

    Those of a `tuning` replace whatever an earlier one of that name left, `NAME-BUDGET`. Raises
    ConfigError where they do not fit the model, StorageError where they cannot be written.
    """
    for preset in settings:
        check_halt(preset.halt(), model)
    # A tuning writes a preset for each budget; those of an earlier run with other budgets go.
    old = re.compile(rf"{re.escape(tuning)}-[0-9.]+") if tuning else None
    presets = {
        name: preset
        for name, preset in load_exits(folder).items()
        if old is None or not old.fullmatch(name)
    }
    presets |= {preset.name: preset for preset in settings}
    table = {name: dataclasses.asdict(preset) for name, preset in presets.items()}
    for values in table.values():
        del values["name"]  # it is the key
    write_json(folder / FILE, with_checksum({"format": FORMAT, "settings": table}))


def check_place(folder: Path) -> None:
    """Raise StorageError, before the work, where settings cannot be kept in a model's directory."""
    # A damaged file would otherwise be noticed after hours of tuning.
    load_exits(folder)
    if not os.access(folder, os.W_OK):
        raise StorageError(
            f"{folder} may only be read: no settings can be kept in it.",
            "Add `--no-keep`, or tune a copy of the model.",
        )


def load_exits(folder: Path) -> dict[str, ExitSettings]:
    """Return the settings in a model's directory by their names; there may be none.

    Raises StorageError for a file that is not what was written.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    presets = {}
    for name, preset in read_record(path, _File, FORMAT).settings.items():
        try:
            presets[name] = convert({**preset, "name": name}, ExitSettings)
        except ValueError as fault:
            raise damaged_error(path, f"in `{name}`, {fault}") from fault
        except ConfigError as fault:
            raise ConfigError(f"`{name}` in {path}: {fault.problem}", fault.advice) from fault
    return presets


def load_exit(folder: Path, name: str, model: TranslationModel) -> ExitSettings:
    """Return the settings under `name`.

    Raises ConfigError where there are none, or none that fit the model.
    """
    presets = load_exits(folder)
    if name not in presets:
        advice = nearest(name, presets) or "Tune some: `nmtgrid adaptive-tune`."
        raise ConfigError(f"{folder} holds no settings of early exit named `{name}`.", advice)
    preset = presets[name]
    try:
        check_halt(preset.halt(), model)
    except ConfigError as fault:
        raise ConfigError(f"`{name}` in {folder / FILE}: {fault.problem}", fault.advice) from fault
    return preset


def check_weights(settings: ExitSettings, loaded: LoadedModel, warn: Callable[[str], None]) -> None:
    """Warn where the weights have changed since the thresholds were tuned on them.

    Raises ConfigError where they are others, by their name and by what they are. Of settings that
    do not tell their weights nothing is known.
    """
    # The checksum decides, not the name: "best" may have been trained on since.
    if settings.checksum is None or settings.checksum == loaded.checksum:
        return
    path = loaded.folder / FILE
    if settings.weights is not None and settings.weights != loaded.weights:
        raise ConfigError(
            f"`{settings.name}` in {path} was tuned on the weights `{settings.weights}`, but "
            f"`{loaded.weights}` are to decode.",
            f"Decode with `--weights {settings.weights}`, or tune thresholds for these: "
            f"`nmtgrid adaptive-tune --weights {loaded.weights}`.",
        )
    warn(
        f"`{settings.name}` in {path} was tuned on other weights than those that decode now: its "
        "thresholds may not fit them. Tune again: `nmtgrid adaptive-tune`."
    )


def halt_of(choice: str, loaded: LoadedModel, warn: Callable[[str], None]) -> AnyHalt:
    """Return what `choice` asks for: an exit's number, "auto", or the name of stored settings.

    "auto" is the model's own exit predictor, which stops where that is likelier than not, or at the
    likeliest exit. Raises ConfigError for what is not there or does not fit, and where stored
    settings were tuned on other weights; see `check_weights`.
    """
    model = loaded.model
    with_exits(model)
    if not is_whole_number(choice) and choice != AUTO:
        stored = load_exit(loaded.folder, choice, model)
        check_weights(stored, loaded, warn)
        return stored.halt()
    halt: AnyHalt
    halting = model.traits.halting
    if choice != AUTO:
        try:
            halt = FixedExit(whole_number(choice))
        except ValueError as fault:
            raise ConfigError(f"`--exit`: {fault}") from fault
    elif halting == "none":
        raise ConfigError(
            "This model has no exit predictor, so it cannot tell by itself where to stop.",
            "Name an exit, tune thresholds (`nmtgrid adaptive-tune`), or fine-tune it with "
            "`--set model.halting=geometric --objective exits-halting`.",
        )
    else:
        halt = halt_by(halting, (0.5,) * (model.traits.num_exits - 1))
    check_halt(halt, model)
    return halt
