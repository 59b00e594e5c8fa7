"""`nmtgrid import-fairseq`: converts a model that was trained with fairseq."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from nmtgrid.base.config import from_attributes
from nmtgrid.cli.import_report import report_import
from nmtgrid.cli.options import (
    INPUT_OUTPUT,
    REQUIRED,
    CommandArguments,
    JsonFile,
    argument,
    check_outputs,
    flag,
    option,
    takes,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportArguments(CommandArguments):
    checkpoint: Path = argument("A checkpoint, such as checkpoint_best.pt.", "CHECKPOINT")
    dict_source: Path = option("fairseq's `dict.<source>.txt`.", "FILE", default=REQUIRED)
    dict_target: Path = option("fairseq's `dict.<target>.txt`.", "FILE", default=REQUIRED)
    out: Path = option("New model directory.", "MODEL", default=REQUIRED)
    codes: Path | None = option(
        "BPE codes of subword-nmt or fastBPE; without them the units are words.", "FILE"
    )
    codes_target: Path | None = option("BPE codes of the target, if separate.", "FILE")
    source_lang: str | None = option("Source language, if the checkpoint does not name it.")
    target_lang: str | None = option("Target language, if the checkpoint does not name it.")
    tokenize: Literal["moses", "none"] = option("Tokeniser of the training text.", default="moses")
    lowercase: bool = flag("--lowercase", "The training text was lower-cased.")
    json: JsonFile = None


@takes(
    ImportArguments,
    {
        INPUT_OUTPUT: "dict_source dict_target codes codes_target out",
        "Text": "source_lang target_lang tokenize lowercase",
    },
    "nmtgrid import-fairseq checkpoint_best.pt --dict-source dict.de.txt "
    "--dict-target dict.en.txt --codes bpe.codes --lowercase --out MODEL",
)
def command(arguments: ImportArguments) -> None:
    """Convert a Transformer, ConvS2S, LSTM or Pervasive Attention model of fairseq or attn2d.

    No code in the file is executed. MODEL gives the same log-probabilities; options that nmtgrid
    does not support are refused by name.
    """
    inputs = {
        "CHECKPOINT": arguments.checkpoint,
        "--dict-source": arguments.dict_source,
        "--dict-target": arguments.dict_target,
        "--codes": arguments.codes,
        "--codes-target": arguments.codes_target,
    }
    check_outputs({"--json": arguments.json}, {"--out": arguments.out, **inputs})
    from nmtgrid.convert.from_fairseq.model import TextFiles, import_checkpoint

    text = from_attributes(TextFiles, arguments)
    facts = import_checkpoint(arguments.checkpoint, text, arguments.out)
    rows = {"theirs": facts["theirs"], "ours": facts["arch"]}
    report_import(facts, rows, arguments.json)
