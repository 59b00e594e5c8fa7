"""Model directories: everything needed to translate raw text, and nothing executable.

`config.json` has the architecture and its settings, `model.safetensors` the best weights
(`last.safetensors` and `average.safetensors` others), next to the files of the text pipeline.
Loading first builds the model on the meta device (shapes only) and compares the shapes with the
file's header; only then does it allocate memory, building a user's own model a second time, and
read values.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nmtgrid.base.config import to_json
from nmtgrid.base.errors import (
    ConfigError,
    ModelError,
    NmtgridError,
    StorageError,
    listed,
    nearest,
)
from nmtgrid.base.io.arrays import CHECKSUM, UNTRAINED, load_tensors, read_header, save_tensors
from nmtgrid.base.io.atomic import link_target, with_checksum, write_json
from nmtgrid.base.io.records import (
    Count,
    Record,
    Size,
    check_version,
    convert_unaltered,
    read_json,
)
from nmtgrid.data.directory import NAME as MANIFEST
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from nmtgrid.text.pipeline import Pipeline

Built = TypeVar("Built")


class _SkipInitialisation(TorchFunctionMode):
    """Makes initialisation functions (`normal_`, `zero_`, ...) return their tensors unchanged.

    On the meta device there are no values: initialisation would only cost time, including the norms
    that weight normalisation computes of the vectors that it has drawn.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "norm" or (name.endswith("_") and not name.endswith("__")):
            return args[0] if args else options["tensor"]
        return func(*args, **options)


def meta_model(make: Callable[[], Built]) -> Built:
    """Return the result of `make`, built from tensors that have shapes but no values."""
    with torch.device("meta"), _SkipInitialisation():
        return make()


FORMAT = 1
WEIGHTS = {
    "best": "model.safetensors",
    "last": "last.safetensors",
    "average": "average.safetensors",
}
_WEIGHT_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
EXITS = "exits.json"
"""Thresholds of early exits, tuned on one of these sets of weights."""
POLICIES = "policies.json"
"""Settings of reading policies, calibrated with one of these sets of weights."""


@dataclasses.dataclass(frozen=True)
class LengthPercentiles:
    """Lengths of sentences in units, end symbols not counted: 99 % have at most `p99`."""

    p1: Count = 0
    p25: Count = 0
    p50: Count = 0
    p75: Count = 0
    p95: Count = 0
    p99: Count = 0
    longest: Count = 0

    @classmethod
    def of(cls, lengths: NDArray[Any]) -> LengthPercentiles:
        """Return the percentiles of `lengths` [N]."""
        if not len(lengths):
            return cls()
        shares = (1, 25, 50, 75, 95, 99, 100)
        # Lengths that occur: the smallest that is not exceeded by this share of the sentences.
        values = numpy.percentile(lengths, shares, method="inverted_cdf")
        return cls(*map(int, values))

    def __post_init__(self) -> None:
        """Raise ValueError if the values decrease."""
        values = dataclasses.astuple(self)
        if list(values) != sorted(values):
            raise ValueError("the lengths must not decrease")


@dataclasses.dataclass(frozen=True)
class TrainingLengths:
    """Sentence lengths of the training data of a model."""

    source: LengthPercentiles = LengthPercentiles()
    target: LengthPercentiles = LengthPercentiles()


class _Config(Record):
    """The fields of `config.json` that are read; old versions have no `settings`."""

    arch: str
    source_vocab_size: Size
    target_vocab_size: Size
    model: dict[str, Any]
    settings: dict[str, Any] = {}  # noqa: RUF012 (a new one for each record)
    training_lengths: TrainingLengths | None = None


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model loaded from a directory, with its text pipeline and the settings of its run.

    `weights` is the name of the weights that were read, `checksum` the checksum in their file, if
    any. `lengths` is None if unknown: for imported models and those of version 0.1.0.
    """

    model: TranslationModel
    pipeline: Pipeline
    settings: dict[str, Any]
    folder: Path
    weights: str = "best"
    checksum: str | None = None
    lengths: TrainingLengths | None = None


def save_description(
    folder: Path,
    model: TranslationModel,
    pipeline: Pipeline,
    settings: Mapping[str, Any],
    lengths: TrainingLengths | None = None,
    data: Path | None = None,
) -> None:
    """Write `config.json` and the text pipeline into `folder`, which is created if necessary.

    `settings` are the run's settings as JSON values, kept for the record and for defaults. From
    `lengths` decoding derives the longest source that it translates whole. `data` is the dataset
    directory, where a resumed run finds its data.
    """
    link_target(folder).mkdir(parents=True, exist_ok=True)
    values = {
        "format": FORMAT,
        "arch": model.architecture,
        "source_vocab_size": len(pipeline.source_vocabulary),
        "target_vocab_size": len(pipeline.target_vocabulary),
        "model": to_json(model.config),
        "settings": dict(settings),
        **({} if lengths is None else {"training_lengths": to_json(lengths)}),
        **({} if data is None else {"data": os.path.abspath(data)}),
    }
    # First, so that a folder is known to be a model's even if the process is killed here.
    write_json(folder / "config.json", with_checksum(values))
    pipeline.save(folder)


def save_model(
    folder: Path, model: TranslationModel, pipeline: Pipeline, settings: Mapping[str, Any]
) -> None:
    """Write a complete model directory with the model's weights as the best ones."""
    save_description(folder, model, pipeline, settings)
    save_tensors(folder / WEIGHTS["best"], model.state_dict())


