"""`nmtgrid online-eval`: quality against latency of online translation, or of a foreign log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from nmtgrid.cli.online_eval.arguments import Arguments, check
from nmtgrid.cli.options import (
    Device,
    Ensemble,
    JsonFile,
    Precision,
    Weights,
    check_alone,
    check_outputs,
)
from nmtgrid.online.settings import read_settings

_OF_LOGS = ("log", "json", "unit", "convention", "device")
"""Options that may stand beside `--log`, which counts words and shows both conventions."""


def command(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL", help="Model directories, side by side; NAME=MODEL names one."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DATA", help="The dataset with the split.")
    ] = None,
    split: Annotated[str, typer.Option(metavar="NAME", help="What to translate.")] = "test",
    ensemble: Ensemble = None,
    k: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Wait-k: `1..9`, `1,3,5`, `1..9:2`; `inf` reads all first (offline).  "
            "[default: 1,3,5,7,9]",
        ),
    ] = None,
    thresholds: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Let the model's own agent read on above this probability: `0.1..0.9:0.1`.",
        ),
    ] = None,
    oracle: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Decode along the oracle's paths, for each weight lambda of the delay: `0,1`.",
        ),
    ] = None,
    oracle_cost: Annotated[
        Literal["delay", "printed"],
        typer.Option(help="Reading cost of the oracle; `printed` is the thesis' to the letter."),
    ] = "delay",
    source: Annotated[
        Literal["words", "line"],
        typer.Option(
            help="Tokenise the source word by word, as it would arrive, or the whole line, as the "
            "dataset is and as published figures were made; that knows words to come."
        ),
    ] = "words",
    unit: Annotated[
        Literal["token", "word"] | None,
        typer.Option(
            help="What latency counts: subword units, or words: the source's (see `--source`), and "
            "tokenised ones of the target.  [default: token]"
        ),
    ] = None,
    convention: Annotated[
        Literal["thesis", "simuleval"],
        typer.Option(
            help="|y| is the hypothesis' length, or as SimulEval has it: AL and AP by the "
            "reference's (words only)."
        ),
    ] = "thesis",
    beam: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Width of the beam; 1 is greedy. With more nothing is final before the end: "
            "latency is that of the best hypothesis.",
        ),
    ] = 1,
    finish_reading: Annotated[
        bool,
        typer.Option("--finish-reading", help="No translation ends before its source is read."),
    ] = False,
    sentences: Annotated[
        int | None, typer.Option(metavar="N", help="Only the first N.  [default: all]")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Results, translations, traces, curve and paths."),
    ] = None,
    simuleval: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="One log a setting, for `simuleval --score-only --sacrebleu-tokenizer none "
            "--output`.",
        ),
    ] = None,
    published: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Lay published curves under ours, such as `iwslt14-de-en`."
        ),
    ] = None,
    lines: Annotated[
        list[int] | None,
        typer.Option("--line", metavar="N", help="Draw the paths of line N; may be repeated."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Score this `instances.log` of SimulEval; needs no model."
        ),
    ] = None,
    exit: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|N|auto",
            help="Leave the decoder early, as `decode --exit` does; all models.",
        ),
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option(metavar="N", help="Source tokens x beam of a batch.")
    ] = 4000,
    weights: Weights = "best",
    precision: Precision = "fp32",
    device: Device = "auto",
    json: JsonFile = None,
) -> None:
    """Translate a split as if its source came word by word; show BLEU against latency.

    One row for each setting: BLEU, average proportion AP, average lagging AL, DAL, consecutive
    wait CW and the longest one, LAAL, YAAL, and the length ratio. `--log` scores the log of another
    program, in both conventions.
    """
    if log is not None:
        check_alone(context, "--log scores what another program has done", _OF_LOGS)
        check_outputs({"--json": json}, {"--log": log})
        from nmtgrid.cli.online_eval.run import score_log

        score_log(log, json)
        return
    order = Arguments(
        models=models or [],
        data=data,
        split=split,
        oracle_cost=oracle_cost,
        unit=unit or ("word" if convention == "simuleval" else "token"),
        convention=convention,
        beam=beam,
        finish_reading=finish_reading,
        sentences=sentences,
        out=out,
        simuleval=simuleval,
        published=published,
        lines=lines or [],
        batch_tokens=batch_tokens,
        weights=weights,
        precision=precision,
        device=device,
        exit=exit,
        source=source,
        ensemble=ensemble or [],
    )
    check_outputs({"--json": json})
    settings = check(order, lambda: read_settings(k, thresholds, oracle))
    from nmtgrid.cli.online_eval.run import evaluate

    evaluate(order, settings, json)
