"""Preparation of a run: settings, checks, data, model, objective, and the model directory.

Called by the command `train`; recipes and benchmarks that set up runs themselves resolve settings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nmtgrid.base.config import (
    Changes,
    Registry,
    describe,
    flatten,
    from_json,
    override_all,
    set_option,
    to_json,
)
from nmtgrid.base.config_file import ConfigFile, dotted
from nmtgrid.base.errors import ConfigError, DataError, ModelError, StorageError, list_names
from nmtgrid.base.io.atomic import link_target, reason, remove_folder
from nmtgrid.base.io.lock import NAME as LOCK
from nmtgrid.base.io.lock import FolderLock
from nmtgrid.base.io.records import Record, read_json, read_record
from nmtgrid.data import directory
from nmtgrid.data.dataset import Dataset
from nmtgrid.data.dropout import ResegmentedPairs
from nmtgrid.layers.kernels.triton_support import has_triton
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from nmtgrid.models.card import FACTS, update_card
from nmtgrid.models.directory import (
    EXITS,
    POLICIES,
    LengthPercentiles,
    TrainingLengths,
    load_weights,
    read_run_settings,
    save_description,
    weights_file,
)
from nmtgrid.text.pipeline import FILE_PATTERNS, Pipeline
from nmtgrid.training.api import OBJECTIVE_FILE, Objective, Objectives, StatefulObjective
from nmtgrid.training.checkpoint import AVERAGE, BEST, FOLDER, LAST, Checkpoints
from nmtgrid.training.distributed import ALONE, Processes
from nmtgrid.training.settings import RunSettings, TrainingSettings, settings_type
from nmtgrid.training.trainer import Trainer, seed_process
from nmtgrid.training.update import has_fast_bf16, no_stages
from nmtgrid.training.validate import SplitValidator

METRICS, TENSORBOARD = "metrics.jsonl", "tensorboard"
_CLEARED = (FOLDER, BEST, LAST, AVERAGE, METRICS, OBJECTIVE_FILE, EXITS, POLICIES, FACTS)
"""Files that a run writes to its folder after `config.json`."""
_RESTORE = "Restore a copy, or begin a new run with another `--out`."
_OPTION = {"arch": "arch", "preset": "preset", "objective_name": "objective"}
# Settings on which saved moments, the position in the data and random states depend.
_FIXED = (
    "model.", "batches.", "objective.", "smoothing.", "training.seed", "training.optimiser",
    "training.best_by",
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
    file: ConfigFile | None = None
    """A configuration file; its arch, preset and objective are already in the fields above."""

    def without_effect(self, settings: RunSettings) -> list[str]:
        """Return notes on the requested settings that have no effect in `settings`."""
        named = {text.split("=")[0].strip() for text in self.changes}
        named |= {name for name, value in self.flags.items() if value is not None}
        if self.file is None:
            return settings.without_effect(named)
        # A file may list all settings: those with their default values were not requested.
        defaults = type(settings)(settings.arch)
        known = {name for name, _ in describe(type(settings))}
        named |= {
            name
            for name in known.intersection(dotted(self.file.settings))
            if operator.attrgetter(name)(settings) != operator.attrgetter(name)(defaults)
        }
        notes = settings.without_effect(named)
        return self.file.located(notes, _names_in_file(self.file, self))

    @property
    def objective_name(self) -> str | None:
        """The objective: the requested one, or that of the file's table."""
        table = {} if self.file is None else self.file.settings.get("objective", {})
        named = table.get("name") if isinstance(table, Mapping) else None
        return str(named) if self.objective is None and named is not None else self.objective


def resolve(request: Request, objectives: Objectives, resumed: Path | None = None) -> RunSettings:
    """Return the settings of a run: defaults, then preset, file, flags and `--set`.

    A run in the folder `resumed` keeps its settings, with the changes that resuming allows.

    Raises ConfigError with every fault at once, including changes to the model, the data order or
    the objective of a resumed run.
    """
    file = request.file
    try:
        if resumed is not None:
            settings = _resolve_resumed(resumed, request, objectives)
        else:
            settings = _resolve_new(request, objectives)
    except ConfigError as fault:
        if file is None:
            raise
        faults = [*file.faults, *file.located(fault.faults, _names_in_file(file, request))]
        raise ConfigError(faults, fault.advice) from fault
    if file is not None and file.faults:
        raise ConfigError(file.faults)
    return settings


