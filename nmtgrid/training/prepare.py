"""From what was asked for to a trainer that is ready: settings, model, data, folder."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nmtgrid.base.config import from_json, override, to_json
from nmtgrid.base.errors import ConfigError, DataError, ModelError, StorageError, nearest
from nmtgrid.base.files import read_json
from nmtgrid.base.seeding import seed_everything
from nmtgrid.data.dataset import Dataset
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from nmtgrid.models.directory import load_weights, save_description, weights_file
from nmtgrid.training import likelihood  # noqa: F401  (registers its objective)
from nmtgrid.training.api import objectives
from nmtgrid.training.checkpoint import AVERAGE, BEST, FOLDER, LAST
from nmtgrid.training.settings import RunSettings, settings_type
from nmtgrid.training.trainer import StopRequest, Trainer
from nmtgrid.training.update import has_native_bf16
from nmtgrid.training.validate import SplitValidator

METRICS = "metrics.jsonl"
_OPTION = {"arch": "arch", "preset": "preset", "objective_name": "objective"}
_FIXED = ("model.", "batches.", "objective.", "training.seed", "training.optimiser")


@dataclasses.dataclass(frozen=True)
class Request:
    """What a run is asked for: names (None: the default, or what a resumed run has), the texts of
    `--set`, and options by dotted name (None: not given).
    """

    arch: str | None = None
    preset: str | None = None
    objective: str | None = None
    changes: Sequence[str] = ()
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def resolve(request: Request) -> RunSettings:
    """Return the settings: defaults, then the preset, `--set`, and flags.

    Raises ConfigError with every fault at once.
    """
    faults: list[str] = []
    arch, objective = request.arch or "pervasive", request.objective or "likelihood"
    kind = _kind(arch, objective, faults)
    preset: Mapping[str, Any] = {}
    if request.preset is not None and arch in zoo.architectures():
        try:
            preset = zoo.preset(arch, request.preset).settings
        except ConfigError as fault:
            faults.append(str(fault))
    if kind is None:
        raise ConfigError(faults)
    settings = kind(arch, objective, request.preset)
    try:
        settings = _change(settings, preset, request)
    except ConfigError as fault:
        faults += fault.faults
    if faults:
        raise ConfigError(faults)
    return settings


def resolve_resumed(folder: Path, request: Request) -> RunSettings:
    """Return the settings of the run in `folder`, with the changes that a run allows on its way.

    Raises ConfigError for changes to the model, the data order or the objective.
    """
    saved = read_settings(folder)
    faults: list[str] = []
    kind = _kind(saved.get("arch", ""), saved.get("objective_name", ""), faults)
    if kind is None:
        raise ConfigError(faults)
    before = from_json(kind, saved)
    asked = {"arch": request.arch, "preset": request.preset, "objective": request.objective}
    held = {"arch": before.arch, "preset": before.preset, "objective": before.objective_name}
    faults = [
        f"`--{name} {value}`: the run in {folder} was begun with {held[name] or 'none'}."
        for name, value in asked.items()
        if value is not None and value != held[name]
    ]
    if faults:
        raise ConfigError(faults, "Leave that out, or begin a new run with another `--out`.")
    settings = _change(before, {}, request)
    old, new = _flat(to_json(before)), _flat(to_json(settings))
    fixed = [name for name in new if name.startswith(_FIXED) and new[name] != old.get(name)]
    if fixed:
        names = ", ".join(f"`{name}`" for name in fixed)
        raise ConfigError(
            f"A resumed run keeps its model, batches, objective, optimiser and seed, but {names} "
            "would change.", "Leave that out, or start a new run with `--init` and another `--out`."
        )  # fmt: skip
    return settings


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings kept in a model directory. Raises ModelError where there are none."""
    try:
        config = read_json(folder / "config.json")
    except StorageError as fault:
        raise ModelError(
            f"There is no run to resume in {folder}: {fault.problem}",
            "Leave `--resume` out to begin one.",
        ) from fault
    held = config.get("settings") if isinstance(config, dict) else None
    if not isinstance(held, dict):
        raise ModelError(f"{folder / 'config.json'} holds no settings of a training run.")
    return held


