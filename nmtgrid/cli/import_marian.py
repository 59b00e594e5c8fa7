"""`nmtgrid import-marian`: converts a `MarianMTModel` of Hugging Face transformers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from nmtgrid.cli.import_report import report_import
from nmtgrid.cli.options import (
    INPUT_OUTPUT,
    REQUIRED,
    CommandArguments,
    JsonFile,
    argument,
    check_outputs,
    option,
    takes,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportArguments(CommandArguments):
    folder: Path = argument("Directory of a `MarianMTModel` and its tokenizer.", "DIR")
    out: Path = option("New model directory.", "MODEL", default=REQUIRED)
    source_lang: str | None = option("Source language, if the directory does not name it.")
    target_lang: str | None = option("Target language, if the directory does not name it.")
    json: JsonFile = None


@takes(
    ImportArguments,
    {INPUT_OUTPUT: "out source_lang target_lang"},
    "nmtgrid import-marian opus-mt-de-en --out MODEL",
)
def command(arguments: ImportArguments) -> None:
    """Convert a Marian model in the format of transformers, such as OPUS-MT.

    DIR has config.json, model.safetensors, vocab.json, source.spm and target.spm. MODEL gives the
    same log-probabilities and translations; settings that nmtgrid's Transformer does not support
    are refused.
    """
    folder = arguments.folder
    inputs = {f"DIR {path.name}": path for path in (folder.iterdir() if folder.is_dir() else ())}
    check_outputs({"--json": arguments.json}, {"--out": arguments.out, **inputs})
    from nmtgrid.convert.from_marian import import_folder

    facts = import_folder(folder, arguments.out, arguments.source_lang, arguments.target_lang)
    report_import(facts, {"beam": str(facts["search"]["beam"])}, arguments.json)
