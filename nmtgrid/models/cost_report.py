"""Properties and costs of sequence-to-sequence models: tables 2.1 and 3.1, and counts of FLOPs.

Each architecture's `report`, which `train --dry-run` prints, is a row of the table with its own
count of FLOPs: a product and a sum are two, and the backward pass costs twice the forward one.
"""

from __future__ import annotations

import dataclasses

from nmtgrid.models.api import Report, Traits
from nmtgrid.models.pervasive.config import PervasiveConfig


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
    # The print misses the term N d² (|x| + |y|) of the maps within each block.
    Properties(
        "Transformer", "∞", "O(N d² (|x| + |y|) + N d |x|² + N d |y|² + N d |x||y|)", "O(N)",
        "O(1)", "O(1)",
    ),
    Properties(
        "Pervasive Attention", "O(k N)", "O(N d k² |x||y| + N d² |x||y|)", "O(N)", "O(1)", "O(1)"
    ),
)  # fmt: skip


def table_report(
    model: str, flops_per_pair: float, receptive_field: str, computation: str | None = None
) -> Report:
    """Return a report with the orders of growth of table 3.1's row `model`."""
    row = next(row for row in TABLE if row.model == model)
    return Report(
        flops_per_pair,
        receptive_field,
        computation or row.computation,
        row.sequential,
        row.target_path,
        row.source_path,
    )


def pervasive_report(
    config: PervasiveConfig,
    traits: Traits,
    target_types: int,
    source_length: float,
    target_length: float,
) -> Report:
    """Return the report of a Pervasive Attention model for these lengths (end symbols included).

    Products count as two FLOPs; the backward pass costs twice the forward one.
    """
    embedded = config.embedding_size or config.size
    # Both sides are projected apart, so the first cells cost |x| + |y| products, not |x||y|.
    sides = 2.0 * config.size * embedded * (source_length + target_length)
    cells = source_length * target_length * pervasive_cell_flops(config)
    classified = (
        2.0 * target_types * target_length * (embedded if config.tie != "none" else config.size)
    )
    return table_report(
        "Pervasive Attention",
        3.0 * (sides + cells + classified),
        f"{traits.source_receptive_field} source and {traits.target_receptive_field} target tokens",
    )


def pervasive_cell_flops(config: PervasiveConfig) -> float:
    """Return the FLOPs of the forward pass in one cell of the grid, aggregation included."""
    # Only live taps count: the masked half of a filter is never multiplied.
    size, taps = config.size, (config.target_kernel // 2 + 1) * config.source_kernel
    if config.source_causal:
        taps = (config.target_kernel // 2 + 1) * (config.source_kernel // 2 + 1)
    aggregation = {"max": 0, "average": 2, "attention": 2 * size + 4, "gated-max": 4 * size}
    pooled = aggregation.get(config.aggregation, 2 * size + 4) * size
    if config.skip != "dense":
        block = 2 * size * size + 2 * taps * size + 4 * size * config.feed_forward_size
        return float(config.depth * block + pooled)
    # Dense layer n reads the d + n g features of all layers before it.
    growth, middle = config.growth, config.bottleneck * config.growth
    total = 0
    for layer in range(config.depth):
        total += 2 * (size + layer * growth) * middle + 2 * middle * growth + 2 * taps * growth
    grown_size = size + config.depth * growth
    return float(total + 2 * config.feed_forward_size * (grown_size + size) + pooled)
