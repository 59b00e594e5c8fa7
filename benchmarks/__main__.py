"""All benchmarks in one command, on a CPU or a GPU.

    python -m benchmarks [--only NAME,...] [--quick] [--device cpu|cuda] [--precision bf16]
        [--threads 1] [--lengths FILE] [--attn2d DIR] [--data DIR --peers-python PATH] [--out DIR]
    python -m benchmarks --first-gpu [--minutes 40] [--device cuda] [--out DIR]

Prints tables and, after each part, stores them with the figures as JSON in the folder --out.
Results of other parts are kept.

    machine      ceilings: matrix products and copies
    kernels      each fast kernel against its naive form; on CUDA the tiles of the Triton kernels
    training     updates of every architecture, at 16 x 24 x 24 and on true lengths
    decoding     steps, greedy search and beam 5 of every architecture
    twins        Pervasive Attention against a naive implementation with the same weights
    profile      the operators of one update
    compiled     a layer, eager and compiled (on a CPU only if named: needs a C++ compiler)
    whole        projected minutes of the whole IWSLT'14 training and seconds of its test set
    attn2d       comparison with the authors' code, a checkout of elbayadm/attn2d (--attn2d)
    peers        comparison with Eole, Joey NMT and CTranslate2 on a dataset (--data)

--first-gpu instead runs the steps that validate a new GPU, each with a time limit, and stores them
in DIR/first-gpu.json; run again, it continues with the steps that are not done. The default device
is then cuda; on a CPU, small models show that the steps run.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import (
    attn2d,
    decoding_speed,
    first_gpu,
    forms,
    kernels,
    machine,
    training_speed,
    twins,
    whole_run,
)
from benchmarks.peers import comparison
from benchmarks.store import Section, Store, to_markdown
from benchmarks.timing import Conditions, precisions
from nmtgrid.models import zoo

Part = Callable[[Conditions], Section]
BOTH = ("machine", "kernels", "attn2d", "peers")
"""Parts that measure all precisions in one run."""


def parts(options: argparse.Namespace) -> dict[str, Part]:
    """Return the parts by name."""
    names = options.architectures or zoo.text_architectures()
    return {
        "machine": machine.measure,
        "kernels": kernels.measure,
        "training": functools.partial(training_speed.measure, names=names),
        "decoding": functools.partial(decoding_speed.measure, names=names),
        "twins": twins.measure,
        "profile": forms.profile,
        "compiled": forms.compiled,
        "whole": whole_run.measure,
        "attn2d": functools.partial(attn2d.measure, folder=options.attn2d),
        "peers": functools.partial(
            comparison.measure_part,
            data=options.data,
            python=options.peers_python,
            folder=options.out.resolve() / "peers",
        ),
    }


def chosen(options: argparse.Namespace) -> list[str]:
    """Return the selected parts. Exits with a message for an unknown name."""
    known = list(parts(options))
    if options.only:
        names = options.only.split(",")
        wrong = [name for name in names if name not in known]
        if wrong:
            sys.exit(f"There is no part `{wrong[0]}`: the parts are {', '.join(known)}.")
        return [name for name in known if name in names]
    left_out = {"peers"} if options.device == "cuda" else {"compiled"}
    if options.data is None:
        left_out.add("peers")
    return [name for name in known if name not in left_out]


def conditions_of(options: argparse.Namespace) -> list[Conditions]:
    """Return the conditions, one for each precision."""
    common = Conditions(
        device=options.device, threads=options.threads, runs=1 if options.quick else options.runs,
        quick=options.quick, lengths=options.lengths,
    )  # fmt: skip
    asked = options.precision
    names = precisions(options.device) if asked == "both" else (asked,)
    return [dataclasses.replace(common, precision=name) for name in names]


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    result = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    result.add_argument("--only", default="", help="parts, separated by commas")
    result.add_argument("--architectures", nargs="+", choices=zoo.text_architectures())
    result.add_argument("--quick", action="store_true", help="small models, to test that it runs")
    result.add_argument("--first-gpu", action="store_true", help="validate a new GPU")
    result.add_argument("--minutes", type=float, default=40.0, help="time limit of --first-gpu")
    result.add_argument("--device", choices=("cpu", "cuda"), help="(default: cpu)")
    result.add_argument("--precision", choices=("bf16", "fp32", "both"), default="both",
                        help="(default: both, if this processor has bf16 products)")  # fmt: skip
    result.add_argument("--threads", type=int, default=1)
    result.add_argument("--runs", type=int, default=2, help="best of so many runs")
    result.add_argument("--lengths", type=Path, help="file of training lengths (or NMTGRID_DATA)")
    result.add_argument("--attn2d", type=Path, help="a checkout of elbayadm/attn2d")
    result.add_argument("--data", type=Path, help="a dataset of `nmtgrid preprocess`, for peers")
    result.add_argument("--peers-python", default=sys.executable, help="interpreter with the peers")
    result.add_argument("--out", type=Path, default=Path("runs/benchmarks"), help="a folder")
    return result


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and store."""
    options = parser().parse_args(arguments)
    options.device = options.device or ("cuda" if options.first_gpu else "cpu")
    if options.first_gpu:
        sys.exit(first_gpu.run(options))
    names, known = chosen(options), parts(options)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device on this machine.")
    name = f"cpu-{options.threads}-thread" if options.device == "cpu" else "cuda"
    store = Store(options.out, f"quick-{name}" if options.quick else name)
    torch.set_num_threads(options.threads)
    for part in names:
        every = conditions_of(options)
        for conditions in every[:1] if part in BOTH else every:
            key = part if part in BOTH else f"{part}, {conditions.precision}"
            section = known[part](conditions)
            # A section with quoted figures only does not replace a measurement.
            if section["tables"] or key not in store.read():
                store.put(key, section)
            print(to_markdown(key, section), flush=True)


if __name__ == "__main__":
    main()
