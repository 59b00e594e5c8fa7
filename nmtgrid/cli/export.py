"""`nmtgrid export`: writes a model for another program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from nmtgrid.base import console
from nmtgrid.cli.options import JsonFile, Weights, check_outputs, write_report

Quantization = Literal[
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16",
    "int8_bfloat16",
]  # fmt: skip


def command(
    model: Annotated[Path, Argument(metavar="MODEL", help="A model directory.")],
    to: Annotated[Literal["ctranslate2"], Option("--to", help="The program to write for.")],
    out: Annotated[
        Path, Option("--out", metavar="DIR", help="A new folder for the model and its text.")
    ],
    quantization: Annotated[
        Quantization,
        Option("--quantization", help="How weights are stored; int8 is smallest, fastest."),
    ] = "float32",
    weights: Weights = "best",
    json: JsonFile = None,
) -> None:
    """Write MODEL for another program: for CTranslate2, a fast engine for Transformers.

    The folder holds vocabularies and BPE codes too, and a README that says how to run it.
    """
    check_outputs({"--json": json})
    from nmtgrid.convert import to_ctranslate2
    from nmtgrid.models.directory import load_model

    loaded = load_model(model, weights=weights)
    files = to_ctranslate2.export(loaded, out, quantization)
    size = sum((out / name).stat().st_size for name in files)
    console.table("Exported", ("file", "kB"), [
        (name, round((out / name).stat().st_size / 1000)) for name in files
    ])  # fmt: skip
    console.say(f"`{out}/README.md` says how to run it with {to}.")
    write_report(
        json,
        {"to": to, "out": str(out), "quantization": quantization, "files": files, "bytes": size},
    )