def _names_in_file(file: ConfigFile, request: Request) -> dict[str, str]:
    """Return the keys in the file that take effect, by their names in messages."""
    typed = {text.split("=")[0].strip() for text in request.changes}
    typed |= {name for name, value in request.flags.items() if value is not None}
    names = {name: name for name in dotted(file.settings) if name not in typed}
    # Settings that have options are written above the tables.
    above = {f"training.{name}": name for name in file.settings if name in file.known}
    names |= {name: key for name, key in above.items() if name not in typed}
    # Messages name the chosen architecture or preset, not the option.
    for option, choice in (("arch", request.arch), ("preset", request.preset)):
        if choice is not None and f"--{option}" in file.options:
            names[choice] = option
    if request.objective_name is not None and "objective" in file.values:
        key = "objective" if "--objective" in file.options else "objective.name"
        names.setdefault(request.objective_name, key)
    return names


def _resolve_new(request: Request, objectives: Objectives) -> RunSettings:
    faults: list[str] = []
    arch = "pervasive" if request.arch is None else request.arch
    objective = request.objective_name or "likelihood"
    kind = _kind(arch, objective, objectives, faults)
    preset: Mapping[str, Any] = {}
    has_faulty_arch = request.file is not None and "arch" in request.file.faulty_fields
    if request.preset is not None and arch in zoo.architectures() and not has_faulty_arch:
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


def _resolve_resumed(folder: Path, request: Request, objectives: Objectives) -> RunSettings:
    saved = _read_run(folder).settings
    faults: list[str] = []
    kind = _kind(str(saved.get("arch")), str(saved.get("objective_name")), objectives, faults)
    if kind is None:
        raise ConfigError(faults)
    before = from_json(kind, saved)
    names = {
        "arch": (request.arch, before.arch),
        "preset": (request.preset, before.preset),
        "objective": (request.objective_name, before.objective_name),
    }
    faults = [
        f"`--{option} {name}`: the run in {folder} was started with {saved_name or 'none'}."
        for option, (name, saved_name) in names.items()
        if name is not None and name != saved_name
    ]
    if faults:
        raise ConfigError(faults, "Leave this out, or start a new run with another `--out`.")
    settings = _change(before, {}, request)
    # `training.*` may change when resuming, except what saved moments and draws depend on.
    fixed = [
        name
        for name, _ in describe(kind)
        if name.startswith(_FIXED)
        and operator.attrgetter(name)(before) != operator.attrgetter(name)(settings)
    ]
    if fixed:
        changed = ", ".join(f"`{name}`" for name in fixed)
        raise ConfigError(
            "A resumed run keeps its model, batches, objective, smoothing, optimiser, seed and "
            f"`training.best_by`, but {changed} would change.",
            "Leave this out, or start a new run with `--init` and another `--out`.",
        )
    return settings


class _Run(Record):
    """The fields of `config.json` that `--resume` reads."""

    settings: dict[str, Any]
    data: str | None = None


def data_of_run(folder: Path) -> Path:
    """Return the dataset of the run in `folder`. Raises ModelError if it does not exist."""
    data = _read_run(folder).data
    if data is None:
        raise ModelError(
            f"The run in {folder} does not record where its data are.",
            f"Give the dataset directory: `nmtgrid train DATA --out {folder} --resume`.",
        )
    if not Path(data).is_dir():
        raise ModelError(
            f"The data of the run in {folder} were in {data}, which does not exist.",
            f"Give their new folder: `nmtgrid train DATA --out {folder} --resume`.",
        )
    return Path(data)


def _read_run(folder: Path) -> _Run:
    """Return the description of the run in a folder. Raises ModelError if there is no run."""
    path = folder / "config.json"
    if not path.is_file():
        advice = "Leave out `--resume` to start one."
        if any(folder.glob("seed-*/config.json")):
            advice = "Its runs are of several seeds: give `--seeds` too."
        raise ModelError(f"There is no run to resume in {folder}: it has no `config.json`.", advice)
    try:
        run = read_record(path, _Run)
    except StorageError as fault:
        raise ModelError(fault.problem, fault.advice or _RESTORE) from fault
    if "arch" not in run.settings:
        raise ModelError(
            f"The model in {folder} has no training settings, for example because it was "
            "imported: there is no run to resume.",
            f"Begin one with its weights: `--init {folder}` and another `--out`.",
        )
    return run


