"""From a request to the settings of a run: defaults, preset, options and `--set`.

Called by the command `train`, and by recipes and benchmarks that set up runs themselves.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.base.config import from_json, override, to_json
from nmtgrid.base.errors import ConfigError, ModelError, StorageError, nearest
from nmtgrid.base.io.atomic import read_json
from nmtgrid.models import zoo
from nmtgrid.models.directory import check_unaltered
from nmtgrid.training.api import Objectives
from nmtgrid.training.settings import RunSettings, settings_type

_RESTORE = "Restore a copy, or begin a new run with another `--out`."
_OPTION = {"arch": "arch", "preset": "preset", "objective_name": "objective"}
# What saved moments, the position in the data and random states depend on.
_FIXED = (
    "model.", "batches.", "objective.", "smoothing.", "training.seed", "training.optimiser",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Request:
    """A request for a run: names (None: the default, or what a resumed run has), the texts of
    `--set`, and options by dotted name (None: not given).
    """

    arch: str | None = None
    preset: str | None = None
    objective: str | None = None
    changes: Sequence[str] = ()
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def resolve(request: Request, objectives: Objectives) -> RunSettings:
    """Return the settings: defaults, then the preset, `--set`, and flags.

    Raises ConfigError with every fault at once.
    """
    faults: list[str] = []
    arch = "pervasive" if request.arch is None else request.arch
    objective = "likelihood" if request.objective is None else request.objective
    kind = _kind(arch, objective, objectives, faults)
    preset: Mapping[str, Any] = {}
    if request.preset is not None and arch in zoo.architectures():
        try:
            preset = zoo.preset(arch, request.preset).settings
        except ConfigError as fault:
            faults.append(str(fault))
    if kind is None:
        raise ConfigError(faults)
    try:
        settings = _change(kind(arch, objective, request.preset), preset, request)
    except ConfigError as fault:
        raise ConfigError([*faults, *fault.faults]) from fault
    if faults:
        raise ConfigError(faults)
    return settings


def resolve_resumed(folder: Path, request: Request, objectives: Objectives) -> RunSettings:
    """Return the settings of the run in `folder`, with the changes that a run allows on its way.

    Raises ConfigError for changes to the model, the data order or the objective.
    """
    saved = read_settings(folder)
    faults: list[str] = []
    kind = _kind(str(saved.get("arch")), str(saved.get("objective_name")), objectives, faults)
    if kind is None:
        raise ConfigError(faults)
    before = from_json(kind, saved)
    names = {
        "arch": (request.arch, before.arch),
        "preset": (request.preset, before.preset),
        "objective": (request.objective, before.objective_name),
    }
    faults = [
        f"`--{option} {name}`: the run in {folder} was begun with {saved_name or 'none'}."
        for option, (name, saved_name) in names.items()
        if name is not None and name != saved_name
    ]
    if faults:
        raise ConfigError(faults, "Leave that out, or begin a new run with another `--out`.")
    settings = _change(before, {}, request)
    # `training.*` may change on the way, but for what the saved moments and draws depend on.
    old, new = _flat(to_json(before)), _flat(to_json(settings))
    fixed = [name for name in new if name.startswith(_FIXED) and new[name] != old.get(name)]
    if fixed:
        changed = ", ".join(f"`{name}`" for name in fixed)
        raise ConfigError(
            "A resumed run keeps its model, batches, objective, smoothing, optimiser and seed, but "
            f"{changed} would change.",
            "Leave that out, or start a new run with `--init` and another `--out`.",
        )
    return settings


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings kept in a model directory. Raises ModelError where there are none."""
    # The settings alone: a request is checked before any weights are read.
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(
            f"There is no run to resume in {folder}: it has no `config.json`.",
            "Leave `--resume` out to begin one.",
        )
    try:
        config = read_json(path)
    except StorageError as fault:
        raise ModelError(fault.problem, _RESTORE) from fault
    settings = config.get("settings") if isinstance(config, dict) else None
    if not isinstance(settings, dict):
        raise ModelError(f"{path} holds no settings of a training run.", _RESTORE)
    check_unaltered(path, config)
    return settings


def _kind(
    arch: str, objective: str, objectives: Objectives, faults: list[str]
) -> type[RunSettings] | None:
    """Return the settings' type for these names, or None with the faults entered."""
    known = zoo.architectures()
    if arch not in known:
        faults.append(f"There is no architecture `{arch}`. {nearest(arch, known)}")
    if objective not in objectives:
        faults.append(f"There is no objective `{objective}`. {nearest(objective, objectives)}")
    if faults:
        return None
    return settings_type(known.get(arch).config, objectives.get(objective).settings)


def _change(settings: RunSettings, preset: Mapping[str, Any], request: Request) -> RunSettings:
    """Return `settings` with the preset, the flags and `--set`, all faults in one error."""
    names = [text.split("=")[0].strip() for text in request.changes]
    faults = [
        f"`--set {name}`: use the option `--{_OPTION[name]}`." for name in names if name in _OPTION
    ]
    flags = {name: value for name, value in request.flags.items() if value is not None}
    faults += [
        f"`--set {name}` and `--{name.partition('.')[2].replace('_', '-')}` say the same: give one."
        for name in names
        if name in flags
    ]
    # Flags come after the preset, `--set` after both: the last one wins.
    texts = [f"{name}={json.dumps(value)}" for name, value in {**preset, **flags}.items()]
    texts += [
        text for name, text in zip(names, request.changes, strict=True) if name not in _OPTION
    ]
    good = []
    for text in texts:
        # Names and types first, one by one, so that a wrong one does not hide wrong values.
        try:
            override(settings, [text])
        except ConfigError as fault:
            wrong = [problem for problem in fault.faults if problem.startswith("`--set")]
            faults += wrong
            if wrong:
                continue
        good.append(text)
    try:
        changed = override(settings, good)
    except ConfigError as fault:
        faults += fault.faults
    if faults:
        raise ConfigError(faults)
    return changed


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= (
            _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        )
    return flat
