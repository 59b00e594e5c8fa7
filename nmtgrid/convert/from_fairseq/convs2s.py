"""Converts fairseq's ConvS2S (`fconv`), whose weight normalisation is kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nmtgrid.convert.from_fairseq.checkpoint import Checkpoint
from nmtgrid.convert.from_fairseq.dictionary import reordered
from nmtgrid.convert.from_fairseq.plan import (
    LARGEST_COUNT,
    Options,
    Plan,
    Recipes,
    computed,
    copied,
)
from nmtgrid.convert.from_fairseq.transformer import (
    embedding_recipes,
    learned_positions,
    position_recipes,
    refuse_adaptive_softmax,
    tied_copies,
)
from nmtgrid.models.convs2s_config import ConvS2SConfig

_IGNORED = (".version",)


def plan(options: Options, checkpoint: Checkpoint) -> Plan:
    """Return the plan of a ConvS2S; unsupported options are added to the options' faults."""
    refuse_adaptive_softmax(options, checkpoint)
    options.must_agree(
        "encoder_embed_dim", "decoder_embed_dim", "the embeddings of both sides have the same size."
    )
    depths, kinds = [], []
    for side in ("encoder", "decoder"):
        layers = options.listed(f"{side}_layers")
        depths.append(len(layers))
        kinds += [_kind(f"{side}_layers", layer, options) for layer in layers]
        if not layers:
            options.refuse(f"{side}_layers", "it names no layer.")
    if len(set(kinds)) > 1:
        options.faults.append(
            "`--encoder-layers` and `--decoder-layers` have layers of different sizes or widths: "
            "all layers of `convs2s` have the same (`model.size`, `model.kernel`)."
        )
    attention = options.listed("decoder_attention") or [True]
    if not all(attention):
        options.refuse("decoder_attention", "every decoder layer attends to the source.")
    embedded = options.count("decoder_embed_dim")
    output = options.count("decoder_out_embed_dim", embedded)
    # Placeholders after faults: planning continues in order to find all of them.
    size, kernel = kinds[0] if kinds else (1, 1)
    rate = options.rate("dropout", 0.0)
    config = ConvS2SConfig(
        encoder_depth=max(depths[0], 1),
        decoder_depth=max(depths[1], 1),
        size=size,
        embedding_size=embedded,
        output_size=None if output == embedded else output,
        kernel=kernel,
        max_positions=learned_positions(checkpoint),
        # fairseq adds the input of each layer to its output.
        residual="layer",
        tie="target" if options.is_set("share_input_output_embed") else "none",
        first_symbol="end",
        dropout=rate,
        embedding_dropout=rate,
        output_dropout=rate,
    )
    import_plan = Plan("convs2s", config, tied_copies(config.tie, checkpoint, "fc3"), _IGNORED)
    if not options.faults:
        import_plan.recipes = _recipes(config, checkpoint)
    return import_plan


def _kind(name: str, layer: Any, options: Options) -> tuple[int, int]:
    """Return size and width of a layer, written (size, width) or (size, width, distance)."""
    good = isinstance(layer, (list, tuple)) and len(layer) in (2, 3)
    if not good or not all(type(part) is int and 0 <= part <= LARGEST_COUNT for part in layer):
        options.refuse(name, "a layer is a pair of its size and the width of its filters.")
        return 1, 1
    # The third number is the distance of the residual connection.
    if len(layer) == 3 and layer[2] != 1:
        options.refuse(name, "each layer has a residual connection to the one below it.")
    return layer[0], layer[1]


def _recipes(config: ConvS2SConfig, checkpoint: Checkpoint) -> Recipes:
    recipes = embedding_recipes(config.tie) | position_recipes(config.max_positions)
    for side, depth in (("encoder", config.encoder_depth), ("decoder", config.decoder_depth)):
        recipes |= _linear(f"{side}_enter", f"{side}.fc1") | _linear(f"{side}_leave", f"{side}.fc2")
        for layer in range(depth):
            prefix, key = f"{side}.{layer}", f"{side}.convolutions.{layer}"
            recipes |= _convolution(f"{prefix}.convolution", key)
            if side == "decoder":
                attention = f"decoder.attention.{layer}"
                recipes |= _linear(f"{prefix}.query_map", f"{attention}.in_projection")
                recipes |= _linear(f"{prefix}.output_map", f"{attention}.out_projection")
    recipes["output_bias"] = computed(reordered, "decoder.fc3.bias")
    if config.tie == "none":
        parts = ("decoder.fc3.weight_v", "decoder.fc3.weight_g")
        recipes["output_weight"] = computed(lambda v, g: reordered(_weight(v, g)), *parts)
    return recipes


def _linear(prefix: str, key: str) -> Recipes:
    """Return the recipes of a weight-normalised linear layer."""
    return {
        f"{prefix}.weight": copied(f"{key}.weight_v"),
        f"{prefix}.gain": computed(lambda gain: gain.flatten(), f"{key}.weight_g"),
        f"{prefix}.bias": copied(f"{key}.bias"),
    }


def _convolution(prefix: str, key: str) -> Recipes:
    """Return the recipes of a convolution [k, C, 2 C]: our taps are columns, older ones first.

    The oldest checkpoints have a length for each tap of the decoder; the lengths of the outputs are
    then computed from the whole weight.
    """
    parts = (f"{key}.weight_v", f"{key}.weight_g")

    def side_by_side(direction: Tensor, gain: Tensor) -> Tensor:
        weight = direction if _of_outputs(direction, gain) else _weight(direction, gain)
        return weight.permute(2, 0, 1).flatten(1)

    def lengths(direction: Tensor, gain: Tensor) -> Tensor:
        if _of_outputs(direction, gain):
            return gain.flatten()
        norms: Tensor = torch.linalg.vector_norm(side_by_side(direction, gain), dim=1)
        return norms

    return {
        f"{prefix}.weight": computed(side_by_side, *parts),
        f"{prefix}.gain": computed(lengths, *parts),
        f"{prefix}.bias": copied(f"{key}.bias"),
    }


def _of_outputs(direction: Tensor, gain: Tensor) -> bool:
    # Later checkpoints have a length for each output of [k, inputs, outputs], not for each tap.
    return gain.shape == (1, 1, direction.shape[2])


def _weight(direction: Tensor, gain: Tensor) -> Tensor:
    """Return the weight of directions and lengths, which vary along a single axis."""
    axes = [axis for axis, size in enumerate(gain.shape) if size == 1]
    length: Tensor = torch.linalg.vector_norm(direction, dim=axes, keepdim=True)
    return gain * direction / length