def _kind(
    arch: str, objective: str, objectives: Objectives, faults: list[str]
) -> type[RunSettings] | None:
    """Return the type of the settings for these names, or None after adding to `faults`."""
    known = zoo.architectures()
    registries: tuple[tuple[Registry[Any], str], ...] = ((known, arch), (objectives, objective))
    for registry, name in registries:
        try:
            registry.get(name)
        except ConfigError as fault:
            faults.append(str(fault))
    if faults:
        return None
    return settings_type(known.get(arch).config, objectives.get(objective).settings)


def _change(settings: RunSettings, preset: Mapping[str, Any], request: Request) -> RunSettings:
    """Return `settings` with preset, file, flags and `--set`, all faults in one error."""
    names = [text.split("=")[0].strip() for text in request.changes]
    own = {f"objective.{field.name}" for field in dataclasses.fields(settings.objective)}
    # Presets are written for this toolkit's objectives; user-defined ones may differ.
    unknown = [name for name in preset if name.startswith("objective.") and name not in own]
    faults = [
        f"The preset `{request.preset}` sets {list_names(unknown)}, which the objective "
        f"`{settings.objective_name}` does not have: let its settings inherit from "
        "`nmtgrid.training.settings.SmoothedSettings`, or leave out `--preset`."
    ] * bool(unknown)
    preset = {name: value for name, value in preset.items() if name not in unknown}
    faults += [
        f"`--set {name}`: use the option `--{_OPTION[name]}`." for name in names if name in _OPTION
    ]
    flags = {name: value for name, value in request.flags.items() if value is not None}
    faults += [
        f"`--set {name}` and `{_option(name)}` set the same value: give only one."
        for name in names
        if name in flags
    ]
    in_file = _settings_in_file(type(settings), request, faults)
    file = request.file
    if file and preset and "--preset" not in file.options and preset.keys() <= in_file.keys():
        faults.append(
            f"`--preset {request.preset}` would change nothing, because {file.path} overrides all "
            "of its settings: leave one of them out."
        )
    changes = [
        text for name, text in zip(names, request.changes, strict=True) if name not in _OPTION
    ]
    layers: list[tuple[Callable[[str], str], Changes]] = [
        (lambda name: f"preset {request.preset}: {name}", preset),
        # Values that the command line replaces are not checked.
        (str, {name: value for name, value in in_file.items() if name not in {*names, *flags}}),
        (_option, flags),
        (set_option, changes),
    ]
    try:
        changed = override_all(settings, layers)
    except ConfigError as fault:
        faults += [_as_typed(text, flags) for text in fault.faults]
    if faults:
        raise ConfigError(faults)
    return changed


def _option(name: str) -> str:
    """Return the option of `train` that gives a setting, such as `--max-minutes`."""
    return f"--{name.partition('.')[2].replace('_', '-')}"


def _as_typed(fault: str, flags: Mapping[str, Any]) -> str:
    """Return a fault, with the setting that it begins with, if in `flags`, called by option."""
    name = fault.split("`")[1] if fault.startswith("`") else ""
    return fault.replace(name, _option(name), 1) if name in flags else fault


def _settings_in_file(
    kind: type[RunSettings], request: Request, faults: list[str]
) -> dict[str, Any]:
    """Return the settings that the file gives, by dotted name."""
    if request.file is None:
        return {}
    tables, own = dict(request.file.settings), request.file.values.get("arch", request.arch)
    if "model" in tables and request.arch != own:
        del tables["model"]
        faults.append(
            f"`--arch {request.arch}`: {request.file.path} has a model of the architecture "
            f"`{own}`. Leave out `--arch`, or give another file."
        )
    for name in tables.keys() & _OPTION.keys():
        del tables[name]
        faults.append(f"`{name}`: there is no such setting. Did you mean `{_OPTION[name]}`?")
    # Settings that have options are written above the tables.
    above = {
        f"training.{name}": tables.pop(name)
        for name in list(tables)
        if name in request.file.known and not isinstance(tables[name], Mapping)
    }
    objective = tables.get("objective")
    if isinstance(objective, Mapping):
        tables["objective"] = {key: value for key, value in objective.items() if key != "name"}
    settings = flatten(kind, tables, faults, request.file.known)
    faults += [
        f"`{name.partition('.')[2]}` and `{name}` set the same value: give only one."
        for name in above
        if name in settings
    ]
    return settings | above


