"""`train --dry-run`, `--list`, `--dump-config`: plans and their costs, lists, all settings."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from pathlib import Path
from typing import Any

import numpy
import torch

from nmtgrid.base import console
from nmtgrid.base.config import describe, meanings, to_json
from nmtgrid.base.config_file import to_toml
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.text import open_writer
from nmtgrid.base.spans import real_number, shortened
from nmtgrid.cli.objectives import objectives
from nmtgrid.cli.train.arguments import TrainArguments
from nmtgrid.data.batches import DataCursor
from nmtgrid.data.dataset import Dataset
from nmtgrid.models import zoo
from nmtgrid.models.api import Steps, TranslationModel
from nmtgrid.models.cost_report import TABLE, Properties, table_steps
from nmtgrid.text.vocabulary import SPECIALS
from nmtgrid.training.prepare import (
    check_r_drop,
    check_smoothing,
    check_tie,
    check_validation,
    resegment,
)
from nmtgrid.training.settings import RunSettings, settings_type
from nmtgrid.training.trainer import plan_batches

ASSUMED_LENGTH = 25.0
"""Tokens on each side of a pair, end symbol included, if there is no dataset."""
LONGEST = 100_000
"""Maximum number of tokens on a side of a pair in `--lengths`."""
_SAMPLE = 1000
_HEAD = "# All settings of a training run: `nmtgrid train --config THIS --out MODEL` trains it.\n\n"


def print_plan(settings: RunSettings, arguments: TrainArguments) -> dict[str, Any]:
    """Print parameters, receptive field, cost and properties; return them."""
    dataset = None if arguments.data is None else Dataset.open(arguments.data)
    lengths = None if arguments.lengths is None else _parse_lengths(arguments.lengths)
    if dataset is None:
        sizes = arguments.source_vocab_size, arguments.target_vocab_size
        source_size, target_size = _vocabulary_sizes(settings, sizes)
    else:
        check_tie(settings, dataset)
        check_validation(settings.training, dataset)
        source_size = len(dataset.pipeline.source_vocabulary)
        target_size = len(dataset.pipeline.target_vocabulary)
    with torch.device("meta"):
        # Only counted, never run: no memory is allocated and no weight is initialised.
        model = zoo.from_config(settings.arch, settings.model, source_size, target_size)
    # Training makes the same checks before its first update.
    check_smoothing(settings, objectives)
    check_r_drop(settings, objectives)
    objectives.make(settings.objective_name, settings.objective).check(model)
    if dataset is None or lengths is not None:
        pair = lengths or (ASSUMED_LENGTH, ASSUMED_LENGTH)
        pairs, flops = _assumed_work(model, settings, *pair)
    else:
        pairs, flops, pair = _measured_work(model, settings, dataset)
    report = model.report(*pair)
    preset = None if settings.preset is None else zoo.preset(settings.arch, settings.preset)
    sequence = settings.smoothing.sequence
    samples = sequence.samples if sequence.alpha and not sequence.lazy else 0
    values: dict[str, Any] = {
        "arch": settings.arch,
        "preset": settings.preset,
        "objective": settings.objective_name,
        "parameters": model.count_parameters(),
        "masked_parameters": model.count_masked(),
        "published_parameters": preset and preset.parameters,
        "published_vocab_sizes": preset and preset.vocabulary,
        "source_vocab_size": source_size,
        "target_vocab_size": target_size,
        "receptive_field": {
            "source": model.traits.source_receptive_field,
            "target": model.traits.target_receptive_field,
        },
        "pairs_per_update": pairs,
        "flops_per_pair": flops,
        "flops_per_update": pairs * flops,
        "source_length": pair[0],
        "target_length": pair[1],
        "properties": dataclasses.asdict(report),
        "architectures": [_with_steps(row, report.steps, pair) for row in TABLE],
        "settings": to_json(settings),
        "drawn_sentences_per_pair": samples,
    }
    if lengths is not None:
        origin = "--lengths"
    else:
        origin = "assumed" if arguments.data is None else f"mean of {arguments.data}"
    _print_tables(values, origin)
    _print_notes(settings, samples)
    return values


def _print_notes(settings: RunSettings, samples: int) -> None:
    """Print notes on settings and costs; `samples` sentences are sampled for each reference."""
    for note in settings.notes():
        console.warn(note)
    if settings.training.r_drop:
        console.say("Costs are those of one pass over a pair; R-Drop makes two.")
    if samples:
        console.say(
            f"Costs are those of the references. Smoothing samples {samples:,} more sentences for "
            "each, which the decoder reads too; the source is encoded once for all."
        )


def print_list(arch: str | None, objective: str | None, *, aside: bool) -> dict[str, Any]:
    """Print architectures, presets, objectives and settings; return them.

    Tables go to standard output, or with `aside` to standard error.
    """
    # Meanings are sentences, so the width is limited; on standard output, names are not wrapped.
    stream = console.messages if aside else console.output
    print_table = functools.partial(console.table, console=stream, width=100)
    trained = objectives.get("likelihood" if objective is None else objective)
    registry = zoo.architectures()
    kinds = [registry.get(name) for name in ([arch] if arch else registry)]
    summaries = [[kind.name, kind.summary] for kind in kinds]
    print_table("architectures (--arch)", ["name", "meaning"], summaries)
    presets: list[dict[str, Any]] = []
    for kind in kinds:
        own = list(zoo.presets(kind.name).values())
        rows = [[preset.name, preset.description] for preset in own]
        print_table(f"presets of {kind.name} (--preset)", ["name", "meaning"], rows)
        presets += [
            {
                "arch": kind.name,
                "name": preset.name,
                "description": preset.description,
                "published_parameters": preset.parameters,
                "published_types": preset.vocabulary,
            }
            for preset in own
        ]
    descriptions = [(name, objectives.get(name).description) for name in objectives]
    print_table("objectives (--objective)", ["name", "meaning"], descriptions)
    settings = {}
    for kind in kinds:
        root = settings_type(kind.config, trained.settings)
        settings[kind.name] = _describe_settings(root, kind.name)
        if arch:
            for group, rows in _settings_by_group(settings[kind.name]).items():
                title = f"settings of {kind.name}, objective {trained.name}: {group} (--set)"
                print_table(title, ["name", "default", "meaning"], rows)
    if not arch:
        console.say(
            "`--list --arch NAME` lists the settings of an architecture, `--objective NAME` those "
            "of an objective."
        )
    return {
        "architectures": [{"name": kind.name, "summary": kind.summary} for kind in kinds],
        "presets": presets,
        "objectives": [{"name": name, "description": text} for name, text in descriptions],
        "settings": settings,
    }


def _describe_settings(kind: type[RunSettings], arch: str) -> list[dict[str, Any]]:
    """Return name, type, default and meaning of each setting that `--set` can change."""
    defaults, texts = kind(arch), meanings(kind)
    return [
        {
            "name": name,
            "type": type_,
            "default": to_json(operator.attrgetter(name)(defaults)),
            "meaning": texts.get(name, ""),
        }
        for name, type_ in describe(kind)
        # Names without a dot are options, such as the architecture.
        if "." in name
    ]


def _settings_by_group(settings: list[dict[str, Any]]) -> dict[str, list[list[str]]]:
    """Return name, default and meaning of each setting, by group.

    Choices, and types that neither default nor meaning shows, are added to the meaning.
    """
    groups: dict[str, list[list[str]]] = {}
    for setting in settings:
        group = setting["name"].partition(".")[0]
        default, meaning = setting["default"], setting["meaning"]
        if default is None or not meaning or "|" in setting["type"]:
            meaning = f"{meaning} ({setting['type']})".strip()
        groups.setdefault(group, []).append([setting["name"], _format_value(default), meaning])
    return groups


def _vocabulary_sizes(
    settings: RunSettings, sizes: tuple[int | None, int | None]
) -> tuple[int, int]:
    """Return the sizes of both vocabularies: those given, or the preset's published ones."""
    source, target = sizes
    if settings.preset is not None:
        published = zoo.preset(settings.arch, settings.preset).vocabulary or (None, None)
        source = published[0] if source is None else source
        target = published[1] if target is None else target
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


