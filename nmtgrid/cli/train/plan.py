"""`train --dry-run` and `train --list`: what would be trained, at which cost, and what there is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy
import torch

from nmtgrid.base import console
from nmtgrid.base.config import describe, meanings, to_json
from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.objectives import objectives
from nmtgrid.data.batches import BatchPlan
from nmtgrid.data.dataset import Dataset
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from nmtgrid.models.cost_report import TABLE
from nmtgrid.text.vocabulary import SPECIALS
from nmtgrid.training.prepare import check_smoothing, check_tie
from nmtgrid.training.settings import RunSettings, settings_type

ASSUMED_LENGTH = 25
"""Tokens on each side of a pair, end symbol included, where no data tell."""
_SAMPLE = 1000


@dataclasses.dataclass(frozen=True)
class Work:
    """What an update holds: pairs, and the FLOPs of a mean pair, forward and backward."""

    pairs: float
    flops_per_pair: float
    source_length: float
    target_length: float

    @property
    def flops(self) -> float:
        """FLOPs of an update."""
        return self.pairs * self.flops_per_pair


def show_plan(
    settings: RunSettings, data: Path | None, sizes: tuple[int | None, int | None]
) -> dict[str, Any]:
    """Show parameters, receptive field, cost and properties; return them."""
    dataset = None if data is None else Dataset.open(data)
    if dataset is not None:
        check_tie(settings, dataset)
    known = _sizes(settings, dataset, sizes)
    with torch.device("meta"):
        # Counted, not run: no memory is taken and no weight is drawn.
        model = zoo.from_config(settings.arch, settings.model, *known)
    check_smoothing(settings)
    objectives.get(settings.objective_name).make(settings.objective).check(model)
    work = _assumed(model, settings) if dataset is None else _measured(model, settings, dataset)
    report = model.report(work.source_length, work.target_length)
    traits = model.traits
    values: dict[str, Any] = {
        "arch": settings.arch,
        "preset": settings.preset,
        "objective": settings.objective_name,
        "parameters": model.count_parameters(),
        "source_vocab_size": known[0],
        "target_vocab_size": known[1],
        "receptive_field": {
            "source": traits.source_receptive_field,
            "target": traits.target_receptive_field,
        },
        "pairs_per_update": work.pairs,
        "flops_per_pair": work.flops_per_pair,
        "flops_per_update": work.flops,
        "source_length": work.source_length,
        "target_length": work.target_length,
        "properties": dataclasses.asdict(report),
        "architectures": [dataclasses.asdict(row) for row in TABLE],
        "settings": to_json(settings),
    }
    sequence = settings.smoothing.sequence
    drawn = sequence.samples if sequence.alpha and not sequence.lazy else 0
    values["drawn_sentences_per_pair"] = drawn
    _draw_plan(values, _published(settings), assumed=dataset is None)
    for words in settings.notes():
        console.warn(words)
    if drawn:
        console.say(
            f"Costs are those of the true sentences. Smoothing draws {drawn:,} more for each, and "
            "the model reads their prefixes too: on the same source, which is encoded once."
        )
    return values


def show_list(
    arch: str | None, objective: str | None = None, *, aside: bool = False
) -> dict[str, Any]:
    """Show architectures, presets, objectives and settings; return them.

    On standard output, or `aside`, on standard error.
    """
    show = console.table if aside else console.listing
    chosen = objectives.get("likelihood" if objective is None else objective)
    registry = zoo.architectures()
    kinds = [registry.get(name) for name in ([arch] if arch else registry)]
    show("architectures", ["name", ""], [[kind.name, kind.summary] for kind in kinds])
    presets = [(kind, preset) for kind in kinds for preset in zoo.presets(kind.name).values()]
    for kind in kinds:
        show(
            f"presets of {kind.name} (--preset)", ["name", ""],
            [[preset.name, preset.description] for owner, preset in presets if owner is kind],
        )  # fmt: skip
    known = [objectives.get(name) for name in objectives]
    show(
        "objectives (--objective)", ["name", ""], [[kind.name, kind.description] for kind in known]
    )
    settings: dict[str, list[dict[str, Any]]] = {}
    for kind in kinds:
        root = settings_type(kind.config, chosen.settings)
        defaults = _flat(to_json(root(kind.name)))
        texts = meanings(root)
        rows = [[name, type_, defaults[name]] for name, type_ in describe(root) if "." in name]
        if arch:
            show(
                f"settings of {kind.name}, objective {chosen.name} (--set)",
                ["name", "type", "default"],
                [[name, type_, _shown(value)] for name, type_, value in rows],
            )  # fmt: skip
        settings[kind.name] = [
            {"name": name, "type": type_, "default": value, "meaning": texts.get(name, "")}
            for name, type_, value in rows
        ]
    if not arch:
        console.say(
            "`--list --arch NAME` shows the settings of an architecture, with `--objective NAME` "
            "those of that objective."
        )
    return {
        "architectures": [{"name": kind.name, "summary": kind.summary} for kind in kinds],
        "presets": [
            {
                "arch": kind.name,
                "name": preset.name,
                "description": preset.description,
                "published_parameters": preset.parameters,
                "published_types": preset.vocabulary,
            }
            for kind, preset in presets
        ],
        "objectives": [{"name": kind.name, "description": kind.description} for kind in known],
        "settings": settings,
    }


def _sizes(
    settings: RunSettings, dataset: Dataset | None, sizes: tuple[int | None, int | None]
) -> tuple[int, int]:
    """Return the sizes of both vocabularies: given, of the data, or the preset's published ones."""
    if dataset is not None:
        pipeline = dataset.pipeline
        return len(pipeline.source_vocabulary), len(pipeline.target_vocabulary)
    source, target = sizes
    if settings.preset is not None:
        published = zoo.preset(settings.arch, settings.preset).vocabulary
        source, target = (
            held if given is None else given
            for given, held in zip(sizes, published or (None, None), strict=True)
        )
    faults = [
        f"`--{side}-vocab-size` counts the {len(SPECIALS)} special symbols too: it must be more "
        f"than that, but is {size}."
        for side, size in (("source", source), ("target", target))
        if size is not None and size <= len(SPECIALS)
    ]
    if faults:
        raise ConfigError(faults)
    if source is None or target is None:
        raise ConfigError(
            "The plan needs the sizes of both vocabularies.",
            "Name the dataset directory, give `--source-vocab-size N --target-vocab-size N`, or "
            "choose a preset with published vocabularies.",
        )
    return source, target


