"""`nmtgrid train`: options, progress and the plan; the work is done in `nmtgrid.training`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.options import (
    Leave,
    check_outputs,
    check_rules,
    config_input,
    takes,
    write_report,
)
from nmtgrid.cli.train.arguments import LIST_RULES, PANELS, RULES, SETTINGS, TrainArguments

if TYPE_CHECKING:
    from nmtgrid.training.prepare import Request

_LIST_WITH_FILE = "`--list` lists what can be set, so `--config` would be ignored."


@takes(
    TrainArguments,
    PANELS,
    "nmtgrid train DATA --arch pervasive --preset multi30k --max-minutes 60 --out MODEL",
    "nmtgrid train DATA --set model.depth=8 --set training.learning_rate=0.001 --out MODEL",
    "nmtgrid train --list --arch pervasive",
)
def command(arguments: TrainArguments) -> None:
    """Train a model on DATA and write the model directory OUT.

    Ctrl-C or SIGTERM saves the run and exits with code 130 or 143; `--resume` continues it, also
    after a kill. Under torchrun each process computes a share of the batches of every update: N
    processes compute `batches.accumulation` x N batches per update.

    Settings of a `--config` file override those of its preset, and are overridden by options and
    `--set`. The `config.json` of a model directory is such a file too: it trains the same model
    again.
    """
    from nmtgrid.training.distributed import processes_from_environment

    processes = processes_from_environment()
    # All processes do the same up to the training; the first one prints and writes for all.
    if not processes.is_first:
        console.mute(f"process {processes.rank}")
        arguments = dataclasses.replace(arguments, json=None)
    if arguments.list_:
        _list(arguments)
        return
    file = arguments.config
    if file is None or not file.faults:
        check_rules(arguments, RULES)
    _check_files(arguments)
    from nmtgrid.cli.train import run
    from nmtgrid.training.prepare import Request

    request = Request(
        arch=arguments.arch,
        preset=arguments.preset,
        objective=arguments.objective,
        changes=tuple(arguments.changes or ()),
        flags={f"training.{name}": getattr(arguments, name) for name in SETTINGS},
        file=file,
    )
    if file is not None and file.faults:
        _show(arguments, request, None)  # raises an error that names all faults
    seeds = None if arguments.seeds is None else run.parse_seeds(arguments.seeds, request)
    if arguments.resume and arguments.data is None:
        arguments = dataclasses.replace(arguments, data=run.find_data(arguments.out, seeds))
    if arguments.dry_run or arguments.dump_config is not None:
        resumed = run.find_begun(arguments.out, seeds) if arguments.resume else None
        _show(arguments, request, resumed, seeds)
        return
    from nmtgrid.base.devices import find_device
    from nmtgrid.training.distributed import local_device, process_group

    if arguments.tensorboard:
        run.import_tensorboard()  # a missing package is an error now, not after the first epoch

    name = arguments.device if processes.count == 1 else local_device(arguments.device)
    device = find_device(name, is_training=True)
    with process_group(processes, device):
        code, report = run.run_all(arguments, request, seeds, device, processes)
    write_report(arguments.json, report)
    # Stopped by a signal, not by an exception: state and report have been written.
    if code:
        raise Leave(code)


def _check_files(arguments: TrainArguments) -> None:
    """Raise ConfigError for files that cannot be written, or that have the model's own path."""
    outputs = {"--json": arguments.json, "--dump-config": arguments.dump_config}
    check_outputs(outputs, config_input(arguments))
    paths = arguments.json, arguments.out
    if None not in paths and len({os.path.realpath(path) for path in paths if path}) == 1:
        raise ConfigError(
            f"`--json {arguments.json}` is also the model directory `--out`.",
            "Give a file for the report.",
        )


def _list(arguments: TrainArguments) -> None:
    """List the architectures, presets and objectives."""
    check_rules(arguments, LIST_RULES, [] if arguments.config is None else [_LIST_WITH_FILE])
    check_outputs({"--json": arguments.json})
    from nmtgrid.cli.train.plan import print_list

    # A report on standard output must not be mixed with tables.
    aside = arguments.json == Path("-")
    write_report(arguments.json, print_list(arguments.arch, arguments.objective, aside=aside))


def _show(
    arguments: TrainArguments,
    request: Request,
    resumed: Path | None,
    seeds: Sequence[int] | None = None,
) -> None:
    """Write the settings of a run, or of the first of several `seeds`, or print its plan."""
    from nmtgrid.cli.objectives import objectives
    from nmtgrid.cli.train.plan import print_plan, write_config
    from nmtgrid.cli.train.run import check_begin, find_test_split, settings_of_seed
    from nmtgrid.training.prepare import resolve

    if seeds is None:
        settings = resolve(request, objectives, resumed)
    else:
        settings = settings_of_seed(request, seeds[0], resumed)
    for note in request.without_effect(settings):
        console.warn(note)
    if arguments.dump_config is not None:
        write_config(arguments.dump_config, settings, arguments)
    else:
        check_begin(arguments, settings)
        if arguments.data is not None:
            find_test_split(arguments)  # raises the error that training would
        write_report(arguments.json, print_plan(settings, arguments))
