"""Counts decoding steps recorded as CUDA graphs, by padding rule: no GPU is needed.

    python -m benchmarks.recordings [--lengths FILE] [--out benchmarks/results/recordings.json]

decodes a test set with the lengths of IWSLT'14, using the engine's rules with tiny models and
counting recordings instead of making them. Times on a GPU are from a model, stated in the notes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.decoding_speed import EndsAt, cells_of, cut, spread_test_set
from benchmarks.shapes import SOURCE_TYPES, Lengths, random_batch, training_lengths
from benchmarks.store import report, section
from benchmarks.timing import Row
from nmtgrid.models import zoo
from nmtgrid.search import cuda_graphs, engine
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.cuda_graphs import Graphs

TINY: dict[str, dict[str, Any]] = {
    "pervasive": {"depth": 1, "target_kernel": 3, "source_kernel": 3},
    "transformer": {"encoder_depth": 1, "decoder_depth": 1, "heads": 1},
}
SEARCHES = (
    ("pervasive", 1, 4000), ("pervasive", 5, 4000), ("pervasive", 1, 32_000),
    ("pervasive", 5, 32_000), ("transformer", 1, 4000), ("transformer", 5, 4000),
    ("transformer", 1, 32_000),
)  # fmt: skip
"""Architecture, beam size, and source tokens x beam size of a batch (4,000 is the default)."""
RECORDING_MS, EAGER_MS, REPLAY_MS = 10.0, 2.0, 0.4
"""Time of a recording, of an eager step, and of the smallest replayed step: assumed."""
CELL_MS = {"pervasive": 1.1e-4, "transformer": 1.2e-5}
"""Time per row and source token of a larger step on an H100, presets `iwslt14-de-en`: estimated."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """Padding of the number of groups, and the cells below which batches do not shrink."""

    name: str
    count_padded: Callable[[int, int], int]
    free_cells: int

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Return the context in which searches follow this rule."""
        with (
            mock.patch.object(cuda_graphs, "count_padded", self.count_padded),
            mock.patch.object(cuda_graphs, "_FREE_CELLS", self.free_cells),
            # As on a GPU, where finished sentences are not checked at each step.
            mock.patch.object(engine, "is_on_cpu", lambda tensor: False),
        ):
            yield


def power_of_four(groups: int, least: int) -> int:
    """Return the least power of four, from 4 on, that is at least both arguments."""
    count = 4
    while count < max(groups, least):
        count *= 4
    return count


RULES = (
    Rule("powers of two, always shrinking", cuda_graphs.count_padded, 0),
    Rule("powers of four, always shrinking", power_of_four, 0),
    Rule("as it is", cuda_graphs.count_padded, cuda_graphs._FREE_CELLS),
)


def count(architecture: str, beam: int, tokens: int, lengths: Lengths) -> Row:
    """Return the counts of decoding pairs with these lengths."""
    torch.manual_seed(1)
    sizes = {"size": 2, "feed_forward_size": 2, **TINY[architecture]}
    model = zoo.build(
        architecture, None, sizes, source_vocab_size=SOURCE_TYPES, target_vocab_size=2 * beam + 6
    ).eval()
    rows: list[int] = []
    shapes: list[tuple[int, int]] = []
    recordings = replays = 0
    compute = model.step

    def step(tokens: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        rows.append(len(tokens))
        return compute(tokens, *arguments, **named)

    def record(fn: Callable[[], None], prepare: Callable[[], None]) -> Callable[[], None]:
        nonlocal recordings
        recordings += 1

        def replay() -> None:
            nonlocal replays
            replays += 1
            fn()

        return replay

    graphs, longest = Graphs(record), int(lengths[:, 1].max())
    plan = SearchPlan(beam=beam, max_length_a=float(longest), max_length_b=0.0)
    batches = cut(lengths, tokens // beam)
    with mock.patch.object(model, "step", step):
        for pairs in batches:
            batch = random_batch([(source + 1, 2) for source, _ in pairs])
            ends = EndsAt(torch.from_numpy(pairs[:, 1].copy()))
            begun = len(rows)
            engine.search(
                [model], batch.source, batch.source_lengths, plan, constraints=[ends],
                graphs=graphs,
            )  # fmt: skip
            width = graphs.pad_source(batch.source).shape[1]
            shapes += [(number, width) for number in rows[begun:]]
    eager = len(shapes) - replays
    cells = sum(number * width for number, width in shapes)
    per_cell = CELL_MS[architecture]
    in_steps = sum(max(REPLAY_MS, per_cell * number * width) for number, width in shapes)
    return {
        "steps": len(shapes), "recordings": recordings,
        "replays of each": replays / max(1, recordings), "steps not recorded": eager,
        "cells computed for each live one": cells / (beam * cells_of(batches)),
        "ms on paper": RECORDING_MS * recordings + (EAGER_MS - REPLAY_MS) * eager + in_steps,
    }  # fmt: skip


def measure(lengths_file: Path | None) -> dict[str, Any]:
    """Count for each search and rule."""
    lengths, origin = training_lengths(lengths_file)
    lengths = spread_test_set(lengths)
    rows: list[Row] = []
    for architecture, beam, tokens in SEARCHES:
        for rule in RULES:
            with torch.no_grad(), rule.applied():
                counts = count(architecture, beam, tokens, lengths)
            search = {"architecture": architecture, "beam": beam, "batch tokens": tokens}
            rows.append({**search, "rule": rule.name, **counts})
    return section(
        {"lengths": origin, "pairs": f"{len(lengths):,}"},
        {"Recordings of a test set": rows},
        [
            "Counted by the engine's own rules with tiny models; translations are as long as the "
            "references. A cell is a row and a source token; cells of padding and of sentences "
            "that are done are computed, but not live.",
            f"On paper, not measured: a recording takes {RECORDING_MS:g} ms, a step that is not "
            f"recorded {EAGER_MS:g} ms, and one that is {REPLAY_MS:g} ms, or "
            + ", ".join(f"{1000 * ms:g} us a cell ({name})" for name, ms in CELL_MS.items())
            + " where that is more.",
        ],
    )


def main() -> None:
    """Count, print, and store as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lengths", type=Path, help="source and target length of each pair")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    report("recordings", measure(options.lengths), options.out)


if __name__ == "__main__":
    main()
