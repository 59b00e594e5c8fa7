"""`nmtgrid import-marian`: takes over a model of transformers' `MarianMTModel`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from nmtgrid.base import console
from nmtgrid.base.config import to_json
from nmtgrid.cli.options import (
    GENERAL,
    INPUT_OUTPUT,
    REQUIRED,
    CommandArguments,
    JsonFile,
    argument,
    check_outputs,
    option,
    takes,
    write_report,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportArguments(CommandArguments):
    """The arguments of `import-marian`."""

    folder: Path = argument("Directory of a `MarianMTModel` and its tokenizer.", "DIR")
    out: Path = option("New model directory.", "MODEL", default=REQUIRED)
    source_lang: str | None = option("Source language, if the directory does not name it.")
    target_lang: str | None = option("Target language, if the directory does not name it.")
    json: JsonFile = None


@takes(
    ImportArguments,
    {INPUT_OUTPUT: "out source_lang target_lang", GENERAL: "json"},
    "nmtgrid import-marian opus-mt-de-en --out MODEL",
)
def command(arguments: ImportArguments) -> None:
    """Convert a Marian model in the format of transformers, such as OPUS-MT.

    DIR has config.json, model.safetensors, vocab.json, source.spm and target.spm. MODEL gives the
    same log-probabilities and translations; settings that nmtgrid's Transformer does not support
    are refused.
    """
    check_outputs({"--json": arguments.json})
    from nmtgrid.convert.from_marian import import_folder

    model = import_folder(
        arguments.folder, arguments.out, arguments.source_lang, arguments.target_lang
    )
    rows = [
        ("parameters", f"{model.parameters:,}"),
        ("source types", f"{model.vocabularies[0]:,}"),
        ("target types", f"{model.vocabularies[1]:,}"),
        ("beam", f"{model.search['beam']}"),
    ]
    console.table("Converted", ("what", "value"), rows)
    for note in model.notes:
        console.say(f"Note: {note}.")
    console.say(f"`nmtgrid decode {arguments.out}` translates with it.")
    report = {
        "arch": "transformer",
        "model": to_json(model.config),
        "parameters": model.parameters,
        "source_types": model.vocabularies[0],
        "target_types": model.vocabularies[1],
        "search": model.search,
        "notes": model.notes,
        "out": str(arguments.out),
    }
    write_report(arguments.json, report)
