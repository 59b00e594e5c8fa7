"""`nmtgrid train`: options, progress and the plan; the work is done in `nmtgrid.training`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.options import Device, JsonFile, Leave, Overrides, check_outputs, write_report

Precision = Annotated[
    Literal["auto", "fp32", "bf16"] | None,
    typer.Option(help="`auto`: bf16 where it is faster than fp32.", show_default="auto"),
]


def command(
    data: Annotated[Path | None, typer.Argument(metavar="DATA", help="Dataset directory.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Model directory to write.")
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Architecture; see `--list`.", show_default="pervasive"),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The architecture's settings by name.", show_default="none"
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What is minimised.", show_default="likelihood"),
    ] = None,
    changes: Overrides = None,
    device: Device = "auto",
    precision: Precision = None,
    max_updates: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Updates to do; 0: no limit.", show_default="the preset's, or 50,000"
        ),
    ] = None,
    max_minutes: Annotated[
        float | None,
        typer.Option(
            metavar="M",
            help="Minutes to train, validation and saving included, carried over `--resume`; "
            "the last validation comes after them.",
            show_default="the preset's, or no limit",
        ),
    ] = None,
    max_epochs: Annotated[
        int | None,
        typer.Option(metavar="N", help="Epochs to do.", show_default="the preset's, or no limit"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Seed of everything that is random.", show_default="1"),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Several runs, such as 1,2,3 or 1..3, into OUT/seed-N."),
    ] = None,
    init: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Begin from another model's weights.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in OUT.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in OUT.")] = False,
    average: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Also try the mean of the last N checkpoints.",
            show_default="the preset's, or 0",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and its cost; train nothing.")
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="Show architectures, presets, objectives, settings.")
    ] = False,
    source_vocab_size: Annotated[
        int | None, typer.Option(metavar="N", help="For `--dry-run` without data.")
    ] = None,
    target_vocab_size: Annotated[
        int | None, typer.Option(metavar="N", help="For `--dry-run` without data.")
    ] = None,
    json: JsonFile = None,
) -> None:
    """Train a model on DATA into the model directory OUT.

    Stopping it by Ctrl-C or SIGTERM saves first and leaves with exit code 130 or 143; `--resume`
    goes on from there, as it does after a kill. Under torchrun each process takes a share of every
    update's batches: N of them do `batches.accumulation` x N batches an update.
    """
    from nmtgrid.training.distributed import processes_from_environment

    processes = processes_from_environment()
    if not processes.is_first:
        console.hush(f"process {processes.rank}")
        json = None
    check_outputs({"--json": json})
    if list_:
        from nmtgrid.cli.train.plan import show_list

        write_report(json, show_list(arch, objective, aside=json == Path("-")))
        return
    flags = {
        "training.precision": precision,
        "training.max_updates": max_updates,
        "training.max_minutes": max_minutes,
        "training.max_epochs": max_epochs,
        "training.seed": seed,
        "training.average": average,
    }
    from nmtgrid.training.resolve import Request

    request = Request(arch, preset, objective, tuple(changes or ()), flags)
    sizes = (source_vocab_size, target_vocab_size)
    faults = [
        f"`--{side}-vocab-size` is for `--dry-run` alone, without DATA: leave it out."
        for side, given in zip(("source", "target"), sizes, strict=True)
        if given is not None and not (dry_run and data is None)
    ]
    if init is not None and resume and seeds is None:
        faults.append(
            "`--init` and `--resume` contradict each other: a resumed run goes on from its own "
            "weights."
        )
    if data is None and not dry_run:
        faults.append("The dataset directory DATA is missing: `nmtgrid train DATA --out MODEL`.")
    if out is None and (resume or not dry_run):
        faults.append("`--out MODEL` is missing: where shall the model be written?")
    _check_arguments(resume, overwrite, seed, seeds, faults)
    from nmtgrid.cli.train.run import parse_seeds, run_all

    listed = None if seeds is None else parse_seeds(seeds)
    if dry_run:
        from nmtgrid.cli.train.plan import show_plan
        from nmtgrid.training.resolve import resolve, resolve_resumed

        if out is not None and resume and seeds is None:
            settings = resolve_resumed(out, request)
        else:
            settings = resolve(request)
        write_report(json, show_plan(settings, data, sizes))
        return
    assert data is not None and out is not None
    from nmtgrid.base.devices import find_device
    from nmtgrid.training.distributed import local_device, process_group

    chosen = find_device(device if processes.count == 1 else local_device(device))
    with process_group(processes, chosen):
        code, values = run_all(
            request, data, out, chosen, listed, processes,
            resume=resume, overwrite=overwrite, init=init,
        )  # fmt: skip
    write_report(json, values)
    if code:
        raise Leave(code)


def _check_arguments(
    resume: bool, overwrite: bool, seed: int | None, seeds: str | None, faults: list[str]
) -> None:
    if resume and overwrite:
        faults.append("`--resume` and `--overwrite` contradict each other; give one of them.")
    if seed is not None and seeds is not None:
        faults.append("`--seed` and `--seeds` contradict each other; give one of them.")
    if faults:
        raise ConfigError(faults)
