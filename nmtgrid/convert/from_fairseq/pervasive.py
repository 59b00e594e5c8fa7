"""Converts attn2d's Pervasive Attention (`pervasive`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

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
    concatenated,
    copied,
    identity,
    linear,
)
from nmtgrid.convert.from_fairseq.transformer import (
    IGNORED,
    embedding_recipes,
    learned_positions,
    position_recipes,
    tied_copies,
    tying,
)
from nmtgrid.layers.grid.aggregation import Aggregation
from nmtgrid.models.pervasive.config import PervasiveConfig

_SCALE = 0.5**0.5
_POSITIONS = 1024
_AGGREGATIONS: Mapping[str, Aggregation] = {
    "max": "max", "gated-max": "gated-max", "attn": "attention",
}  # fmt: skip
_PLAIN = "the filters of `pervasive` see each cell of the grid."
_OFF = {
    "add_conv_relu": "there is no relu between the maps of a convolution.",
    "downsample": _PLAIN,
}


def plan(options: Options, checkpoint: Checkpoint) -> Plan:
    """Return the plan of a Pervasive Attention model; faults are added to those of `options`."""
    options.must_be_off(_OFF)
    for name in ("conv_stride", "source_dilation", "target_dilation"):
        options.must_be(name, 1, _PLAIN)
    options.must_be("convnet", "resnet", "only networks of this kind can be imported.")
    options.must_agree(
        "encoder_embed_dim", "decoder_embed_dim", "the embeddings of both sides have the same size."
    )
    embedded = options.count("decoder_embed_dim", 256)
    # The grid joins a source and a target embedding and divides the channels of the two.
    size = 2 * embedded // options.count("divide_channels", 2)
    options.must_be("bottleneck", size, "both maps of a convolution have the same size.")
    options.must_be("conv_groups", size, "filters are depthwise, one for each feature.")
    if tying(options) != "none":
        options.must_be("output_dim", embedded, "a tied classifier reads the embedding size.")
    kernel = options.count("kernel_size", 11)
    config = PervasiveConfig(
        depth=options.count("num_layers", 14),
        size=size,
        embedding_size=embedded,
        feed_forward_size=options.count("ffn_dim", 1024),
        target_kernel=kernel,
        source_kernel=kernel,
        source_causal=options.is_set("unidirectional"),
        aggregation=_aggregation(options),
        positions=_positions(options),
        output_map=_has_projection(options, embedded, size, checkpoint),
        tie=tying(options),
        first_symbol="end",
        dropout=options.rate("convolution_dropout", 0.2),
        embedding_dropout=options.rate("embeddings_dropout", 0.2),
        output_dropout=options.rate("prediction_dropout", 0.2),
    )
    copies = tied_copies(config.tie, checkpoint, "prediction")
    import_plan = Plan("pervasive", config, copies, (*IGNORED, ".mconv2.mask"))
    _enter_reading(options, import_plan)
    if learned_positions(checkpoint) > _POSITIONS and config.positions == "learned":
        options.refuse("max_source_positions", f"`pervasive` has {_POSITIONS} learned positions.")
    # Each layer has its own shifts, which are added up before any tensor is compared.
    if config.depth * config.size > checkpoint.max_bytes // 16:
        options.refuse("num_layers", "the checkpoint is too small for a network of this size.")
    if options.faults:
        return import_plan
    shifts = _Shifts(config, checkpoint)
    import_plan.recipes = _recipes(config, checkpoint, shifts)
    # The shifts have gone into other tensors, and the softmax of the aggregator cancels its biases.
    cancelled = "decoder.aggregator.w1.bias", "decoder.aggregator.w2.bias"
    import_plan.ignored += (*shifts.names, *cancelled)
    if any(name.endswith(".mconv2.bias") for name in checkpoint.views):
        import_plan.notes.append(
            "biases of convolutions were folded into the neighbouring projections"
        )
    if "decoder.projection.weight" in checkpoint.views and not config.output_map:
        import_plan.notes.append("the projection before the classifier was multiplied into it")
    return import_plan


def _enter_reading(options: Options, import_plan: Plan) -> None:
    """Record in the plan the k that the aggregator was trained with; defaults are attn2d's."""
    aggregator = str(options.get("aggregator", ""))
    if aggregator.startswith("path-"):
        import_plan.trained_along(options.count("waitk", 3))
    elif aggregator.startswith("grid-"):
        # Its area begins at the diagonal, which is wait-1, or right of it by `lower_diag`.
        shift = options.get("lower_diag", 0)
        k = 1 + shift if type(shift) is int and 0 < shift < LARGEST_COUNT else 1
        import_plan.trained_for_every_k("wait-k-area", k=k)


