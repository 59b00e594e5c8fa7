"""From settings to a trainer: checks, data, model, objective, and the model directory.

Called by the command `train`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from nmtgrid.base.config import to_json
from nmtgrid.base.errors import ConfigError, DataError, ModelError, StorageError
from nmtgrid.base.io.atomic import read_json, reason
from nmtgrid.base.seeding import seed_everything
from nmtgrid.data import directory
from nmtgrid.data.dataset import Dataset, Split
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from nmtgrid.models.directory import EXITS, load_weights, save_description, weights_file
from nmtgrid.text.pipeline import Pipeline
from nmtgrid.training.api import OBJECTIVE_FILE, Objective, Objectives, Prepared
from nmtgrid.training.checkpoint import AVERAGE, BEST, FOLDER, LAST
from nmtgrid.training.distributed import Processes
from nmtgrid.training.progress import StopRequest
from nmtgrid.training.settings import RunSettings
from nmtgrid.training.trainer import Trainer, seed_process
from nmtgrid.training.update import has_fast_bf16
from nmtgrid.training.validate import SplitValidator

METRICS = "metrics.jsonl"
_CLEARED = (FOLDER, BEST, LAST, AVERAGE, METRICS, OBJECTIVE_FILE, EXITS)
"""What a run leaves in its folder beside `config.json`, which it writes before all of these."""


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
    stop: StopRequest | None = None,
    processes: Processes | None = None,
) -> Trainer:
    """Return a trainer, its model built (or resumed) and its folder begun.

    Of several processes the first one checks, clears and begins the folder.
    """
    processes = processes or Processes()
    if not resume and processes.is_first:
        check_folder(folder, overwrite=overwrite)
    dataset, training = Dataset.open(data), settings.training
    train = dataset.split("train")
    valid = dataset.split("valid") if "valid" in dataset.names else None
    if valid is None and training.counting_validations:
        raise ConfigError(
            f"{data} has no split `valid`, but {training.counting_validations[0]} counts "
            "validations.", "Leave that out, or make the dataset with `--valid`.",
        )  # fmt: skip
    seed_everything(training.seed)  # nothing may draw before the weights do
    model = build_model(settings, dataset)
    if init is not None and not resume:
        _load_init(model, init, dataset)
    # Checked before the folder is touched, as all that can be refused is.
    objective = make_objective(settings, dataset, device, objectives, folder if resume else None)
    objective.check(model)
    bf16 = training.precision == "bf16"
    bf16 |= training.precision == "auto" and has_fast_bf16(device)
    validator = _make_validator(
        dataset, valid, objective, settings, device, bf16=bf16, processes=processes
    )
    trainer = Trainer(
        model, objective, train, settings, folder, device,
        bf16=bf16, validator=validator, stop=stop, processes=processes,
    )  # fmt: skip
    if not resume and processes.count > 1:
        # All processes have drawn the same weights; what they drop out differs from here on.
        seed_process(training.seed, processes)
    if resume:
        _resume(trainer, folder, dataset.pipeline)
    if processes.is_first:
        _write_description(folder, trainer, dataset, clear=overwrite and not resume)
    # The others read the folder: they go on when it is complete.
    processes.wait()
    return trainer


def _make_validator(
    dataset: Dataset,
    valid: Split | None,
    objective: Objective,
    settings: RunSettings,
    device: torch.device,
    *,
    bf16: bool,
    processes: Processes,
) -> SplitValidator | None:
    """Return what validates on `valid`; None where there is no such split or nothing in it."""
    if valid is None or not len(valid):
        return None
    training = settings.training
    return SplitValidator(
        dataset, valid, objective, settings.batches, device, bf16=bf16,
        with_quality=training.validate_bleu, sentences=training.validate_sentences,
        processes=processes,
    )  # fmt: skip


def _resume(trainer: Trainer, folder: Path, pipeline: Pipeline) -> None:
    """Go on from the state in `folder`. Raises DataError or ModelError where that cannot be."""
    _check_same_pipeline(folder, pipeline)
    if not trainer.resume():
        advice = "Begin again with `--overwrite`."
        raise ModelError(f"{folder} holds no saved state to resume from.", advice)


def _write_description(folder: Path, trainer: Trainer, dataset: Dataset, *, clear: bool) -> None:
    """Describe the model in its folder, after what an older run left there is `clear`ed."""
    if clear:
        clear_folder(folder)
    is_new = not folder.exists()
    try:
        save_description(folder, trainer.model, dataset.pipeline, to_json(trainer.settings))
        objective = trainer.weights.objective
        if isinstance(objective, Prepared):
            objective.save(folder)
    except BaseException as fault:
        # Also at a signal: a folder with half a description would be in the way of the next run.
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(fault, OSError):
            raise
        raise ModelError(
            f"The folder {folder} cannot be made: {reason(fault)}.", "Choose another `--out`."
        ) from fault


def make_objective(
    settings: RunSettings,
    dataset: Dataset,
    device: torch.device,
    objectives: Objectives,
    run_folder: Path | None = None,
) -> Objective:
    """Return the objective of `settings`, smoothed where they say so.

    `run_folder` as in `Wrapper`.
    """
    check_smoothing(settings, objectives, run_folder)
    objective = objectives.get(settings.objective_name).make(settings.objective)
    return objectives.wrap(objective, settings, dataset, device, run_folder)


def check_smoothing(
    settings: RunSettings, objectives: Objectives, run_folder: Path | None = None
) -> None:
    """Raise ConfigError where drawn sentences would have no meaning for the objective.

    Or where the vectors are not there, and the run that is resumed, in `run_folder`, has none.
    """
    kind, sequence = objectives.get(settings.objective_name), settings.smoothing.sequence
    if sequence.alpha and not sequence.lazy and not kind.takes_samples:
        raise ConfigError(
            f"`{kind.name}` learns decisions from how well the model predicts the truth, which "
            "drawn sentences would pass for.",
            "Set `smoothing.sequence.lazy=true`, or smooth tokens alone.",
        )
    vectors = settings.smoothing.token.vectors
    is_saved = run_folder is not None and (run_folder / OBJECTIVE_FILE).exists()
    is_needed = settings.smoothing.needs_spread and vectors != "own" and not is_saved
    if is_needed and not Path(vectors).exists():
        raise ConfigError(
            f"`smoothing.token.vectors`: there is no file and no model directory {vectors}.",
            "Name one, or take `own` vectors.",
        )


def build_model(settings: RunSettings, dataset: Dataset) -> TranslationModel:
    """Return the model of `settings` for the vocabularies of `dataset`."""
    check_tie(settings, dataset)
    pipeline = dataset.pipeline
    sizes = len(pipeline.source_vocabulary), len(pipeline.target_vocabulary)
    return zoo.from_config(settings.arch, settings.model, *sizes)


def check_tie(settings: RunSettings, dataset: Dataset) -> None:
    """Raise ConfigError if both languages are to share one matrix, but no vocabulary.

    Or if the architecture cannot read what the dataset's sources are, text or pictures.
    """
    arch, architectures = settings.arch, zoo.architectures()
    of_pictures = dataset.pictures is not None
    if arch in architectures and architectures.get(arch).of_pictures != of_pictures:
        if of_pictures:
            captioners = [name for name in architectures if name not in zoo.text_architectures()]
            raise ConfigError(
                f"The sources of {dataset.path} are pictures, but `{arch}` translates text.",
                f"Train one that captions pictures: `--arch {captioners[-1]}`.",
            )
        raise ConfigError(
            f"`{arch}` captions pictures, but the sources of {dataset.path} are text.",
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
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not overwrite:
        raise ModelError(
            f"The folder {folder} exists already and is not empty.",
            "Go on with the run in it by `--resume`, replace it by `--overwrite`, or choose "
            "another `--out`.",
        )
    if (folder / directory.NAME).exists() or _is_foreign(folder / "config.json"):
        raise ModelError(
            f"The folder {folder} holds something else than a model of ours, which would be "
            "damaged.",
            "Choose another `--out`.",
        )


def _is_foreign(config: Path) -> bool:
    """Whether `config.json`, or files that belong beside one, are not those of a run of ours."""
    if not config.exists():
        # Files of ours without their `config.json` were not left by a run.
        return any((config.parent / name).exists() for name in _CLEARED)
    try:
        values = read_json(config)
    except StorageError:
        return False
    return not isinstance(values, dict) or "arch" not in values


def clear_folder(folder: Path) -> None:
    """Remove what a run left in `folder`."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    for name in _CLEARED[1:]:
        (folder / name).unlink(missing_ok=True)


