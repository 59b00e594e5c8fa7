"""`nmtgrid adaptive-tune`: thresholds of early exit, chosen on a split and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from nmtgrid.cli.adaptive_tune.arguments import Arguments, check
from nmtgrid.cli.options import Device, JsonFile, Precision, Weights, check_alone, check_outputs

_OF_RESULTS = ("results", "out", "json")
"""Options that `--results` heeds."""


def command(
    context: typer.Context,
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="A model directory, with early exits.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DATA", help="The dataset with the splits.")
    ] = None,
    split: Annotated[str, typer.Option(metavar="NAME", help="What to tune on.")] = "valid",
    test_split: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What to measure the chosen thresholds on as well."),
    ] = None,
    samples: Annotated[
        int, typer.Option(metavar="N", help="Vectors of thresholds to sample and replay.")
    ] = 10_000,
    budget: Annotated[
        float, typer.Option(metavar="WIDTH", help="Blocks between two budgets of average exit.")
    ] = 0.5,
    finalists: Annotated[
        int, typer.Option(metavar="N", help="Vectors of each budget that are truly decoded.")
    ] = 3,
    mechanism: Annotated[
        Literal["confidence", "geometric", "multinomial", "sequence"] | None,
        typer.Option(help="What decides.  [default: the model's own predictor, else confidence]"),
    ] = None,
    judge: Annotated[
        Literal["full", "references"],
        typer.Option(
            help="What is forced and compared when thresholds are replayed: the full stack's own "
            "translations, or the references."
        ),
    ] = "full",
    only: Annotated[
        Literal["points", "fixed"] | None,
        typer.Option(
            help="Leave out what stands beside the tuned points, or tune nothing and measure fixed "
            "and random exits alone."
        ),
    ] = None,
    baselines: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MODEL",
            help="A model trained separately, to measure beside; may be repeated.",
        ),
    ] = None,
    allow_loss: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT",
            help="Calibrate instead: the fastest thresholds that lose at most so much, promised "
            "with `--confidence`.",
        ),
    ] = None,
    risk: Annotated[
        Literal["bleu", "agreement"] | None,
        typer.Option(
            help="With `--allow-loss`: the mean loss of sentence BLEU, or the share of units that "
            "differ from the full stack's.  [default: bleu]"
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(metavar="P", help="With `--allow-loss`: of the promise.  [default: 0.95]"),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="With `--allow-loss`: vectors from safest to fastest.  [default: 20]"
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Under `NAME-BUDGET` the thresholds are kept in MODEL, for `decode --exit`.  "
            "[default: the mechanism]",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Keep them in the model's directory.")
    ] = True,
    beam: Annotated[int, typer.Option(metavar="N", help="Width of the beam; 1 is greedy.")] = 1,
    batch: Annotated[int, typer.Option(metavar="N", help="Sentences decoded together.")] = 64,
    repeats: Annotated[
        int, typer.Option(metavar="N", help="Each batch is timed so often; the least counts.")
    ] = 1,
    clock: Annotated[
        Literal["wall", "processor"],
        typer.Option(help="What seconds are; `processor` where other programs run beside."),
    ] = "wall",
    sentences: Annotated[
        int | None, typer.Option(metavar="N", help="Only the first N of each split.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 1,
    results: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]DIR",
            help="Draw tunings done before in one picture, those of one name pooled; may be "
            "repeated, needs no model.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|FILE",
            help="Results and picture: a folder, or a .json file (with `--results`: a picture).",
        ),
    ] = None,
    weights: Weights = "best",
    precision: Precision = "fp32",
    device: Device = "auto",
    json: JsonFile = None,
) -> None:
    """Choose where tokens may leave the decoder; show BLEU against average exit, FLOPs and seconds.

    What each exit would decide and write is recorded once; thousands of vectors of thresholds are
    replayed on that, and only the few best of each budget are decoded. Beside them stand fixed
    exits, exits drawn at random, the full stack and models trained separately.
    """
    if results:
        check_alone(context, "--results draws what was done before", _OF_RESULTS)
        from nmtgrid.cli.adaptive_tune.show import draw_results

        draw_results(results, out, json)
        return
    given = {"--risk": risk, "--confidence": confidence, "--candidates": candidates}
    order = Arguments(
        model=model,
        data=data,
        split=split,
        test_split=test_split,
        samples=samples,
        budget=budget,
        finalists=finalists,
        mechanism=mechanism,
        judge=judge,
        only=only,
        baselines=baselines or [],
        allow_loss=allow_loss,
        risk=risk or "bleu",
        confidence=0.95 if confidence is None else confidence,
        candidates=20 if candidates is None else candidates,
        name=name,
        keep=keep,
        beam=beam,
        batch=batch,
        repeats=repeats,
        clock=clock,
        sentences=sentences,
        seed=seed,
        out=out,
        weights=weights,
        precision=precision,
        device=device,
    )
    check(order, [option for option, value in given.items() if value is not None])
    check_outputs({"--json": json})
    from nmtgrid.cli.adaptive_tune.run import tune

    tune(order, json)