def _aggregation(options: Options) -> Aggregation:
    name = str(options.get("aggregator", "max"))
    if options.is_set("unidirectional"):
        name = name.removeprefix("path-").removeprefix("grid-")
    if name not in _AGGREGATIONS:
        options.refuse("aggregator", "cells are pooled by `max`, `gated-max` or `attn`, or in "
                       "`path-` and `grid-` form of an `--unidirectional` network.")  # fmt: skip
    return _AGGREGATIONS.get(name, "max")


def _positions(options: Options) -> Literal["none", "learned", "sinusoidal-halves"]:
    if not options.is_set("add_positional_embeddings"):
        return "none"
    return "learned" if options.is_set("learned_pos") else "sinusoidal-halves"


def _has_projection(options: Options, embedded: int, size: int, checkpoint: Checkpoint) -> bool:
    """Return whether our model has the projection before the classifier.

    If the classifier is not tied and the projection changes the size, they are multiplied.
    """
    if "decoder.projection.weight" not in checkpoint.views:
        return False
    return tying(options) != "none" or options.get("output_dim", embedded) == size


class _Shifts:
    """The shifts of all cells by the convolutions' biases, which our convolutions do not have.

    The bias of the k-th convolution shifts every cell alike, and from there on every state:
    c = sqrt(1/2) (c + b), and sqrt(1/2) c after the feed-forward network. A linear layer at each
    cell turns a shift of its input into a shift of its bias, so the shifts are added there: in the
    layers before the convolutions, the feed-forward networks, and the reader of the summed states.
    """

    def __init__(self, config: PervasiveConfig, checkpoint: Checkpoint) -> None:
        self.names: list[str] = []
        self.before: list[Tensor] = []
        self.between: list[Tensor] = []
        shift = total = torch.zeros(config.size)
        for layer in range(config.depth):
            name = f"decoder.net.residual_blocks.{layer}.mconv2.bias"
            self.before.append(shift)
            # A bias of another shape is not used here and is reported later as unmatched.
            if name in checkpoint.views and checkpoint.views[name].shape == shift.shape:
                self.names.append(name)
                shift = shift + checkpoint.load(name)
            self.between.append(_SCALE * shift)
            # The residual connections scale by sqrt(1/2) after each sublayer.
            shift = _SCALE * self.between[-1]
            total = total + shift
        self.output = total / (config.depth + 1)

    def linear(self, prefix: str, key: str, shift: Tensor) -> Recipes:
        """Return the recipes of a linear layer whose input lacks `shift`."""

        def bias(bias: Tensor, weight: Tensor) -> Tensor:
            return bias + weight.flatten(1) @ shift.to(weight.device)

        return {
            f"{prefix}.weight": computed(lambda weight: weight.flatten(1), f"{key}.weight"),
            f"{prefix}.bias": computed(bias, f"{key}.bias", f"{key}.weight"),
        }