def read_run_settings(folder: str | Path) -> dict[str, Any]:
    """Return the run's settings in the model directory `folder`, `{}` if it is an old one.

    No weights are read. Raises ModelError if `folder` is not a model directory.
    """
    return _read_config(Path(folder)).settings


def load_model(
    folder: str | Path, device: torch.device | str | None = None, weights: str = "best"
) -> LoadedModel:
    """Return the model in `folder`, ready to decode.

    Warns if no update has changed the weights yet. Raises ModelError naming the part that is
    missing, damaged or does not fit.
    """
    folder = Path(folder)
    config = _read_config(folder)
    try:
        pipeline = Pipeline.load(folder)
        sides = {"source": pipeline.source_vocabulary, "target": pipeline.target_vocabulary}
        for side, vocabulary in sides.items():
            expected = getattr(config, f"{side}_vocab_size")
            if len(vocabulary) != expected:
                raise ModelError(
                    f"{folder}: the {side} vocabulary has {len(vocabulary):,} types, but the model "
                    f"was built for {expected:,}.",
                    "The folder mixes files of two models: restore its own vocabularies.",
                )
        path = weights_file(folder, weights)
        # Before memory is allocated: the file must have the tensors that the settings require.
        entries, facts, _ = read_header(path)
        shapes = {name: entry.shape for name, entry in entries.items()}
        model = _build(config, lambda model: _check_fit(model.state_dict(), shapes, path))
    except (StorageError, ConfigError) as fault:
        # The folder's name comes first, unless the problem begins with it already.
        is_placed = fault.problem.startswith(str(folder))
        problem = fault.problem if is_placed else f"{folder}: {fault.problem}"
        raise ModelError(problem, fault.advice) from fault
    load_weights(model, path)
    model.eval()
    if device is not None:
        model.to(device)
    if UNTRAINED in facts:
        warnings.warn(
            f"{path} has not been trained yet: it holds the initial weights of its run. "
            "Continue the run with `--resume`, or start it again.",
            stacklevel=2,
        )
    # Files of other programs, and old ones, have no checksum.
    checksum, lengths = facts.get(CHECKSUM), config.training_lengths
    return LoadedModel(model, pipeline, config.settings, folder, weights, checksum, lengths)


def _build(config: _Config, check: Callable[[TranslationModel], None]) -> TranslationModel:
    """Return the model of `config`, on the meta device unless the architecture is a user's own.

    `check` is called before memory is allocated. A user's constructor may make tensors outside the
    state dict (masks, tables of positions), which need values; the meta device has none.
    """

    def make() -> TranslationModel:
        sizes = config.source_vocab_size, config.target_vocab_size
        return zoo.from_config(config.arch, config.model, *sizes)

    if not zoo.architectures().get(config.arch).is_own:
        model = meta_model(make)
        check(model)
        return model
    try:
        # With initialisation: a call that `_SkipInitialisation` skips may change shapes
        # (`squeeze_`).
        with torch.device("meta"):
            outline = make()
    except NmtgridError:
        raise
    except Exception:  # it needs values, or it fails with them too
        outline = None
    if outline is not None:
        check(outline)
    model = make()
    check(model)
    return model


def weights_file(folder: Path, weights: str = "best") -> Path:
    """Return the path of the weights called `weights`. Raises ModelError if they are not there."""
    if weights not in WEIGHTS:
        raise ModelError(f"There are no weights named `{weights}`.", nearest(weights, WEIGHTS))
    path = folder / WEIGHTS[weights]
    if not path.is_file():
        present = [name for name, file in WEIGHTS.items() if (folder / file).is_file()]
        advice = (
            "Present: " + ", ".join(f"`{name}`" for name in present) + "."
            if present
            else "The training may not have been validated yet; let it run on (`--resume`)."
        )
        raise ModelError(f"{folder} lacks `{path.name}`.", advice)
    return path