def prepare(
    data: Path,
    settings: RunSettings,
    folder: Path,
    device: torch.device,
    objectives: Objectives,
    *,
    resume: bool = False,
    overwrite: bool = False,
    init: Path | None = None,
    processes: Processes = ALONE,
) -> Trainer:
    """Return a trainer with its model built (or resumed) and its folder begun.

    With several processes the first one locks, checks, clears and begins the folder. Raises
    StorageError if another process trains in it.
    """
    init = None if resume else init
    with contextlib.ExitStack() as stack:
        lock = None
        if processes.is_first:
            lock = _lock(folder, stack, resume=resume, overwrite=overwrite)
        dataset, training = Dataset.open(data), settings.training
        train = dataset.split("train")
        valid = dataset.split("valid") if "valid" in dataset.names else None
        check_validation(training, dataset)
        resegmented = resegment(settings, dataset)
        torch.manual_seed(training.seed)  # the weights must use the first random numbers
        model = build_model(settings, dataset)
        if init is not None:
            _load_init(model, init, dataset)
        # Like all other checks, before the folder is changed.
        run_folder = folder if resume else None
        objective = make_objective(settings, dataset, device, objectives, run_folder)
        objective.check(model)
        bf16 = training.precision == "bf16"
        bf16 |= training.precision == "auto" and has_fast_bf16(device)
        validator = None
        if valid is not None and len(valid):
            validator = SplitValidator(
                dataset, valid, objective, settings.batches, device, bf16=bf16,
                with_quality=training.validate_bleu, sentences=training.validate_sentences,
                processes=processes,
            )  # fmt: skip
        if training.compile:
            for part in model.compilable():
                # Compiled at its first use, once for all shapes.
                part.compile(dynamic=True)
        trainer = Trainer(
            model, objective, train, settings, folder, device,
            bf16=bf16, validator=validator, valid=valid, processes=processes,
            resegmented=resegmented,
        )  # fmt: skip
        _begin(trainer, dataset, resume=resume, overwrite=overwrite, init=init)
        # Without an error the run keeps the lock.
        stack.pop_all()
    trainer.lock = lock
    return trainer


def _lock(
    folder: Path, stack: contextlib.ExitStack, *, resume: bool, overwrite: bool
) -> FolderLock | None:
    """Check and lock the folder of a run until `stack` ends; return None if it is missing."""
    if resume and not folder.is_dir():
        return None
    # With a lock file, its error comes first; the folder is checked again under the lock.
    if not (folder / LOCK).exists():
        check_folder(folder, overwrite=overwrite or resume)
    lock = FolderLock(folder, "nmtgrid train")
    stack.callback(lock.release)
    # Again: another run may have written here since.
    if not resume:
        check_folder(folder, overwrite=overwrite)
    return lock


def _begin(
    trainer: Trainer, dataset: Dataset, *, resume: bool, overwrite: bool, init: Path | None
) -> None:
    """Begin the trainer's folder, or resume from it."""
    processes, folder = trainer.processes, trainer.checkpoints.model_folder
    if resume:
        _resume(trainer, folder, dataset.pipeline)
    elif processes.count > 1:
        # All processes have sampled the same weights; their dropout differs from here on.
        seed_process(trainer.settings.training.seed, processes)
    if processes.is_first:
        _write_description(folder, trainer, dataset, clear=overwrite and not resume, init=init)
    # The others read the folder: they continue once it is complete.
    processes.sum(torch.zeros(1))


def check_validation(training: TrainingSettings, dataset: Dataset) -> None:
    """Raise ConfigError for settings that need other validation pairs than the dataset has."""
    needs = training.counting_validations
    if training.best_by != "loss":
        needs.append("`training.best_by`")
    if needs and "valid" not in dataset.names:
        raise ConfigError(
            f"{dataset.path} has no split `valid`, but {needs[0]} needs validations.",
            "Leave this setting out, or make the dataset with `--valid`.",
        )
    if training.best_by == "cider" and dataset.pictures is None:
        raise ConfigError(
            f"`training.best_by=cider` is for captions of images, but {dataset.path} has text.",
            "Set `training.best_by=bleu`.",
        )