def _load_init(model: TranslationModel, init: Path, dataset: Dataset) -> None:
    if not init.is_dir():
        raise ModelError(
            f"`--init`: there is no model directory {init}.", "Name one that `train` wrote."
        )
    try:
        load_weights(model, weights_file(init), begin=True)
    except ModelError as fault:
        raise ModelError(f"`--init`: {fault.problem}", fault.advice) from fault
    if not _same_vocabularies(Pipeline.load(init), dataset.pipeline):
        raise DataError(
            f"`--init`: the model in {init} has other vocabularies than {dataset.path}.",
            "Give `nmtgrid bpe learn` that model's `--codes`, `--vocab-source` and "
            "`--vocab-target`.",
        )


def _check_same_pipeline(folder: Path, pipeline: Pipeline) -> None:
    saved = Pipeline.load(folder)
    if not _same_vocabularies(saved, pipeline) or saved.facts != pipeline.facts:
        raise DataError(
            f"The run in {folder} was begun on data with other vocabularies or another treatment "
            "of the text.",
            "Resume it with the dataset that it was begun with.",
        )


def _same_vocabularies(first: Pipeline, second: Pipeline) -> bool:
    sides = ("source_vocabulary", "target_vocabulary")
    return all(getattr(first, side).types == getattr(second, side).types for side in sides)