def _recipes(config: PervasiveConfig, checkpoint: Checkpoint, shifts: _Shifts) -> Recipes:
    recipes = embedding_recipes(config.tie)
    if config.positions == "learned":
        recipes |= position_recipes(_POSITIONS)
    recipes |= _grid(checkpoint)
    for layer in range(config.depth):
        key = f"decoder.net.residual_blocks.{layer}"
        prefix = f"network.layers.{2 * layer}"
        recipes |= shifts.linear(f"{prefix}.map", f"{key}.conv1", shifts.before[layer])
        recipes[f"{prefix}.convolution.weight"] = computed(_taps(config), f"{key}.mconv2.weight")
        prefix = f"network.layers.{2 * layer + 1}"
        recipes |= shifts.linear(f"{prefix}.widen", f"{key}.fc1", shifts.between[layer])
        recipes |= linear(f"{prefix}.narrow", f"{key}.fc2")
    shift = shifts.output
    if config.aggregation == "attention":
        recipes |= {
            "aggregator.map.weight": copied("decoder.aggregator.w1.weight"),
            "aggregator.vector": computed(lambda row: row[0], "decoder.aggregator.w2.weight"),
        }
    elif config.aggregation == "gated-max":
        recipes |= shifts.linear("aggregator.gate", "decoder.aggregator.linear", shift)
        # The gate's bias has absorbed the shift, so nothing is left for the layers after it.
        shift = torch.zeros_like(shift)
    recipes |= _output(config, checkpoint, shifts, shift)
    return recipes


def _grid(checkpoint: Checkpoint) -> Recipes:
    """Return the recipes of the joint projection: target first; fairseq's has the source first."""
    key = "decoder.net.reduce_channels"
    if f"{key}.weight" in checkpoint.views:
        return {
            "grid_map": computed(_with_swapped_halves, f"{key}.weight"),
            "grid_bias": copied(f"{key}.bias"),
        }
    # Without one both embeddings are concatenated: an identity that swaps the halves.
    name = "decoder.embed_tokens.weight"
    return {
        "grid_map": computed(lambda w: _with_swapped_halves(identity(2 * w.shape[1])), name),
        "grid_bias": computed(lambda w: torch.zeros(2 * w.shape[1]), name),
    }


def _with_swapped_halves(weight: Tensor) -> Tensor:
    return concatenated(weight.t().chunk(2)[::-1]).t()


def _taps(config: PervasiveConfig) -> Callable[[Tensor], Tensor]:
    """Return the function from filters [D, 1, k, k] to ours [k, k, D], masked taps zero."""

    def make(weight: Tensor) -> Tensor:
        taps = weight[:, 0].permute(1, 2, 0).clone()
        # The other half of the taps would see later target words, and is masked in fairseq too.
        live = config.target_kernel // 2 + 1
        taps[live:] = 0.0
        if config.source_causal:
            taps[:, live:] = 0.0
        return taps

    return make


def _output(
    config: PervasiveConfig, checkpoint: Checkpoint, shifts: _Shifts, shift: Tensor
) -> Recipes:
    """Return the recipes between the pooled cells, which lack `shift`, and the logits."""
    projection, prediction = "decoder.projection", "decoder.prediction"
    rows = "decoder.embed_tokens.weight" if config.tie != "none" else f"{prediction}.weight"
    recipes: Recipes = {}
    if config.output_map:
        recipes |= shifts.linear("output_map", projection, shift)
        recipes["output_bias"] = computed(reordered, f"{prediction}.bias")
        if config.tie == "none":
            recipes["output_weight"] = computed(reordered, rows)
    elif f"{projection}.weight" in checkpoint.views:
        # Without an output map the classifier absorbs both: R (W (x + s) + b) + o.
        def bias(outer: Tensor, rows: Tensor, weight: Tensor, inner: Tensor) -> Tensor:
            return reordered(outer + rows @ (inner + weight @ shift.to(weight.device)))

        parts = f"{projection}.weight", f"{projection}.bias"
        recipes["output_weight"] = computed(lambda r, w: reordered(r @ w), rows, parts[0])
        recipes["output_bias"] = computed(bias, f"{prediction}.bias", rows, *parts)
    else:
        recipes["output_bias"] = computed(
            lambda outer, weight: reordered(outer + weight @ shift.to(weight.device)),
            f"{prediction}.bias",
            rows,
        )
        if config.tie == "none":
            recipes["output_weight"] = computed(reordered, rows)
    return recipes
