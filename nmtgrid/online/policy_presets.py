"""Named settings of reading policies in a model directory, `policies.json`.

    {"format": 1, "settings": {"confidence-loss2": {"policy": "confidence threshold=0.6 floor=2",
     "split": "valid", "risk": "bleu", "allow_loss": 2.0, "confidence": 0.95, "loss": 0.8,
     "conditions": {"beam": 1, "finish_reading": false, "source": "words", "exit": null,
     "ensemble": false}, "weights": "best", "checksum": "whole:.."}}}

`policy` is what `--policy` takes. The guarantee on the loss holds only for the weights and the
conditions of the calibration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from nmtgrid.base.errors import ConfigError, merged
from nmtgrid.base.io.records import Percent, Positive, Probability
from nmtgrid.base.own_code import check_unique, imported_name
from nmtgrid.metrics.risk_control import Risk
from nmtgrid.models.directory import POLICIES, LoadedModel
from nmtgrid.models.named_settings import SettingsFile, check_name
from nmtgrid.online.objectives.wait_k import trained_k
from nmtgrid.online.settings import (
    ALL,
    KINDS,
    Setting,
    SourceText,
    own_policies,
    read_setting,
    unknown_policy,
)


@dataclasses.dataclass(frozen=True)
class Conditions:
    """The decoding conditions that a guarantee depends on, in addition to a policy's settings."""

    beam: Positive = 1
    finish_reading: bool = False
    source: SourceText = "words"
    exit: str | None = None
    ensemble: bool = False

    def differences(self, others: Conditions) -> list[str]:
        """Return the options in which these conditions differ from `others`, one phrase each."""
        return [
            f"`--{name.replace('_', '-')}` is {_shown(here)}, not {_shown(there)}"
            for name, here in vars(self).items()
            if here != (there := getattr(others, name))
        ]


def _shown(value: object) -> str:
    return "on" if value is True else str(value or "off")


@dataclasses.dataclass(frozen=True)
class PolicyPreset:
    """A named reading policy with its settings, and the guarantee on its loss."""

    name: str
    policy: str
    split: str
    risk: Risk
    allow_loss: Percent
    confidence: Probability
    loss: Percent
    conditions: Conditions = dataclasses.field(default_factory=Conditions)
    weights: str | None = None
    checksum: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for an invalid name, or a policy that is not exactly one setting."""
        check_policy_name(self.name)
        # A model directory contains neither code nor a path to code.
        if self.policy.partition(" ")[0] not in KINDS:
            raise ConfigError(
                f"`{self.policy}` is not a named policy.",
                f"There are {', '.join(KINDS)}.",
            )
        read_setting(self.policy)

    def check(
        self, loaded: LoadedModel, conditions: Conditions, warn: Callable[[str], None]
    ) -> None:
        """Warn if the guarantee does not hold under the given conditions.

        Raises ConfigError for other weights, see `SettingsFile.check_weights`.
        """
        POLICY_FILE.check_weights(self, loaded, warn)
        if differences := conditions.differences(self.conditions):
            warn(
                f"`{self.name}` in {loaded.folder / POLICIES} was calibrated under other "
                f"conditions: {', '.join(differences)}. The guarantee on its loss does not hold "
                "here."
            )


@dataclasses.dataclass(frozen=True)
class ChosenPolicy:
    """The setting of the policy that decides when to read, and the preset it comes from, if any."""

    setting: Setting
    preset: PolicyPreset | None = None

    def check(
        self, loaded: LoadedModel, conditions: Conditions, warn: Callable[[str], None]
    ) -> None:
        """Warn if the guarantee of a stored policy does not hold, as `PolicyPreset.check` does."""
        if self.preset is not None:
            self.preset.check(loaded, conditions, warn)


POLICY_FILE = SettingsFile(
    POLICIES,
    PolicyPreset,
    "reading policy",
    "settings",
    "nmtgrid online-eval --allow-loss",
)


def check_policy_name(name: str) -> None:
    """Raise ConfigError for a name that `--policy` could not distinguish from a policy's."""
    check_name(name, "A reading policy's settings", [ALL, *KINDS])


def expand(texts: Iterable[str], folders: Sequence[Path]) -> tuple[list[str], list[PolicyPreset]]:
    """Return the texts with stored names replaced by their policies, and the stored settings.

    Names are looked up in the model directory in `folders`, which must then be the only one. Raises
    ConfigError, which lists every unknown name, every stored name with further settings, and every
    name that two files define; StorageError for a damaged file.
    """
    texts = list(texts)
    check_unique(texts)
    expanded: list[str] = []
    used: list[PolicyPreset] = []
    errors: list[ConfigError] = []
    for text in texts:
        try:
            name, *changes = text.split() or [""]
            name = imported_name(name)
            if not name or name in KINDS or name in own_policies():
                expanded.append(" ".join([name, *changes]))
                continue
            used.append(_stored_policy(name, changes, folders))
            expanded.append(used[-1].policy)
        except ConfigError as error:
            errors.append(error)
    if errors:
        raise merged(errors)
    return expanded, used


def choose_policy(text: str | None, folder: Path) -> ChosenPolicy:
    """Return the policy that `text`, in the format of `--policy`, means for the model in `folder`.

    None is the k that the model was trained with. Raises ConfigError if there is no such k or the
    text gives several settings, and what `expand` raises.
    """
    if text is None:
        k = trained_k(folder)
        if k is None:
            raise ConfigError(
                "The model was not trained with one k: name a policy, such as 'wait-k k=3'."
            )
        return ChosenPolicy(Setting("wait-k", k))
    (text,), presets = expand([text], [folder])
    return ChosenPolicy(read_setting(text), *presets)


def _stored_policy(name: str, changes: Sequence[str], folders: Sequence[Path]) -> PolicyPreset:
    """Return the policy that is stored under `name`; raises as `expand` does."""
    stored = {key: each for folder in folders for key, each in POLICY_FILE.load(folder).items()}
    if name not in stored:
        raise unknown_policy(name, stored)
    faults = []
    if len(folders) > 1:
        faults.append(f"`{name}` is stored in one model's directory, but several models are given.")
    if changes:
        faults.append(
            f"`{name}` is the stored setting `{stored[name].policy}` and takes no further "
            "settings: to change them, write the policy in full."
        )
    if faults:
        raise ConfigError(faults)
    return stored[name]
