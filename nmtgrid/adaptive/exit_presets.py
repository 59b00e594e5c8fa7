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
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from nmtgrid.adaptive.halting import (
    AnyHalt,
    FixedExit,
    Mechanism,
    Predicted,
    Thresholds,
    check_halt,
    halt_by,
)
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.records import Finite, NonNegative, Percent
from nmtgrid.base.spans import is_whole_number, shortened, whole_number
from nmtgrid.models.api import TranslationModel, Verified, with_exits
from nmtgrid.models.directory import EXITS, LoadedModel
from nmtgrid.models.named_settings import SettingsFile, check_name
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.translate import Translator
from nmtgrid.search.verified import check_verified

AUTO = "auto"
"""Reserved name: the model's own exit predictor, untuned."""
VERIFIED = "verified"
"""Reserved name: drafts of an early exit, verified by the full stack."""


@dataclasses.dataclass(frozen=True)
class ExitPreset:
    """A named halting mechanism with its thresholds, and its results on the tuning split."""

    name: str
    mechanism: Mechanism
    thresholds: tuple[Finite, ...]
    split: str
    bleu: Percent | None = None
    average_exit: NonNegative | None = None
    weights: str | None = None
    checksum: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for an invalid name or invalid thresholds."""
        check_exit_name(self.name)
        if self.mechanism in ("multinomial", "sequence") and self.thresholds:
            raise ConfigError(f"A `{self.mechanism}` predictor has no thresholds.")
        self.halt()

    def halt(self) -> Thresholds | Predicted:
        """Return the halting mechanism."""
        return halt_by(self.mechanism, self.thresholds)


def check_exit_name(name: str) -> None:
    """Raise ConfigError for a name that `--exit` could not tell from a number or a keyword."""
    check_name(name, "Settings of early exit", [AUTO, VERIFIED])


EXIT_FILE = SettingsFile(
    EXITS, ExitPreset, "settings of early exit", "thresholds", "nmtgrid adaptive-tune"
)


def save_exits(
    folder: Path,
    model: TranslationModel,
    settings: Sequence[ExitPreset],
    tuning: str | None = None,
) -> None:
    """Save `settings` in a model directory, replacing any of the same names.

    Those of a `tuning` replace all presets `NAME-BUDGET` of an earlier one of that name. Raises
    ConfigError if they do not fit the model, StorageError if they cannot be written.
    """
    for preset in settings:
        check_halt(preset.halt(), model)
    # A tuning writes a preset for each budget; those of an earlier run with other budgets are
    # removed.
    old = re.compile(rf"{re.escape(tuning)}-[0-9.]+") if tuning else None
    EXIT_FILE.save(
        folder, settings, lambda name: old is not None and old.fullmatch(name) is not None
    )


def load_exit(folder: Path, name: str, model: TranslationModel) -> ExitPreset:
    """Return the settings under `name`.

    Raises ConfigError if there are none, or if they do not fit the model.
    """
    preset = EXIT_FILE.load_one(folder, name)
    try:
        check_halt(preset.halt(), model)
    except ConfigError as fault:
        raise ConfigError(f"`{name}` in {folder / EXITS}: {fault.problem}", fault.advice) from fault
    return preset


def halt_of(choice: str, loaded: LoadedModel, warn: Callable[[str], None]) -> AnyHalt | Verified:
    """Return the exit mechanism of `choice`: a block number, a keyword, or stored settings.

    "verified" may have settings, as in `verified exit=2 drafts=5`; "auto" is the model's own exit
    predictor, which exits where that is more likely than not, or at the most likely exit. Raises
    ConfigError if the choice does not exist or does not fit the model, and if stored settings were
    tuned on other weights; see `SettingsFile.check_weights`.
    """
    model = with_exits(loaded.model)
    if choice.split()[:1] == [VERIFIED]:
        verified = verified_of(choice)
        check_verified(model, verified, SearchPlan())
        return verified
    if choice == AUTO:
        if model.traits.halting == "none":
            raise ConfigError(
                "This model has no exit predictor, so it cannot decide where to exit.",
                "Give a fixed exit, tune thresholds (`nmtgrid adaptive-tune`), or fine-tune the "
                "model with `--set model.halting=geometric --objective exits-halting`.",
            )
        return halt_by(model.traits.halting, (0.5,) * (model.traits.num_exits - 1))
    if not is_whole_number(choice):
        stored = load_exit(loaded.folder, choice, model)
        EXIT_FILE.check_weights(stored, loaded, warn)
        return stored.halt()
    try:
        halt = FixedExit(whole_number(choice))
    except ValueError as fault:
        raise ConfigError(f"`--exit`: {fault}") from fault
    check_halt(halt, model)
    return halt


def early_exit(model: Translator, exit: str | int) -> Translator:
    """Return `model` with early exits: `nmtgrid.early_exit`.

    `exit` is the number of a block, or a text as for `decode --exit`: "auto", "verified",
    "verified exit=2 drafts=5", or the name of settings stored with the model. The weights are
    shared, and `model` is not changed. Raises ConfigError if `exit` does not fit the model,
    TypeError for arguments of another type.
    """
    if not isinstance(model, Translator):
        raise TypeError(f"model must be what `nmtgrid.load` returns, but is {model!r}.")
    if not isinstance(exit, (str, int)) or isinstance(exit, bool):
        raise TypeError(
            f"exit must be a block number or a text such as 'verified', but is {exit!r}."
        )
    return model.with_halt(halt_of(str(exit), model.loaded, model.warn), str(exit))


def verified_of(choice: str) -> Verified:
    """Return the settings of `verified ...`. Raises ConfigError for invalid ones."""
    names = [field.name for field in dataclasses.fields(Verified)]
    values: dict[str, int] = {}
    faults = []
    for word in choice.split()[1:]:
        name, equals, text = word.partition("=")
        if name not in names or not equals:
            faults.append(f"`--exit verified` takes {', '.join(names)}, not `{shortened(word)}`.")
            continue
        if name in values:
            faults.append(f"`--exit verified` has `{name}` twice: give one.")
        try:
            values[name] = whole_number(text)
        except ValueError as fault:
            faults.append(f"`--exit verified {name}=`: {fault}")
    if faults:
        raise ConfigError(faults, "Write, for example, `--exit 'verified exit=2 drafts=5'`.")
    return Verified(**values)
