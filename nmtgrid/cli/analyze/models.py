"""Analyses of models themselves: `nmtgrid analyze activations`, `curves` and `latency`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nmtgrid.base import console
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.analyze.arguments import ShownArguments, is_file
from nmtgrid.cli.options import (
    GENERAL,
    INPUT_OUTPUT,
    REQUIRED,
    Device,
    Excludes,
    LatencyUnitArguments,
    Requires,
    Weights,
    argument,
    check_rules,
    check_vocabularies,
    option,
    takes,
)

if TYPE_CHECKING:
    from nmtgrid.analysis.section import Section


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActivationsArguments(ShownArguments):
    models: list[str] = argument("Model directories, side by side.", "[NAME=]MODEL")
    data: Path = option("A dataset with the models' vocabularies.", "DATA", default=REQUIRED)
    split: str = option("Split of DATA.", "NAME", default="valid")
    sentences: int = option(
        "Number of sentences, from the start of the split.", "N", default=64, min=1
    )
    point: list[str] | None = option(
        "A probe point, or a torch module name; `*` is a wildcard; may be repeated.  [default: "
        "all points]",
        "NAME",
    )
    weights: Weights = "best"
    device: Device = "auto"


@takes(
    ActivationsArguments,
    {INPUT_OUTPUT: "data split sentences point out picture corpus", GENERAL: "weights device json"},
    "nmtgrid analyze activations residual=MODEL1 dense=MODEL2 --data DATA --out DIR",
)
def activations(arguments: ActivationsArguments) -> None:
    """Show the size of activations in trained networks: mean and deviation at each point.

    Models read the references of a split with teacher forcing. Each layer is shown with its output,
    and its value before the skip connection is added; the JSON has every point, including those
    before and after normalisation.
    """
    paths = [split_label(text)[1] for text in arguments.models]
    arguments.check(*paths)
    arguments.show(probed_section(arguments))


def probed_section(arguments: ActivationsArguments) -> Section:
    """Return the activations of all models; invalid arguments raise before the first run."""
    from nmtgrid.analysis.activations import activations_section, profile, select_points
    from nmtgrid.analysis.quality.evaluation import split_title
    from nmtgrid.analysis.systems import named_files
    from nmtgrid.base.devices import find_device
    from nmtgrid.data.dataset import Dataset
    from nmtgrid.models.directory import load_model

    named, patterns = named_files(arguments.models), arguments.point or []
    device = find_device(arguments.device)
    dataset = Dataset.open(arguments.data)
    pairs = dataset.split(arguments.split)
    # An error of the last model should show before minutes are spent on the first.
    for name, path in named.items():
        loaded = load_model(path, None, arguments.weights)
        check_vocabularies(loaded, dataset)
        select_points(loaded.model, patterns, name)
    profiles = []
    with console.progress("models", len(named)) as bar:
        for name, path in named.items():
            # Loaded again, so that only one model is in memory at a time.
            model = load_model(path, None, arguments.weights).model
            sentences = arguments.sentences
            profiles.append(profile(name, model, pairs, sentences, patterns, device))
            bar.update(advance=1)
    section = activations_section(profiles, arguments.split)
    return dataclasses.replace(section, corpus=split_title(dataset, arguments.split))


_NOTES_SHOWN = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurvesArguments(ShownArguments):
    models: list[str] = argument(
        "Model directories, or their `metrics.jsonl`, side by side.", "[NAME=]MODEL"
    )
    against: Literal["minutes", "updates", "tokens"] = option("Horizontal axis.", default="minutes")


@takes(
    CurvesArguments,
    {INPUT_OUTPUT: "out picture corpus against"},
    "nmtgrid analyze curves deep=MODEL1 shallow=MODEL2 --out curves.png",
)
def curves(arguments: CurvesArguments) -> None:
    """Show training curves: losses, perplexity, BLEU, speed; plot them side by side.

    Losses are in nats per target token, without label smoothing; the best is the lowest on the
    validation split, or the criterion of the objective, such as the delay of a path. Runs with
    `training.watch_gradients` also have gradient norms between layers, and the ratio of the first
    encoder layer to the last. Damaged lines of a log are skipped with a warning. With `--out`, a
    single file has all plots, a folder one file for each.
    """
    out, against = arguments.out, arguments.against
    named = [split_label(text) for text in arguments.models]
    arguments.check(*(path for _, path in named))
    from nmtgrid.analysis.plotting.lines import draw_panels
    from nmtgrid.analysis.section import Picture
    from nmtgrid.analysis.training_curves import check_drawable, panels, read_runs, training_section

    if out is not None:
        check_drawable(len(named))
    runs = read_runs(named)
    for run in runs:
        # A file that is not a log at all would fill the screen.
        for note in run.notes[:_NOTES_SHOWN]:
            console.warn(f"{note} The line is skipped.")
        if len(run.notes) > _NOTES_SHOWN:
            console.warn(f"{run.path}: {len(run.notes):,} lines are skipped in all.")
    section = training_section(runs, against)
    if is_file(out):
        # A single file has all plots, two per row.
        whole = Picture(
            "curves", "", lambda path: draw_panels([*panels(runs, against).values()], path)
        )
        section = dataclasses.replace(section, pictures=[whole])
    arguments.show(section)


Metric = Literal["al", "ap", "dal", "laal", "yaal", "cw", "max_cw", "ca-al", "ca-laal"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatencyArguments(ShownArguments, LatencyUnitArguments):
    results: list[str] = argument(
        "Folders of `online-eval --out`, or their `results.json`.", "[NAME=]RESULTS"
    )
    metric: Metric = option(
        "Latency metric; `ca-`: computation-aware, from `online-eval --clock`, in words and "
        "SimulEval's convention.",
        default="al",
    )
    published: str | None = option(
        "Add the published curves of a corpus (AL only); warns if they are not comparable.",
        "NAME",
    )
    title: str | None = option("Title of the figure.")

    @property
    def is_aware(self) -> bool:
        """Whether the metric is computation-aware."""
        return self.metric.startswith("ca-")

    @property
    def latency_convention(self) -> Literal["thesis", "simuleval"]:
        """The convention for |y|; computation-aware metrics use SimulEval's only."""
        return "simuleval" if self.is_aware else super().latency_convention