def prepare(
    data: Path,
    settings: RunSettings,
    folder: Path,
    device: torch.device,
    *,
    resume: bool = False,
    overwrite: bool = False,
    init: Path | None = None,
    stop: StopRequest | None = None,
) -> Trainer:
    """Return a trainer, its model built (or resumed) and its folder begun."""
    if not resume:
        check_folder(folder, overwrite=overwrite)
    dataset = Dataset.open(data)
    train, valid = dataset.split("train"), find_valid(dataset)
    seed_everything(settings.training.seed)
    model = build_model(settings, dataset)
    if init is not None and not resume:
        _begin_from(model, init)
    objective = objectives.get(settings.objective_name).make(settings.objective)
    bf16 = uses_bf16(settings.training.precision, device)
    training = settings.training
    validator = valid and SplitValidator(
        dataset, valid, objective, settings.batches, device, bf16=bf16,
        with_bleu=training.validate_bleu, sentences=training.validate_sentences,
    )  # fmt: skip
    trainer = Trainer(
        model, objective, train, settings, folder, device,
        bf16=bf16, validator=validator or None, stop=stop,
    )  # fmt: skip
    if resume:
        _check_same_pipeline(folder, dataset)
        if not trainer.resume():
            raise ModelError(
                f"{folder} holds no saved state to resume from.", "Begin again with `--overwrite`."
            )
    elif overwrite:
        clear_folder(folder)
    save_description(folder, model, dataset.pipeline, to_json(settings))
    return trainer


def build_model(settings: RunSettings, dataset: Dataset) -> TranslationModel:
    """Return the model of `settings` for the vocabularies of `dataset`."""
    pipeline = dataset.pipeline
    sizes = len(pipeline.source_vocabulary), len(pipeline.target_vocabulary)
    return zoo.from_config(settings.arch, settings.model, *sizes)


def find_valid(dataset: Dataset) -> Any:
    """Return the validation split, or None."""
    return dataset.split("valid") if "valid" in dataset.names else None


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Return whether `precision` means bfloat16 on `device`."""
    return precision == "bf16" or (precision == "auto" and has_native_bf16(device))


def check_folder(folder: Path, *, overwrite: bool) -> None:
    """Raise ModelError if `folder` is taken."""
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder} is a file, not a folder.", "Choose another `--out`.")
    if not overwrite and folder.is_dir() and any(folder.iterdir()):
        raise ModelError(
            f"The folder {folder} exists already and is not empty.",
            "Go on with the run in it by `--resume`, replace it by `--overwrite`, or choose "
            "another `--out`.",
        )


def clear_folder(folder: Path) -> None:
    """Remove what a run left in `folder`."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    for name in (BEST, LAST, AVERAGE, METRICS):
        (folder / name).unlink(missing_ok=True)


def _kind(arch: str, objective: str, faults: list[str]) -> type[RunSettings] | None:
    """Return the settings' type for these names, or None with the faults entered."""
    known = zoo.architectures()
    if arch not in known:
        faults.append(f"There is no architecture `{arch}`. {nearest(arch, known)}")
    if objective not in objectives:
        faults.append(f"There is no objective `{objective}`. {nearest(objective, objectives)}")
    if faults:
        return None
    return settings_type(known.get(arch).config, objectives.get(objective).settings)


def _change(
    settings: RunSettings, preset: Mapping[str, Any], request: Request
) -> RunSettings:
    """Return `settings` with the preset, the flags and `--set`, all faults told at once."""
    names = [text.split("=")[0].strip() for text in request.changes]
    faults = [
        f"`--set {name}`: use the option `--{_OPTION[name]}`." for name in names if name in _OPTION
    ]
    flags = {name: value for name, value in request.flags.items() if value is not None}
    given = {**preset, **flags}
    texts = [f"{name}={json.dumps(value)}" for name, value in given.items()]
    texts += [
        text for name, text in zip(names, request.changes, strict=True) if name not in _OPTION
    ]
    good = []
    for text in texts:
        # Names and types first, one by one, so that a wrong one does not hide wrong values.
        try:
            override(settings, [text])
        except ConfigError as fault:
            wrong = [told for told in fault.faults if told.startswith("`--set")]
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


def _begin_from(model: TranslationModel, init: Path) -> None:
    try:
        load_weights(model, weights_file(init))
    except ModelError as fault:
        raise ModelError(f"`--init`: {fault.problem}", fault.advice) from fault


def _check_same_pipeline(folder: Path, dataset: Dataset) -> None:
    from nmtgrid.text.pipeline import Pipeline

    held, given = Pipeline.load(folder), dataset.pipeline
    same = all(
        list(getattr(held, side).types) == list(getattr(given, side).types)
        for side in ("source_vocabulary", "target_vocabulary")
    )
    if not same:
        raise DataError(
            f"The run in {folder} was begun on data with other vocabularies.",
            "Resume it with the dataset that it was begun with.",
        )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found
