"""`nmtgrid analyze activations`: means and deviations of activations along trained networks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmtgrid.base import console
from nmtgrid.base.io.atomic import split_label
from nmtgrid.cli.analyze.show import Format, Out, check_out, show
from nmtgrid.cli.options import Device, DeviceName, JsonFile, Weights, WeightsName

if TYPE_CHECKING:
    from nmtgrid.analysis.activations import Profile


def command(
    models: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]MODEL", help="Model directories, side by side."),
    ],
    data: Annotated[
        Path, typer.Option(metavar="DATA", help="A dataset with the models' vocabularies.")
    ],
    split: Annotated[str, typer.Option(metavar="NAME", help="Of DATA.")] = "valid",
    sentences: Annotated[
        int, typer.Option(metavar="N", min=1, help="Of the split, from its first on.")
    ] = 64,
    point: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A point, or a part of the model as torch names it; `*` stands for anything; may "
            "be repeated.  [default: all points]",
        ),
    ] = None,
    out: Out = None,
    picture: Format = "png",
    weights: Weights = "best",
    device: Device = "auto",
    json: JsonFile = None,
) -> None:
    """Show how large activations are along trained networks: mean and deviation at each point.

    Models read the references of a split, teacher forced. What is shown of each layer is what it
    passes on, and what it computes before its skip connection takes that in; the JSON has every
    point, also those before and after normalisation.
    """
    check_out(out, json, [split_label(text)[1] for text in models])
    from nmtgrid.analysis.activations import activations_section

    profiles = measure(models, data, split, sentences, point or [], weights, device)
    show([activations_section(profiles, split)], out, picture, json)


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
    for name, path in named.items():
        loaded = load_model(path, None, weights)
        check_vocabularies(loaded, dataset)
        select_points(loaded.model, patterns, name)
    profiles = []
    with console.progress("models", len(named)) as bar:
        for name, path in named.items():
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
