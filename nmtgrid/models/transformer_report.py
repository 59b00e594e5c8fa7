"""Cost of a Transformer (tables 2.1 and 3.1)."""

from __future__ import annotations

from nmtgrid.models.api import Report
from nmtgrid.models.properties import properties
from nmtgrid.models.transformer_config import TransformerConfig


def transformer_report(
    config: TransformerConfig, target_types: int, source_length: float, target_length: float
) -> Report:
    """Return the report of a Transformer for these lengths (end symbols included).

    Products count as two FLOPs; the backward pass costs twice the forward one.
    """
    row = properties("Transformer")
    return Report(
        flops_per_pair=3.0 * forward_flops(config, target_types, source_length, target_length),
        receptive_field="the whole source and the whole target prefix",
        computation=row.computation,
        sequential=row.sequential,
        target_path=row.target_path,
        source_path=row.source_path,
    )


def forward_flops(
    config: TransformerConfig, target_types: int, source_length: float, target_length: float
) -> float:
    """Return the FLOPs of one forward pass over a pair.

    Attention counts all L^2 pairs of positions, masked ones too.
    """
    size, source, target = config.size, source_length, target_length
    feed_forward = 4.0 * size * config.feed_forward_size
    encoder = source * (8.0 * size * size + feed_forward) + 4.0 * source * source * size
    decoder = target * (12.0 * size * size + feed_forward) + 4.0 * target * target * size
    decoder += source * 4.0 * size * size + 4.0 * target * source * size
    mixtures = 0.0
    if config.transparent:
        mixtures = 2.0 * config.decoder_depth * (config.encoder_depth + 1) * source * size
    classified = 2.0 * target_types * target * size
    blocks = config.encoder_depth * encoder + config.decoder_depth * decoder
    return blocks + mixtures + classified
