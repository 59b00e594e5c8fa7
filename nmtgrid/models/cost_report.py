"""Properties and costs of sequence-to-sequence models: tables 2.1 and 3.1, and counts of FLOPs.

The `report` of an architecture, which `train --dry-run` prints, is a row of the table with its own
count of FLOPs: a multiply-add counts as two, and the backward pass costs twice the forward pass.
"""

from __future__ import annotations

import dataclasses
import math

from nmtgrid.models.api import Report, Steps


@dataclasses.dataclass(frozen=True)
class Properties:
    """A row of table 3.1: orders of growth; paths run from a teaching signal to a token."""

    model: str
    receptive_field: str
    computation: str
    sequential: str
    target_path: str
    source_path: str


TABLE = (
    Properties(
        "RNN (Cho et al., 2014)", "∞", "O(N d² |x| + N d² |y|)", "O(N (|x| + |y|))", "O(|y|)",
        "O(|x|)",
    ),
    Properties(
        "RNN (Sutskever et al., 2014)", "∞", "O(N d² |x| + N d² |y|)", "O(N (|x| + |y|))",
        "O(|y|)", "O(|x| + |y|)",
    ),
    Properties(
        "RNN + attention", "∞", "O(N d² |x| + N d² |y| + d |x||y|)", "O(N (|x| + |y|))", "O(|y|)",
        "O(1)",
    ),
    Properties(
        "ByteNet", "O(k 2^N)", "O(N k d² |x| + N k d² |y|)", "O(N)", "O(log_k |y|)",
        "O(log_k |y||x|)",
    ),
    Properties(
        "ConvS2S", "O(k N)", "O(N k d² |x| + N k d² |y| + N d |x||y|)", "O(N)", "O(|y| / k)",
        "O(1)",
    ),
    # The printed table lacks the term N d² (|x| + |y|) of the maps within each block.
    Properties(
        "Transformer", "∞", "O(N d² (|x| + |y|) + N d |x|² + N d |y|² + N d |x||y|)", "O(N)",
        "O(1)", "O(1)",
    ),
    Properties(
        "Pervasive Attention", "O(k N)", "O(N d k² |x||y| + N d² |x||y|)", "O(N)", "O(1)", "O(1)"
    ),
)  # fmt: skip


def table_steps(
    model: str, lengths: tuple[float, float], layers: tuple[int, int], kernel: int | None = None
) -> Steps:
    """Return the orders of growth of table 3.1's row `model` as numbers.

    `lengths` and `layers` are those of the source and of the target. Without a kernel, terms that
    contain a filter width use 3.
    """
    source, target = lengths
    width = max(kernel or 3, 2)
    recurrent = layers[0] * source + layers[1] * target
    sequential, target_path, source_path = {
        "RNN (Cho et al., 2014)": (recurrent, target, source),
        "RNN (Sutskever et al., 2014)": (recurrent, target, source + target),
        "RNN + attention": (recurrent, target, 1.0),
        "ByteNet": (sum(layers), _depth(target, width), _depth(source * target, width)),
        "ConvS2S": (sum(layers), math.ceil(target / width), 1.0),
        "Transformer": (sum(layers), 1.0, 1.0),
        # One network on both sides.
        "Pervasive Attention": (layers[1], 1.0, 1.0),
    }[model]
    return Steps(sequential, target_path, source_path, layers, kernel)


def _depth(tokens: float, width: int) -> int:
    """Return log_width(tokens), rounded up."""
    return math.ceil(math.log(max(tokens, 1.0), width) - 1e-9)


def table_report(
    model: str,
    flops_per_pair: float,
    receptive_field: str,
    lengths: tuple[float, float],
    layers: tuple[int, int],
    kernel: int | None = None,
    computation: str | None = None,
) -> Report:
    """Return a report of table 3.1's row `model`; lengths and layers are as in `table_steps`."""
    row = next(row for row in TABLE if row.model == model)
    return Report(
        flops_per_pair, receptive_field, computation or row.computation, row.sequential,
        row.target_path, row.source_path, table_steps(model, lengths, layers, kernel),
    )  # fmt: skip
