"""The options that several commands share, and what belongs to them.

    def command(device: Device = "auto", precision: Precision = "fp32", json: JsonFile = None):
        chosen = pick_device(device)
        ...
        write_report(json, values)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nmtgrid.base.errors import DeviceError

if TYPE_CHECKING:
    import torch

DeviceName = Literal["auto", "cpu", "cuda"]
PrecisionName = Literal["fp32", "bf16"]

Device = Annotated[
    DeviceName, typer.Option("--device", help="Where to compute; `auto`: on a GPU if there is one.")
]
Precision = Annotated[
    PrecisionName, typer.Option("--precision", help="`bf16` is faster where the machine has it.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything that is random.")]
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


def pick_device(name: str) -> torch.device:
    """Return the device called `name`. Raises DeviceError when it is not there."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            "`--device cuda` was asked for, but torch finds no CUDA device on this machine.",
            "Leave `--device` out or use `--device cpu`.",
        )
    return torch.device(name)


def write_report(path: Path | None, values: Mapping[str, Any]) -> None:
    """Write `values` as JSON to `path`: nothing for None, standard output for `-`."""
    if path is None:
        return
    if str(path) == "-":
        import json

        print(json.dumps(values, indent=2, ensure_ascii=False))
        return
    from nmtgrid.base.files import write_json

    write_json(path, values)
