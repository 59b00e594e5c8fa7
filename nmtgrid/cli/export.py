"""`nmtgrid export`: converts a model for another program."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from nmtgrid.base import console
from nmtgrid.base.config import to_json
from nmtgrid.cli.options import (
    REQUIRED,
    CommandArguments,
    JsonFile,
    Weights,
    argument,
    check_outputs,
    option,
    takes,
    write_report,
)

Quantization = Literal[
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16",
    "int8_bfloat16",
]  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportArguments(CommandArguments):
    model: Path = argument("A model directory.", "MODEL")
    to: Literal["ctranslate2"] = option("Target program.", default=REQUIRED)
    out: Path = option("New folder for the model and its text pipeline.", "DIR", default=REQUIRED)
    quantization: Quantization = option(
        "Type of the weights; int8 is smallest and fastest.", default="float32"
    )
    weights: Weights = "best"
    json: JsonFile = None


@takes(
    ExportArguments,
    {"Output": "to out quantization"},
    "nmtgrid export MODEL --to ctranslate2 --quantization int8 --out DIR",
)
def command(arguments: ExportArguments) -> None:
    """Convert MODEL for another program: CTranslate2, a fast engine for Transformers.

    The folder also contains the vocabularies, the BPE codes, and a README with instructions.
    """
    # Checked before the model is loaded, which takes the longest.
    check_outputs({"--json": arguments.json}, {"--out": arguments.out})
    from nmtgrid.data.directory import check_replaceable

    check_replaceable(arguments.out, overwrite=None)
    from nmtgrid.convert import to_ctranslate2
    from nmtgrid.models.directory import load_model
    from nmtgrid.search.translate import default_plan

    model, out = load_model(arguments.model, weights=arguments.weights), arguments.out
    search = to_json(default_plan(model))
    files = to_ctranslate2.export(model, out, search, arguments.quantization)
    sizes = {name: (out / name).stat().st_size for name in files}
    rows = [(name, round(size / 1000)) for name, size in sizes.items()]
    console.table("Exported", ("file", "kB"), rows)
    console.say(f"`{out}/README.md` says how to run it with {arguments.to}.")
    facts = {"to": arguments.to, "out": str(out), "quantization": arguments.quantization}
    write_report(arguments.json, {**facts, "files": files, "bytes": sum(sizes.values())})