def load_weights(model: TranslationModel, path: Path, *, begin: bool = False) -> None:
    """Read the weights in `path` into `model`.

    With `begin`, to initialise training, entire parts listed in the model's `counterparts` (a
    reader, exits, the network that chooses them) may be missing: a tensor of such a part takes the
    values of its counterpart, or keeps its initial values if it has none.

    Raises ModelError naming tensors that are missing, left over, of another shape or type, or that
    contain NaN or infinity.
    """
    try:
        tensors = load_tensors(path)
    except StorageError as fault:
        raise ModelError(fault.problem, fault.advice) from fault
    expected = model.state_dict()
    if begin:
        # A part counts as missing only if the file has nothing of it: a file with half a reader is
        # damaged, which `_check_fit` reports.
        present = {name.split(".")[0] for name in tensors}
        tensors |= {
            name: expected[name] if other is None else tensors.get(other, expected[name])
            for name, other in model.counterparts().items()
            if name.split(".")[0] not in present
        }
    _check_fit(expected, {name: list(tensor.shape) for name, tensor in tensors.items()}, path)
    _check_values(expected, tensors, path)
    # Names by parameter, in the order of the modules; a tied one has several.
    names_of: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names_of.setdefault(id(parameter), []).append(name)
    for first, *others in names_of.values():
        for name in others:
            if not tensors[name].equal(tensors[first]):
                raise ModelError(
                    f"{path} does not fit the model: `{first}` and `{name}` are shared by the "
                    "model, but differ in the file.",
                    "Use the settings that the weights were trained with.",
                )
    is_meta = any(tensor.is_meta for tensor in expected.values())
    if is_meta:
        # The tensors themselves become the parameters: `to_empty` would import torch's compiler,
        # which takes a second. They are copied because only memory that torch allocates is aligned,
        # which affects speed and rounding.
        tensors = {name: tensors[name].to(t.dtype, copy=True) for name, t in expected.items()}
    model.load_state_dict(tensors, assign=is_meta)
    if is_meta:
        # A parameter with two names has become two parameters: tie them again.
        for first, *others in names_of.values():
            for name in others:
                owner, _, attribute = name.rpartition(".")
                setattr(model.get_submodule(owner), attribute, model.get_parameter(first))


def _check_fit(expected: Mapping[str, Tensor], shapes: Mapping[str, Any], path: Path) -> None:
    """Raise ModelError naming tensors that are missing, left over or of another shape."""
    faults = [f"`{name}` is missing" for name in expected if name not in shapes]
    faults += [f"`{name}` is not known" for name in shapes if name not in expected]
    for name, tensor in expected.items():
        if name in shapes and shapes[name] != list(tensor.shape):
            shape = list(tensor.shape)
            faults.append(f"`{name}` has shape {shapes[name]}, but the model needs {shape}")
    if faults:
        raise ModelError(
            f"{path} does not fit the model: {listed(faults, 5, '; ')}.",
            "Use the settings that the weights were trained with.",
        )


def _check_values(
    expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path
) -> None:
    """Raise ModelError naming the first tensor with an invalid type or value."""
    for name, tensor in tensors.items():
        if tensor.dtype not in _WEIGHT_TYPES:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ModelError(
                f"{path} does not fit the model: `{name}` has the type {kind}, which weights "
                "cannot have.",
                f"Use {', '.join(str(kind).removeprefix('torch.') for kind in _WEIGHT_TYPES)}.",
            )
        # In the model's type: a large float64 is infinite in float32. `aminmax` takes one pass and
        # no memory, and propagates NaN.
        values = tensor.to(expected[name].dtype)
        if values.numel() and not torch.stack(values.aminmax()).isfinite().all():
            raise ModelError(
                f"{path} is damaged: `{name}` holds NaN or infinity.",
                "Restore a copy; if a training diverged, train again with a lower learning rate.",
            )


def _read_config(folder: Path) -> _Config:
    advice = "Name one that was written by `train`, `import-fairseq` or `import-marian`."
    if folder.is_file():
        raise ModelError(f"{folder} is a file, not a model directory.", advice)
    if not folder.is_dir():
        raise ModelError(f"There is no model directory {folder}.", advice)
    path = folder / "config.json"
    if not path.exists() and (folder / MANIFEST).is_file():
        raise ModelError(f"{folder} is a dataset, not a model directory.", advice)
    try:
        values = read_json(path)
        if not isinstance(values, dict) or "format" not in values:
            raise ModelError(f"{folder} is not a model directory of nmtgrid.", advice)
        check_version(path, values, FORMAT)
        return convert_unaltered(path, values, _Config)
    except StorageError as fault:
        raise ModelError(fault.problem, fault.advice or "Is it a model directory?") from fault