def _resume(trainer: Trainer, folder: Path, pipeline: Pipeline) -> None:
    """Resume `trainer` from the saved state in `folder`."""
    _check_same_pipeline(folder, pipeline)
    # Read before the settings of this run replace them.
    saved = from_json(type(trainer.settings), _read_run(folder).settings)
    if not trainer.resume():
        raise ModelError(
            f"{folder} contains no saved state to resume from.",
            f"Begin a new run with its weights, `--init {folder}` and another `--out`, or move "
            "this folder away and begin its run again.",
        )
    trainer.compare_schedules(saved.training)


def _write_description(
    folder: Path, trainer: Trainer, dataset: Dataset, *, clear: bool, init: Path | None
) -> None:
    """Write the model's description, after removing the files of an older run (`clear`)."""
    if clear:
        clear_folder(folder)
    is_new = not _entries(folder)
    try:
        # Pictures cannot be split at sentence ends.
        source, target = map(LengthPercentiles.of, trainer.plan.lengths())
        lengths = TrainingLengths(source, target) if dataset.pictures is None else None
        settings = to_json(trainer.settings)
        save_description(folder, trainer.model, dataset.pipeline, settings, lengths, dataset.path)
        splits = dataset.manifest["splits"].items()
        name = dataset.path.resolve().name
        update_card(
            folder,
            origin=f"A model trained with nmtgrid on the dataset `{name}`.",
            init=init,
            pairs={name: split["pairs_kept"] for name, split in splits},
        )
        objective = trainer.trained.objective
        if isinstance(objective, StatefulObjective):
            objective.save(folder)
    except BaseException as fault:
        # Also on a signal: a folder with half a description would block the next run.
        if is_new:
            remove_folder(link_target(folder))
        if not isinstance(fault, OSError):
            raise
        raise ModelError(
            f"The folder {folder} cannot be created: {reason(fault)}.", "Choose another `--out`."
        ) from fault


def make_objective(
    settings: RunSettings,
    dataset: Dataset,
    device: torch.device,
    objectives: Objectives,
    run_folder: Path | None = None,
) -> Objective:
    """Return the objective of `settings`, with loss smoothing if set.

    `run_folder` as in `Wrapper`.
    """
    check_r_drop(settings, objectives)
    objective = objectives.make(settings.objective_name, settings.objective)
    check_smoothing(settings, objectives, run_folder)
    return objectives.wrap(objective, settings, dataset, device, run_folder)


def check_smoothing(
    settings: RunSettings, objectives: Objectives, run_folder: Path | None = None
) -> None:
    """Raise ConfigError if sampled sentences make no sense for the objective.

    Also raises it if the vectors are missing and the resumed run in `run_folder` has none.
    """
    kind, sequence = objectives.get(settings.objective_name), settings.smoothing.sequence
    if sequence.alpha and not sequence.lazy and not kind.takes_samples:
        raise ConfigError(
            f"`{kind.name}` learns decisions from the probability of the reference, for which it "
            "would mistake sampled sentences.",
            "Set `smoothing.sequence.lazy=true`, or use token-level smoothing only.",
        )
    vectors = settings.smoothing.token.vectors
    is_saved = run_folder is not None and (run_folder / OBJECTIVE_FILE).exists()
    is_needed = settings.smoothing.needs_spread and vectors != "own" and not is_saved
    if is_needed and not Path(vectors).exists():
        raise ConfigError(
            f"`smoothing.token.vectors`: {vectors} is neither a file nor a model directory.",
            "Give one of the two, or `own` to learn vectors from the training targets.",
        )


def check_parts(settings: RunSettings, device: torch.device) -> None:
    """Raise ConfigError if the model or machine lacks what compiling or watching requires.

    Called before data are read: the model is built without weights, to know its parts.
    """
    training = settings.training
    if not (training.watch_gradients or training.compile):
        return
    with torch.device("meta"):
        model = zoo.from_config(settings.arch, settings.model, 8, 8)
    if training.watch_gradients and not model.stages():
        raise no_stages(settings.arch)
    if not training.compile:
        return
    advice = "Set `training.compile=false`"
    if not model.compilable():
        raise ConfigError(
            f"`training.compile` works with Transformers only: the architecture `{settings.arch}` "
            "has its own kernels.",
            f"{advice}, or train a Transformer.",
        )
    if training.shard:
        raise ConfigError(
            "`training.compile` and `training.shard` exclude each other.",
            f"{advice} or `training.shard=false`.",
        )
    if device.type == "cuda" and not has_triton():
        raise ConfigError("`training.compile` needs Triton.", f"{advice}.")
    if device.type == "cpu" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise ConfigError(
            "`training.compile` needs a C++ compiler (c++, g++ or clang++) on this machine.",
            f"{advice}, or install one.",
        )


