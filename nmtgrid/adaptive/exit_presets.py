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
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from nmtgrid.adaptive.halting import (
    AnyHalt,
    FixedExit,
    Mechanism,
    Predicted,
    Thresholds,
    check_halt,
)
from nmtgrid.base.errors import ConfigError, ModelError, StorageError, nearest
from nmtgrid.base.io.atomic import damaged_error, read_json, write_json
from nmtgrid.base.io.checksums import altered_error, is_altered, with_checksum
from nmtgrid.models.api import TranslationModel, with_exits
from nmtgrid.models.directory import EXITS as FILE
from nmtgrid.models.directory import LoadedModel

FORMAT = 1
AUTO = "auto"
"""Stands for a name: the model's own exit predictor, untuned."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclasses.dataclass(frozen=True)
class ExitSettings:
    """A halting mechanism with its thresholds, under a name, and how it did where it was tuned."""

    name: str
    mechanism: Mechanism
    thresholds: tuple[float, ...]
    split: str
    bleu: float | None = None
    average_exit: float | None = None
    weights: str | None = None
    checksum: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for a name or thresholds that cannot be."""
        _check_name(self.name)
        if self.mechanism in ("multinomial", "sequence") and self.thresholds:
            raise ConfigError(f"A `{self.mechanism}` predictor has no thresholds.")
        self.halt()

    def halt(self) -> Thresholds | Predicted:
        """Return the halting mechanism."""
        if self.mechanism == "multinomial" or self.mechanism == "sequence":
            return Predicted(self.mechanism)
        return Thresholds(self.mechanism, self.thresholds)


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
    values = read_json(path)
    if not isinstance(values, dict) or not isinstance(values.get("settings"), dict):
        raise damaged_error(path, "it has no table `settings`")
    if values.get("format") != FORMAT:
        raise ModelError(
            f"{path} has format {values.get('format')!r}, but this version of nmtgrid reads "
            f"format {FORMAT}.",
            "Tune the thresholds again: `nmtgrid adaptive-tune`.",
        )
    # After the format: another version may compute its checksum differently.
    if is_altered(values):
        raise altered_error(path)
    return {name: _from_json(path, name, fields) for name, fields in values["settings"].items()}


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
    if not _is_number(choice) and choice != AUTO:
        stored = load_exit(loaded.folder, choice, model)
        check_weights(stored, loaded, warn)
        return stored.halt()
    halt = _untuned(model) if choice == AUTO else FixedExit(int(choice))
    check_halt(halt, model)
    return halt


def _untuned(model: TranslationModel) -> AnyHalt:
    """Return the model's own exit predictor, stopping where that is likelier than not."""
    halting = model.traits.halting
    if halting == "none":
        raise ConfigError(
            "This model has no exit predictor, so it cannot tell by itself where to stop.",
            "Name an exit, tune thresholds (`nmtgrid adaptive-tune`), or fine-tune it with "
            "`--set model.halting=geometric --objective exits-halting`.",
        )
    if halting == "geometric":
        return Thresholds("geometric", (0.5,) * (model.traits.num_exits - 1))
    return Predicted(halting)


def _check_name(name: str) -> None:
    # `--exit` takes a number, "auto" or a name: a name must be neither of the others.
    if not _NAME.fullmatch(name) or _is_number(name) or name == AUTO:
        raise ConfigError(
            f"Settings of early exit cannot be named `{name}`.",
            f"Use letters, digits, dots, dashes and underscores, not {AUTO} nor a number alone.",
        )


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?[0-9]+", text) is not None


def _from_json(path: Path, name: str, values: Any) -> ExitSettings:
    # A user may have edited the file; what is wrong is said before anything is built from it.
    problem = _problem(values)
    if problem:
        raise damaged_error(path, f"in `{name}`, {problem}")
    # Other keys, of later versions, are passed over.
    names = [field.name for field in dataclasses.fields(ExitSettings)]
    fields = {key: values.get(key) for key in names}
    fields |= {"name": name, "thresholds": tuple(map(float, values["thresholds"]))}
    try:
        return ExitSettings(**fields)
    except ConfigError as fault:
        raise ConfigError(f"`{name}` in {path}: {fault.problem}", fault.advice) from fault


def _problem(values: Any) -> str:
    """Return what is wrong with the record of one name, or nothing."""
    if not isinstance(values, dict):
        return "the settings are not a table"
    mechanism = values.get("mechanism")
    if mechanism not in get_args(Mechanism):
        return f"`mechanism` is none that is known, but {mechanism!r}"
    thresholds = values.get("thresholds")
    if not isinstance(thresholds, list) or not all(map(_is_value, thresholds)):
        return "`thresholds` is not a list of numbers"
    if not isinstance(values.get("split"), str):
        return "`split` is not a text"
    for name in ("bleu", "average_exit"):
        if values.get(name) is not None and not _is_value(values[name]):
            return f"`{name}` is not a number"
    for name in ("weights", "checksum"):
        if not isinstance(values.get(name), str | None):
            return f"`{name}` is not a text"
    return ""


def _is_value(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