def _parse_lengths(text: str) -> tuple[float, float]:
    """Return the lengths of a text such as `20x25`. Raises ConfigError."""
    try:
        source, target = map(real_number, text.split("x"))
    except ValueError:
        source = target = 0.0
    if not (1 <= source <= LONGEST and 1 <= target <= LONGEST):
        raise ConfigError(
            f"`--lengths` must be two numbers from 1 to {LONGEST:,}, but is `{shortened(text)}`.",
            "Give the source and target length as in `--lengths 20x25`.",
        )
    return source, target


def _with_steps(row: Properties, steps: Steps | None, pair: tuple[float, float]) -> dict[str, Any]:
    """Return a row of table 3.1, with numbers for as many layers as the plan's model has."""
    values: dict[str, Any] = dataclasses.asdict(row)
    if steps is not None:
        values["steps"] = dataclasses.asdict(
            table_steps(row.model, pair, steps.layers, steps.kernel)
        )
    return values


def _assumed_work(
    model: TranslationModel, settings: RunSettings, source: float, target: float
) -> tuple[float, float]:
    """Return the pairs of an update, and the FLOPs of one, if all have these lengths."""
    batches = settings.batches
    # A batch is full when it reaches the limit of padded tokens, or of grid cells.
    pairs = max(1, int(batches.max_tokens // target))
    if batches.max_cells:
        pairs = max(1, min(pairs, int(batches.max_cells // (source * target))))
    return pairs * batches.accumulation, model.report(source, target).flops_per_pair


def _measured_work(
    model: TranslationModel, settings: RunSettings, dataset: Dataset
) -> tuple[float, float, tuple[float, float]]:
    """Return the pairs of an update, and their mean FLOPs and lengths, from a sample."""
    plan = plan_batches(dataset.split("train"), settings, resegment(settings, dataset))
    walk = itertools.islice(plan.walk(DataCursor.begin(), epochs=1), _SAMPLE)
    first = [indices for _, indices in walk]
    # Batches are shuffled in each epoch, so the first ones of an epoch are representative.
    pairs = sum(map(len, first)) / max(len(first), 1) * settings.batches.accumulation
    # Batches contain pairs of similar lengths: the sample takes some from each.
    sample = numpy.concatenate(first)
    sample = sample[:: max(1, len(sample) // _SAMPLE)]
    # The cost is not linear in the lengths: average over pairs instead of using mean lengths.
    source, target = (lengths + 1 for lengths in plan.epoch_lengths(sample, 0))
    flops = [
        model.report(float(source_length), float(target_length)).flops_per_pair
        for source_length, target_length in zip(source, target, strict=True)
    ]
    return pairs, float(numpy.mean(flops)), (float(source.mean()), float(target.mean()))


def _print_tables(values: dict[str, Any], origin: str) -> None:
    """Print the plan; `origin` says where its lengths come from."""
    report = values["properties"]
    lengths = f"{values['source_length']:.1f} x {values['target_length']:.1f}"
    fields = {
        side: "all" if tokens is None else f"{tokens:,}"
        for side, tokens in values["receptive_field"].items()
    }
    masked = values["masked_parameters"]
    rows = [
        ["architecture", values["arch"]],
        ["parameters", f"{values['parameters']:,}"],
        *([["of which masked taps, zero and never read", f"{masked:,}"]] if masked else []),
        *_published_rows(values),
        ["vocabularies", f"{values['source_vocab_size']:,} and {values['target_vocab_size']:,}"],
        ["receptive field, source tokens", fields["source"]],
        ["receptive field, target tokens", fields["target"]],
        [f"pair, with end symbols ({origin})", lengths],
        ["pairs per update", f"{values['pairs_per_update']:,.1f}"],
        ["cost of a pair, forward and backward", f"{values['flops_per_pair'] / 1e9:,.2f} GFLOP"],
        ["cost of an update", f"{values['flops_per_update'] / 1e9:,.1f} GFLOP"],
        ["computation", report["computation"]],
        ["sequential operations in training", _with_number(report, "sequential")],
        ["path to a target token", _with_number(report, "target_path")],
        ["path to a source token", _with_number(report, "source_path")],
    ]
    console.table("plan", ["", ""], rows)
    steps = report["steps"]
    if steps is None:
        return
    source, target = steps["layers"]
    kernel = f", filters of {steps['kernel'] or 3}"
    console.table(
        f"other architectures with such layers ({source} and {target}{kernel}) on a pair of "
        f"{lengths}: sequential operations, paths from a prediction to a token",
        ["model", "receptive field", "computation", "sequential", "to target", "to source"],
        [
            [row["model"], row["receptive_field"], row["computation"]]
            + [_with_number(row, name) for name in ("sequential", "target_path", "source_path")]
            for row in values["architectures"]
        ],
    )


def _with_number(row: dict[str, Any], name: str) -> str:
    """Return an order of growth, and its value for the plan's pair."""
    steps = row["steps"]
    return row[name] if steps is None else f"{row[name]}: {steps[name]:,.0f}"


def _published_rows(values: dict[str, Any]) -> list[list[str]]:
    """Return the row of the published count, if any, with the vocabulary sizes it is based on."""
    parameters, sizes = values["published_parameters"], values["published_vocab_sizes"]
    if not parameters:
        return []
    text = f"{parameters / 1e6:.1f}M"
    if sizes:
        text += f", with vocabularies of {sizes[0]:,} and {sizes[1]:,}"
        if list(sizes) != [values["source_vocab_size"], values["target_vocab_size"]]:
            text += " (unlike those here)"
    return [["published parameters", text]]


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def config_text(settings: RunSettings, arguments: TrainArguments) -> str:
    """Return a `--config` file with the same settings, data, device and initial weights."""
    values = to_json(settings)
    if arguments.seeds is not None:
        del values["training"]["seed"]  # given by `seeds`
    names = {"arch": values.pop("arch"), "preset": values.pop("preset")}
    options = {
        "data": arguments.data,
        "init": arguments.init,
        "seeds": arguments.seeds,
        "device": None if arguments.device == "auto" else arguments.device,
        "test_split": arguments.test_split,
    }
    names |= {name: str(value) for name, value in options.items() if value is not None}
    if arguments.tensorboard:
        names["tensorboard"] = True
    objective = {"name": values.pop("objective_name"), **values.pop("objective")}
    plain = {name: value for name, value in names.items() if value is not None}
    return _HEAD + to_toml({**plain, "objective": objective, **values})


def write_config(path: Path, settings: RunSettings, arguments: TrainArguments) -> None:
    """Write `config_text` to a file, or to standard output for `-`."""
    with open_writer(path) as file:
        file.write(config_text(settings, arguments).encode("utf-8", "surrogateescape"))