def check_r_drop(settings: RunSettings, objectives: Objectives) -> None:
    """Raise ConfigError if two predictions of a pair cannot differ or be compared."""
    if not settings.training.r_drop:
        return
    kind = objectives.get(settings.objective_name)
    if not kind.takes_two_passes:
        raise ConfigError(
            f"`{kind.name}` learns decisions from one pass over a pair, but R-Drop "
            "(`training.r_drop`) makes two with different decisions.",
            "Set `training.r_drop=0`; or train with R-Drop and another objective first, then "
            "initialise from that model with `--init`.",
        )
    rates = {
        field.name: getattr(settings.model, field.name)
        for field in dataclasses.fields(settings.model)
        # `transparent_dropout` does nothing unless `transparent` is on.
        if field.name.endswith("dropout")
        and getattr(settings.model, field.name.removesuffix("_dropout"), True) is not False
    }
    if not any(rates.values()):
        names = ", ".join(f"`model.{name}`" for name in rates)
        raise ConfigError(
            "R-Drop (`training.r_drop`) compares predictions with different dropout masks, but the "
            "model has no dropout.",
            f"Set {names} above 0, or `training.r_drop=0`.",
        )


def build_model(settings: RunSettings, dataset: Dataset) -> TranslationModel:
    """Return the model of `settings` for the vocabularies of `dataset`."""
    check_tie(settings, dataset)
    pipeline = dataset.pipeline
    sizes = len(pipeline.source_vocabulary), len(pipeline.target_vocabulary)
    return zoo.from_config(settings.arch, settings.model, *sizes)


def resegment(settings: RunSettings, dataset: Dataset) -> ResegmentedPairs | None:
    """Return the training pairs under BPE-dropout, None without it.

    Raises ConfigError if the dropout of `settings` has nothing to drop in the dataset.
    """
    batches, pipeline = settings.batches, dataset.pipeline
    if dataset.pictures is not None and (any(batches.bpe_dropout) or batches.source_word_dropout):
        raise ConfigError(
            f"The sources of {dataset.path} are pictures: `batches.source_bpe_dropout`, "
            "`target_bpe_dropout` and `source_word_dropout` apply to text only.",
            "Leave them out; `batches.target_word_dropout` works with captions too.",
        )
    if not any(batches.bpe_dropout):
        return None
    if pipeline.facts.subwords != "bpe":
        is_words = pipeline.facts.subwords == "words"
        units = "words" if is_words else "pieces of SentencePiece"
        raise ConfigError(
            "`batches.source_bpe_dropout` and `target_bpe_dropout` skip merges of BPE, but the "
            f"units of {dataset.path} are {units}.",
            f"Run `nmtgrid bpe learn {dataset.path} --merges N`, or set both to 0; "
            f"`batches.source_word_dropout` works with {units} too.",
        )
    return ResegmentedPairs(
        dataset.split("train"), pipeline, batches.bpe_dropout,
        seed=settings.training.seed, max_length=batches.max_length,
    )  # fmt: skip


def check_tie(settings: RunSettings, dataset: Dataset) -> None:
    """Raise ConfigError if both languages share one matrix but not one vocabulary.

    Also raises it if the architecture cannot read the dataset's sources (text or pictures).
    """
    arch, architectures = settings.arch, zoo.architectures()
    of_pictures = dataset.pictures is not None
    if architectures.get(arch).of_pictures != of_pictures:
        if of_pictures:
            captioners = [name for name in architectures if name not in zoo.text_architectures()]
            raise ConfigError(
                f"The sources of {dataset.path} are pictures, but `{arch}` translates text.",
                f"Train an architecture for image captioning: `--arch {captioners[-1]}`.",
            )
        raise ConfigError(
            f"`{arch}` is for image captioning, but the sources of {dataset.path} are text.",
            "Train another architecture, or make a dataset with `nmtgrid preprocess --captions "
            "FILE --features FILE`.",
        )
    pipeline = dataset.pipeline
    is_joint = pipeline.source_vocabulary.types == pipeline.target_vocabulary.types
    if getattr(settings.model, "tie", None) == "all" and not is_joint:
        raise ConfigError(
            "`model.tie=all` shares one matrix between both languages, but "
            f"{dataset.path} has a vocabulary for each.",
            f"Run `nmtgrid bpe learn {dataset.path} --joint-vocabulary`, or set "
            "`model.tie=target`.",
        )


