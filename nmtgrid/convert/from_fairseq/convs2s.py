"""ConvS2S of fairseq (`fconv`): weights are kept in directions and lengths, as ours are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nmtgrid.convert.from_fairseq.checkpoint import Checkpoint
from nmtgrid.convert.from_fairseq.dictionary import reordered
from nmtgrid.convert.from_fairseq.plan import Options, Plan, Recipes, option_name, computed, copied
from nmtgrid.convert.from_fairseq.transformer import (
    FIRST_POSITION,
    embedding_recipes,
    learned_positions,
    refuse_adaptive_softmax,
    position_recipes,
    tied_copies,
)
from nmtgrid.models.convs2s_config import ConvS2SConfig

_IGNORED = (".version",)


def plan(options: Options, checkpoint: Checkpoint) -> Plan:
    """Return the plan of a ConvS2S; what it cannot have is entered into the options' faults."""
    refuse_adaptive_softmax(options, checkpoint)
    options.must_agree(
        "encoder_embed_dim", "decoder_embed_dim", "both sides' embeddings have one size."
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
            f"`{option_name('encoder_layers')}` and `{option_name('decoder_layers')}` have layers of several "
            "sizes or widths: all layers of `convs2s` have one (`model.size`, `model.kernel`)."
        )
    attention = options.listed("decoder_attention") or [True]
    if not all(attention):
        options.refuse("decoder_attention", "every decoder layer attends to the source.")
    embedded = options.count("decoder_embed_dim")
    output = options.count("decoder_out_embed_dim", embedded)
    size, kernel = kinds[0] if kinds else (1, 1)
    rate = options.rate("dropout", 0.0)
    config = ConvS2SConfig(
        encoder_depth=max(depths[0], 1),
        decoder_depth=max(depths[1], 1),
        size=size,
        embedding_size=embedded,
        output_size=None if output == embedded else output,
        kernel=kernel,
        max_positions=learned_positions(checkpoint, FIRST_POSITION),
        residual="layer",
        tie="target" if options.is_set("share_input_output_embed") else "none",
        first_symbol="end",
        dropout=rate,
        embedding_dropout=rate,
        output_dropout=rate,
    )
    made = Plan("convs2s", config, {}, tied_copies(config.tie, checkpoint, "fc3"), _IGNORED)
    if not options.faults:
        made.recipes = _recipes(config, checkpoint)
    return made


def _kind(name: str, layer: Any, options: Options) -> tuple[int, int]:
    """Return size and width of a layer, written (size, width) or (size, width, distance)."""
    good = isinstance(layer, (list, tuple)) and len(layer) in (2, 3)
    if not good or not all(type(part) is int and part >= 0 for part in layer):
        options.refuse(name, "a layer is a pair of its size and the width of its filters.")
        return 1, 1
    if len(layer) == 3 and layer[2] != 1:
        options.refuse(name, "each layer has a residual connection to the one below it.")
    return layer[0], layer[1]


def _recipes(config: ConvS2SConfig, checkpoint: Checkpoint) -> Recipes:
    found = embedding_recipes(config.tie) | position_recipes(checkpoint, config.max_positions)
    for side, depth in (("encoder", config.encoder_depth), ("decoder", config.decoder_depth)):
        found |= _map(f"{side}_enter", f"{side}.fc1") | _map(f"{side}_leave", f"{side}.fc2")
        for place in range(depth):
            ours, theirs = f"{side}.{place}", f"{side}.convolutions.{place}"
            found |= _convolution(f"{ours}.convolution", theirs)
            if side == "decoder":
                attention = f"decoder.attention.{place}"
                found |= _map(f"{ours}.query_map", f"{attention}.in_projection")
                found |= _map(f"{ours}.output_map", f"{attention}.out_projection")
    found["output_bias"] = computed(reordered, "decoder.fc3.bias")
    if config.tie == "none":
        parts = ("decoder.fc3.weight_v", "decoder.fc3.weight_g")
        found["output_weight"] = computed(lambda v, g: reordered(_whole(v, g)), *parts)
    return found


def _map(ours: str, theirs: str) -> Recipes:
    """Return the recipes of an affine map with a length for each output."""
    return {
        f"{ours}.weight": copied(f"{theirs}.weight_v"),
        f"{ours}.gain": computed(lambda gain: gain.flatten(), f"{theirs}.weight_g"),
        f"{ours}.bias": copied(f"{theirs}.bias"),
    }


def _convolution(ours: str, theirs: str) -> Recipes:
    """Return the recipes of a convolution [k, C, 2 C]: our taps lie side by side, older first.

    The oldest checkpoints have a length for each tap of the decoder; there the lengths of the
    outputs are those of the whole weight.
    """
    parts = (f"{theirs}.weight_v", f"{theirs}.weight_g")

    def side_by_side(direction: Tensor, gain: Tensor) -> Tensor:
        held = direction if _of_outputs(direction, gain) else _whole(direction, gain)
        return held.permute(2, 0, 1).flatten(1)

    def lengths(direction: Tensor, gain: Tensor) -> Tensor:
        if _of_outputs(direction, gain):
            return gain.flatten()
        found: Tensor = torch.linalg.vector_norm(side_by_side(direction, gain), dim=1)
        return found

    return {
        f"{ours}.weight": computed(side_by_side, *parts),
        f"{ours}.gain": computed(lengths, *parts),
        f"{ours}.bias": copied(f"{theirs}.bias"),
    }


def _of_outputs(direction: Tensor, gain: Tensor) -> bool:
    return gain.shape == (1, 1, direction.shape[2])


def _whole(direction: Tensor, gain: Tensor) -> Tensor:
    """Return the weight of directions and of lengths, which stand along one axis alone."""
    axes = [axis for axis, size in enumerate(gain.shape) if size == 1]
    length: Tensor = torch.linalg.vector_norm(direction, dim=axes, keepdim=True)
    return gain * direction / length
