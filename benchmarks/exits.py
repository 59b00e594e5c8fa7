"""Greedy decoding with early exits against the same Transformer with all blocks.

    python -m benchmarks.exits [--sizes 256 128] [--norm pre] [--threads 1] [--runs 5] [--out FILE]

64 random sentences of 25 tokens are translated into 25 tokens, followed by a forced end symbol.
Exits are given, so that only the savings of exiting early are measured, not the cost of decisions.
Their mean is 2.0. They are sampled for each token from a geometric distribution truncated at 6
blocks ("geometric"), from 1 + a binomial distribution ("binomial"), or uniformly from 1, 2 and 3
("three"); or all are 2 ("fixed"). The longer the tail, the more blocks run for a few rows only, at
the cost of loading their weights from memory. The variants are interleaved in one process; the best
of several runs counts.

`whole` is the ratio of seconds of the whole search, `steps` that without the encoder.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.timing import Clock, Row, Workload, facts
from nmtgrid.adaptive.halting import GivenExits
from nmtgrid.base.io.atomic import write_json
from nmtgrid.models import zoo
from nmtgrid.models.api import Halt, TranslationModel
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.engine import search
from nmtgrid.text.vocabulary import END

BLOCKS, SENTENCES, LENGTH, TYPES = 6, 64, 25, 8000
WIDTHS = {256: 1024, 128: 256}
"""Feed-forward size by model size."""
MEAN = 2.0


def make_model(size: int, norm: str, exits: str) -> TranslationModel:
    """Return a Transformer of 6+6 blocks with random weights."""
    torch.manual_seed(1)
    settings = {"size": size, "feed_forward_size": WIDTHS[size], "heads": 4, "norm": norm}
    model = zoo.build(
        "transformer", None, {**settings, "exits": exits},
        source_vocab_size=TYPES, target_vocab_size=TYPES,
    )  # fmt: skip
    return model.eval()


def geometric(mean: float) -> Tensor:
    """Return the probabilities [N] of a geometric distribution over 1 .. N with this mean."""
    exits = torch.arange(1, BLOCKS + 1, dtype=torch.float64)
    low, high = 1e-6, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        shares = middle ** (exits - 1)
        shares = shares / shares.sum()
        low, high = (middle, high) if float(shares @ exits) < mean else (low, middle)
    return shares


def binomial(mean: float) -> Tensor:
    """Return the probabilities [N] of 1 + a binomial variable of N - 1 trials, with this mean."""
    trials, chance = BLOCKS - 1, (mean - 1) / (BLOCKS - 1)
    shares = [
        math.comb(trials, n) * chance**n * (1 - chance) ** (trials - n) for n in range(BLOCKS)
    ]
    return torch.tensor(shares, dtype=torch.float64)


KINDS = {
    "geometric": geometric(MEAN),
    "binomial": binomial(MEAN),
    "three": torch.tensor([1.0, 1.0, 1.0]),
    "fixed": torch.tensor([0.0, 1.0]),
}
"""Unnormalised frequencies of the exits."""


def draw_exits(kind: str) -> Tensor:
    """Return exits [64, 26] with a mean near 2."""
    draw = torch.Generator().manual_seed(1)
    count = SENTENCES * (LENGTH + 1)
    drawn = torch.multinomial(KINDS[kind], count, True, generator=draw) + 1
    return drawn.view(SENTENCES, LENGTH + 1)


def measure(clock: Clock, size: int, norm: str, exits: str) -> Row:
    """Return seconds and their ratios for one model."""
    model = make_model(size, norm, exits)
    source = torch.randint(3, TYPES, (SENTENCES, LENGTH + 1))
    source[:, -1] = END
    lengths = torch.full((SENTENCES,), LENGTH + 1)
    plan = SearchPlan(max_length_a=LENGTH, max_length_b=0, min_length=LENGTH)

    def workload(halt: Halt | None) -> Workload:
        return lambda: search([model], source, lengths, plan, halt=halt)

    @torch.no_grad()
    def encode() -> None:
        model.begin(source, lengths)

    kinds = {kind: draw_exits(kind) for kind in KINDS}
    workloads: dict[str, Workload] = {"encoder": encode, "all blocks": workload(None)}
    workloads |= {kind: workload(GivenExits(table)) for kind, table in kinds.items()}
    seconds = clock.best(workloads)
    whole, encoder = seconds["all blocks"], seconds["encoder"]
    return {
        "size": size,
        "norm": norm,
        "exits": exits,
        "seconds": seconds,
        "average_exit": {kind: float(table.double().mean()) for kind, table in kinds.items()},
        "whole": {kind: whole / seconds[kind] for kind in kinds},
        "steps": {kind: (whole - encoder) / (seconds[kind] - encoder) for kind in kinds},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--norm", default="pre", choices=("pre", "post"))
    parser.add_argument("--exits", default="tied", choices=("tied", "separate"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = Clock("cpu", options.runs)
    rows = [measure(clock, size, options.norm, options.exits) for size in options.sizes]
    report = {**facts("cpu"), "rows": rows}
    print(json.dumps(report, indent=1))
    if options.out:
        write_json(options.out, report)


if __name__ == "__main__":
    main()