def _assumed(model: TranslationModel, settings: RunSettings) -> Work:
    """Return the work of an update for pairs of an assumed length."""
    batches, length = settings.batches, ASSUMED_LENGTH
    pairs = max(1, batches.max_tokens // length)
    if batches.max_cells:
        pairs = max(1, min(pairs, batches.max_cells // length**2))
    flops = model.report(length, length).flops_per_pair
    return Work(pairs * batches.accumulation, flops, length, length)


def _measured(model: TranslationModel, settings: RunSettings, dataset: Dataset) -> Work:
    """Return the work of an update on the training pairs, its costs from a sample of them."""
    split, batches = dataset.split("train"), settings.batches
    plan = BatchPlan(
        split.source_lengths, split.target_lengths, batches.max_tokens, batches.max_cells,
        batches.max_length, settings.training.seed,
    )  # fmt: skip
    first = [indices for _, indices in zip(range(_SAMPLE), _indices(plan), strict=False)]
    pairs = sum(map(len, first)) / max(len(first), 1) * batches.accumulation
    drawn = numpy.concatenate(first)
    drawn = drawn[:: max(1, len(drawn) // _SAMPLE)]
    source, target = split.source_lengths[drawn] + 1, split.target_lengths[drawn] + 1
    costs = [
        model.report(float(wide), float(high)).flops_per_pair
        for wide, high in zip(source, target, strict=True)
    ]
    return Work(pairs, float(numpy.mean(costs)), float(source.mean()), float(target.mean()))


def _indices(plan: BatchPlan) -> Any:
    from nmtgrid.data.batches import DataCursor

    return (indices for _, indices in plan.walk(DataCursor(), epochs=1))


def _published(settings: RunSettings) -> float | None:
    if settings.preset is None:
        return None
    return zoo.preset(settings.arch, settings.preset).parameters


def _draw_plan(values: dict[str, Any], published: float | None, *, assumed: bool) -> None:
    field, report = values["receptive_field"], values["properties"]
    parameters = f"{values['parameters']:,}"
    if published:
        parameters += f" (published: {published / 1e6:.1f}M)"
    lengths = f"{values['source_length']:.1f} x {values['target_length']:.1f}"
    rows = [
        ["architecture", values["arch"]],
        ["parameters", parameters],
        ["vocabularies", f"{values['source_vocab_size']:,} and {values['target_vocab_size']:,}"],
        ["receptive field, source tokens", _bounded(field["source"])],
        ["receptive field, target tokens", _bounded(field["target"])],
        ["mean pair, with end symbols" + (" (assumed)" if assumed else ""), lengths],
        ["pairs per update", f"{values['pairs_per_update']:,.1f}"],
        ["cost of a pair, forward and backward", f"{values['flops_per_pair'] / 1e9:,.2f} GFLOP"],
        ["cost of an update", f"{values['flops_per_update'] / 1e9:,.1f} GFLOP"],
        ["computation", report["computation"]],
        ["sequential operations in training", report["sequential"]],
        ["path to a target token", report["target_path"]],
        ["path to a source token", report["source_path"]],
    ]
    console.table("plan", ["", ""], rows)
    headings = ["model", "receptive field", "computation", "sequential", "to target", "to source"]
    console.table(
        "properties (tables 2.1 and 3.1; paths from a prediction to a token)", headings,
        [list(row.values()) for row in values["architectures"]],
    )  # fmt: skip


def _bounded(field: int | None) -> str:
    return "all" if field is None else f"{field:,}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= (
            _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        )
    return found
