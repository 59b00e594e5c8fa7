"""Whether a dataset is one that a model can be measured on."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError, DataError
from nmtgrid.base.io.atomic import nan_to_none
from nmtgrid.base.io.text import STANDARD, is_stream, open_writer
from nmtgrid.data.dataset import Dataset
from nmtgrid.models.directory import LoadedModel
from nmtgrid.search.translate import Translator

DeviceName = Literal["auto", "cpu", "cuda"]
PrecisionName = Literal["fp32", "bf16"]

Device = Annotated[
    DeviceName, typer.Option("--device", help="Where to compute; `auto`: on a GPU if there is one.")
]
Precision = Annotated[
    PrecisionName, typer.Option("--precision", help="`bf16` may be faster, above all on a GPU.")
]
WeightsName = Literal["best", "last", "average"]
Weights = Annotated[WeightsName, typer.Option("--weights", help="Which weights of MODEL.")]
Ensemble = Annotated[
    list[Path] | None,
    typer.Option("--ensemble", metavar="MODEL2", help="Average with this model; may be repeated."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change one setting; may be repeated."),
]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write what the tables show (`-`: to the screen)."),
]
Workers = Annotated[
    int, typer.Option("--workers", min=0, help="Processes to use; 0 takes one for each core.")
]


ONE_LEAVES = "`--exit` leaves one decoder early; it cannot go with `--ensemble`."
"""What is said where both are given."""
PIPE_CLOSED = 1
"""The exit code when the reader of standard output has gone away."""


class Leave(Exception):
    """Ends the program with `code`: all that is to be said has been said."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)


def check_outputs(
    outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None] | None = None
) -> None:
    """Raise ConfigError unless each file (by its option) can be written and is no other's.

    Asked before the work begins: nobody should learn after hours that a folder is missing.
    """
    faults: list[str] = []
    taken: dict[str, str] = {}
    for name, path in (inputs or {}).items():
        if path is not None and str(path) != STANDARD:
            taken[os.path.realpath(path)] = name
    for name, path in outputs.items():
        if path is None:
            continue
        faults += unwritable(name, path)
        key = STANDARD if str(path) == STANDARD else os.path.realpath(path)
        # Pipes and devices, such as /dev/null, may take several outputs.
        if key in taken and not (key != STANDARD and is_stream(path)):
            faults.append(f"`{name} {path}` is what `{taken[key]}` names: give another file.")
        taken[key] = name
    if faults:
        raise ConfigError(faults)


def check_alone(context: typer.Context, what: str, fits: Collection[str]) -> None:
    """Raise ConfigError for arguments on the command line other than `fits` (parameters' names).

    `what` is the option that has no use for them, and what it does: "--log scores ...".
    """
    given = [
        "MODEL" if one.param_type_name == "argument" else f"`{one.opts[0]}`"
        for one in context.command.params
        if one.name not in fits
        and (source := context.get_parameter_source(one.name or "")) is not None
        and source.name == "COMMANDLINE"
    ]
    if given:
        option, _, does = what.partition(" ")
        raise ConfigError(
            f"`{option}` {does}, so that {', '.join(given)} would be ignored.",
            f"Leave out {', '.join(given)}.",
        )


def unwritable(name: str, path: Path) -> list[str]:
    """Return why the file that the option `name` gives cannot be written, if so."""
    if str(path) == STANDARD:
        return []
    if path.is_dir():
        return [f"`{name} {path}` is a folder: name a file."]
    if not path.parent.is_dir():
        return [f"`{name} {path}`: there is no folder {path.parent}. Make it, or mend the path."]
    if not os.access(path if is_stream(path) else path.parent, os.W_OK):
        return [f"`{name} {path}` cannot be written: its folder may only be read."]
    return []


def unusable(name: str, folder: Path | None) -> list[str]:
    """Return why nothing can be put into the folder that the option `name` gives, if so.

    It may be missing, as long as it can be made.
    """
    if folder is None:
        return []
    held = next(one for one in (folder, *folder.parents) if os.path.exists(one))
    if not held.is_dir():
        where = "" if held == folder else f": {held}"
        return [f"`{name} {folder}`{where} is a file: name a folder."]
    if not os.access(held, os.W_OK | os.X_OK):
        return [f"`{name} {folder}` cannot be written: {held} may only be read."]
    return []


def write_report(path: Path | None, values: Mapping[str, Any]) -> None:
    """Write `values` as JSON to `path`: nothing for None, standard output for `-`.

    What is no finite number becomes null.
    """
    if path is None:
        return
    text = json.dumps(nan_to_none(values), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with open_writer(path) as file:
        # File names may hold what is no character: as an escape it is good JSON.
        file.write(text.encode("utf-8", "backslashreplace"))


def check_same_text(translator: Translator, dataset: Dataset) -> None:
    """Raise DataError unless model and dataset are of one direction.

    Warns where words or cases of their texts are made in different ways.
    """
    ours, theirs = translator.pipeline.facts, dataset.pipeline.facts
    if (ours.source_lang, ours.target_lang) != (theirs.source_lang, theirs.target_lang):
        raise DataError(
            f"The model translates {ours.source_lang}-{ours.target_lang}, but {dataset.path} "
            f"is {theirs.source_lang}-{theirs.target_lang}.",
            "Use a dataset of the model's direction.",
        )
    for name in ("tokenize", "lowercase"):
        made, given = getattr(ours, name), getattr(theirs, name)
        if made != given:
            console.warn(
                f"{dataset.path} has {name}={given}, but the model's text {name}={made}: scores "
                "compare what was prepared in different ways."
            )


def check_vocabularies(model: Translator | LoadedModel, dataset: Dataset) -> None:
    """Raise DataError unless the dataset's ids are the model's."""
    ours, theirs = model.pipeline, dataset.pipeline
    for side in ("source", "target"):
        types = [getattr(one, f"{side}_vocabulary").types for one in (ours, theirs)]
        if types[0] != types[1]:
            raise DataError(
                f"The {side} vocabularies of the model and of {dataset.path} differ "
                f"({len(types[0]):,} and {len(types[1]):,} types).",
                "Use the dataset that the model was trained on.",
            )
