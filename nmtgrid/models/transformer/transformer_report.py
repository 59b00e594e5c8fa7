"""Cost of a Transformer (tables 2.1 and 3.1)."""

from __future__ import annotations

from nmtgrid.models.api import Report
from nmtgrid.models.cost_report import properties
from nmtgrid.models.transformer.transformer_config import TransformerConfig


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

    Attention counts all L^2 pairs of positions, masked ones too; all exits predict.
    """
    size, source, target = config.size, source_length, target_length
    width, inner = config.source_size, 4.0 * config.feed_forward_size
    encoder = source * (8.0 * width * width + inner * width) + 4.0 * source * source * width
    decoder = target * (12.0 * size * size + inner * size) + 4.0 * target * target * size
    decoder += source * 4.0 * size * width + 4.0 * target * source * size
    mixtures = 0.0
    if config.transparent:
        mixtures = 2.0 * config.decoder_depth * (config.encoder_depth + 1) * source * width
    exits = 1 if config.exits == "none" else config.decoder_depth
    classified = 2.0 * exits * target_types * target * size
    blocks = config.encoder_depth * encoder + config.decoder_depth * decoder
    return blocks + mixtures + classified
