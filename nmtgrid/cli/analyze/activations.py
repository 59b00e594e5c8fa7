"""`nmtgrid analyze activations`: means and deviations of activations along trained networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nmtgrid.base import console
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.analyze.show import Format, Out, check_out, show
from nmtgrid.cli.options import (
    REQUIRED,
    CommandArguments,
    Device,
    DeviceName,
    JsonFile,
    Weights,
    WeightsName,
    argument,
    option,
    takes,
)

if TYPE_CHECKING:
    from nmtgrid.analysis.activations import Profile


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActivationsArguments(CommandArguments):
    """The arguments of `analyze activations`."""

    models: list[str] = argument("Model directories, side by side.", "[NAME=]MODEL")
    data: Path = option("A dataset with the models' vocabularies.", "DATA", default=REQUIRED)
    split: str = option("Of DATA.", "NAME", default="valid")
    sentences: int = option("Of the split, from its first on.", "N", default=64, min=1)
    point: list[str] | None = option(
        "A point, or a part of the model as torch names it; `*` stands for anything; may "
        "be repeated.  [default: all points]",
        "NAME",
    )
    out: Out = None
    picture: Format = "png"
    weights: Weights = "best"
    device: Device = "auto"
    json: JsonFile = None


@takes(ActivationsArguments)
def command(arguments: ActivationsArguments) -> None:
    """Show how large activations are along trained networks: mean and deviation at each point.

    Models read the references of a split, teacher forced. What is shown of each layer is what it
    passes on, and what it computes before its skip connection takes that in; the JSON has every
    point, also those before and after normalisation.
    """
    models, split = arguments.models, arguments.split
    check_out(arguments.out, arguments.json, [split_label(text)[1] for text in models])
    from nmtgrid.analysis.activations import activations_section

    profiles = measure(
        models,
        arguments.data,
        split,
        arguments.sentences,
        arguments.point or [],
        arguments.weights,
        arguments.device,
    )
    section = activations_section(profiles, split)
    show([section], arguments.out, arguments.picture, arguments.json)


def measure(
    models: Sequence[str],
    data: Path,
    split: str,
    sentences: int,
    patterns: Sequence[str],
    weights: WeightsName = "best",
    device: DeviceName = "auto",
) -> list[Profile]:
    """Return the activations of all models; every fault of the arguments is told before."""
    from nmtgrid.analysis.activations import profile, select_points
    from nmtgrid.analysis.systems import named_files
    from nmtgrid.base.devices import find_device
    from nmtgrid.cli.options import check_vocabularies
    from nmtgrid.data.dataset import Dataset
    from nmtgrid.models.directory import load_model

    named = named_files(models)
    computing_device = find_device(device)
    dataset = Dataset.open(data)
    pairs = dataset.split(split)
    # A fault of the last model shall show before minutes are spent on the first.
    for name, path in named.items():
        loaded = load_model(path, None, weights)
        check_vocabularies(loaded, dataset)
        select_points(loaded.model, patterns, name)
    profiles = []
    with console.progress("models", len(named)) as bar:
        for name, path in named.items():
            # Loaded again, so that memory has a single model at a time.
            model = load_model(path, None, weights).model
            profiles.append(
                profile(
                    name,
                    model,
                    pairs,
                    sentences=sentences,
                    patterns=patterns,
                    device=computing_device,
                )
            )
            bar.update(bar.task_ids[0], advance=1)
    return profiles