def check_folder(folder: Path, *, overwrite: bool) -> None:
    """Raise ModelError if `folder` is taken, or must not be replaced."""
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder} is a file, not a folder.", "Choose another `--out`.")
    if not _entries(folder):
        return
    if not overwrite:
        raise ModelError(
            f"The folder {folder} exists already and is not empty.",
            "Continue its run with `--resume`, replace it with `--overwrite`, or choose "
            "another `--out`.",
        )
    if (folder / directory.NAME).exists() or _is_foreign(folder / "config.json"):
        raise ModelError(
            f"The folder {folder} contains other files than those of a model, which could be "
            "damaged.",
            "Choose another `--out`.",
        )


def is_begun(folder: Path) -> bool:
    """Return whether a run in `folder` has saved a state or weights, which could be lost."""
    weights = any((folder / name).exists() for name in (BEST, LAST, AVERAGE))
    return weights or bool(Checkpoints(folder).existing())


def _entries(folder: Path) -> list[Path]:
    """Return the contents of a folder except for the lock; nothing if it does not exist."""
    return [path for path in folder.iterdir() if path.name != LOCK] if folder.is_dir() else []


def _is_foreign(config: Path) -> bool:
    """Return whether `config.json`, or files that go with one, are not those of our runs."""
    if not config.exists():
        # Files of ours without their `config.json` were not left by a run.
        return any(any(config.parent.glob(name)) for name in (*_CLEARED, *FILE_PATTERNS))
    try:
        values = read_json(config)
    except StorageError:
        return False
    return not isinstance(values, dict) or "arch" not in values


def clear_folder(folder: Path) -> None:
    """Remove the files of a run in `folder`, and the targets of links among them.

    Raises StorageError for a file that cannot be removed, which a new run would take for its own.
    """
    try:
        Checkpoints(folder).clear()
        for name in _CLEARED[1:]:
            link_target(folder / name).unlink(missing_ok=True)
        if (folder / TENSORBOARD).exists():
            remove_folder(link_target(folder / TENSORBOARD))
    except OSError as fault:
        raise StorageError(
            f"{fault.filename or folder} could not be removed: {reason(fault)}.",
            "Remove it yourself, or choose another `--out`.",
        ) from fault


def check_init(init: Path) -> None:
    """Raise ModelError unless there is a folder `init`."""
    if not init.is_dir():
        raise ModelError(
            f"`--init`: there is no model directory {init}.", "Give a folder written by `train`."
        )


def _load_init(model: TranslationModel, init: Path, dataset: Dataset) -> None:
    check_init(init)
    try:
        # Rejects a folder of another kind, such as a dataset, which has vocabularies too.
        read_run_settings(init)
        if not _same_vocabularies(Pipeline.load(init), dataset.pipeline):
            raise DataError(
                f"`--init`: the vocabularies of the model in {init} differ from those of "
                f"{dataset.path}.",
                "Run `nmtgrid bpe learn` with that model's `--codes` (or `--model`), "
                "`--vocab-source` and `--vocab-target`.",
            )
        load_weights(model, weights_file(init), begin=True)
    except ModelError as fault:
        raise ModelError(f"`--init`: {fault.problem}", fault.advice) from fault


def _check_same_pipeline(folder: Path, pipeline: Pipeline) -> None:
    saved = Pipeline.load(folder)
    if not _same_vocabularies(saved, pipeline) or saved.facts != pipeline.facts:
        raise DataError(
            f"The run in {folder} was started on data with other vocabularies or another text "
            "pipeline.",
            "Resume it with its original dataset.",
        )


def _same_vocabularies(first: Pipeline, second: Pipeline) -> bool:
    sides = ("source_vocabulary", "target_vocabulary")
    return all(getattr(first, side).types == getattr(second, side).types for side in sides)
