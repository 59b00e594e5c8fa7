"""`nmtgrid import-fairseq`: takes over a model that was trained with fairseq."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from nmtgrid.base import console
from nmtgrid.base.config import to_json
from nmtgrid.cli.options import JsonFile, check_outputs, write_report


def command(
    checkpoint: Annotated[
        Path, Argument(metavar="CHECKPOINT", help="A checkpoint, such as checkpoint_best.pt.")
    ],
    dict_source: Annotated[
        Path, Option("--dict-source", metavar="FILE", help="fairseq's `dict.<source>.txt`.")
    ],
    dict_target: Annotated[
        Path, Option("--dict-target", metavar="FILE", help="fairseq's `dict.<target>.txt`.")
    ],
    out: Annotated[
        Path, Option("--out", metavar="MODEL", help="A new folder for the model directory.")
    ],
    codes: Annotated[
        Path | None,
        Option(
            "--codes",
            metavar="FILE",
            help="BPE codes of subword-nmt or fastBPE; without them the units are words.",
        ),
    ] = None,
    codes_target: Annotated[
        Path | None,
        Option("--codes-target", metavar="FILE", help="The target's codes, if of its own."),
    ] = None,
    source_lang: Annotated[
        str | None, Option("--source-lang", help="Where the checkpoint does not say it.")
    ] = None,
    target_lang: Annotated[
        str | None, Option("--target-lang", help="Where the checkpoint does not say it.")
    ] = None,
    tokenize: Annotated[
        Literal["moses", "none"], Option("--tokenize", help="How its training text was tokenised.")
    ] = "moses",
    lowercase: Annotated[
        bool, Option("--lowercase", help="Its training text was lower-cased.")
    ] = False,
    json: JsonFile = None,
) -> None:
    """Take over a Transformer, ConvS2S, LSTM or Pervasive Attention model of fairseq or attn2d.

    Nothing that the file holds is run. MODEL gives the same log-probabilities; what our models
    cannot express is refused by the name of the option.
    """
    check_outputs({"--json": json})
    from nmtgrid.convert.from_fairseq.model import TextFiles, import_checkpoint

    files = TextFiles(
        dict_source, dict_target, codes, codes_target, source_lang, target_lang, tokenize, lowercase
    )
    model = import_checkpoint(checkpoint, files, out)
    console.table("Taken over", ("what", "value"), [
        ("theirs", model.theirs),
        ("ours", model.arch),
        ("parameters", f"{model.parameters:,}"),
        ("source types", f"{model.vocabularies[0]:,}"),
        ("target types", f"{model.vocabularies[1]:,}"),
    ])  # fmt: skip
    for note in model.notes:
        console.say(f"Note: {note}.")
    console.say(f"`nmtgrid decode {out}` translates with it.")
    write_report(
        json,
        {
            "theirs": model.theirs,
            "arch": model.arch,
            "model": to_json(model.config),
            "parameters": model.parameters,
            "source_types": model.vocabularies[0],
            "target_types": model.vocabularies[1],
            "notes": model.notes,
            "out": str(out),
        },
    )