RULES = [
    Excludes(
        "published",
        "metric convention",
        "The published curves have AL, in the thesis' convention: leave out `--published`, or "
        "`--metric` and `--convention`.",
    ),
    Requires("published", "out", "`--published` has no effect without a figure: add `--out FILE`."),
    Requires("title", "out", "`--title` is that of the figure: add `--out FILE`."),
]


@takes(
    LatencyArguments,
    {
        INPUT_OUTPUT: "out picture corpus title published",
        "Latency": "metric unit convention",
    },
    "nmtgrid analyze latency ours=DIR1 theirs=DIR2 --metric dal --out curve.png",
)
def latency(arguments: LatencyArguments) -> None:
    """Compare online evaluations: BLEU against latency, one curve per system and policy."""
    named = [split_label(text) for text in arguments.results]
    arguments.check(*(path for _, path in named))
    faults = arguments.unit_faults()
    if arguments.is_aware and arguments.unit == "token" and not faults:
        faults.append("Computation-aware latency counts words: leave out `--unit token`.")
    if arguments.is_aware and arguments.convention == "thesis":
        faults.append(
            "Computation-aware latency is in SimulEval's convention: leave out `--convention "
            "thesis`."
        )
    faults += [f"{path} is given twice." for (_, path), n in Counter(named).items() if n > 1]
    check_rules(arguments, RULES, faults)
    from nmtgrid.analysis.latency import latency_section, read_online_results
    from nmtgrid.online.published import warnings

    # A folder may have the results of several systems and policies.
    read = [read_online_results(path, label) for label, path in named]
    online_results = [result for results, _ in read for result in results]
    if arguments.published is not None:
        evaluations = [result.evaluation for result in online_results]
        for reason in warnings(arguments.published, evaluations, arguments.latency_unit):
            console.warn(f"`--published {arguments.published}`: {reason}")
    if len(corpora := sorted({result.corpus for result in online_results if result.corpus})) > 1:
        console.warn(
            f"These evaluations are of different datasets: {'; '.join(corpora)}. They compare only "
            "if the sentences are the same."
        )
    section = latency_section(
        online_results,
        arguments.metric,
        arguments.latency_unit,
        arguments.latency_convention,
        arguments.published,
        arguments.title,
        [area for _, areas in read for area in areas],
    )
    arguments.show(section)
