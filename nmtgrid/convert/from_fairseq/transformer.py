"""Converts fairseq's Transformers: `transformer` and its variants, old and new.

It also converts attn2d's `waitk_transformer`, whose encoder is uni-directional.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from nmtgrid.convert.from_fairseq.checkpoint import Checkpoint
from nmtgrid.convert.from_fairseq.dictionary import reordered
from nmtgrid.convert.from_fairseq.plan import (
    CheckpointTensors,
    Options,
    Plan,
    Recipe,
    Recipes,
    computed,
    concatenated,
    copied,
    linear,
)
from nmtgrid.layers.embedding import Positions
from nmtgrid.models.transformer.config import TransformerConfig

# The row of fairseq's first learned position: the id of its padding plus one.
FIRST_POSITION = 2
IGNORED = (".version", "._float_tensor", "embed_positions.weights")
_PLAIN = "the encoder and the decoder of `transformer` are plain."
_OFF = {
    "adaptive_input": "all embeddings of a side have the same size.",
    "layernorm_embedding": "no norm follows the embeddings.",
    "cross_self_attention": "attention goes over the prefix or over the source, not over both.",
    "no_cross_attention": "each decoder block attends to the source.",
    "layer_wise_attention": "all decoder blocks read the last encoder block.",
    "no_decoder_final_norm": "with pre-norm a norm follows the decoder.",
    "merge_src_tgt_embed": "each side has its own vocabulary.",
    "char_inputs": "tokens are not split into characters.",
    "base_layers": _PLAIN, "quant_noise_pq": _PLAIN, "encoder_xformers_att_config": _PLAIN,
    "decoder_xformers_att_config": _PLAIN, "encoder_layers_to_keep": _PLAIN,
    "decoder_layers_to_keep": _PLAIN, "scale_fc": _PLAIN, "scale_attn": _PLAIN,
    "scale_heads": _PLAIN, "scale_resids": _PLAIN, "tie_adaptive_weights": _PLAIN,
    "simul_type": "attention to the source is a softmax over all tokens read.",
    "encoder_langtok": "no language token is added to sentences.",
    "decoder_langtok": "no language token is added to sentences.",
    "expert_lagging": "all heads read the same part of the source.",
}  # fmt: skip


def wait_k_plan(options: Options, checkpoint: Checkpoint) -> Plan:
    """Return the plan of attn2d's `waitk_transformer`."""
    options.must_be_off({"gelu": "the activation of feed-forward layers is relu."})
    options.must_be(
        "encoder_decoder_attention_heads",
        options.get("decoder_attention_heads"),
        "all attention has the same number of heads (`model.heads`).",
    )
    return plan(options, checkpoint, unidirectional=True)


def plan(options: Options, checkpoint: Checkpoint, unidirectional: bool = False) -> Plan:
    """Return the plan of a Transformer; unsupported options are added to the options' faults.

    Forks of fairseq have `--uni-encoder` if the architecture does not imply it.
    """
    options.must_be_off(_OFF)
    refuse_adaptive_softmax(options, checkpoint)
    options.must_be("activation_fn", "relu", "the activation of feed-forward layers is relu.")
    for kind, why in (
        ("attention_heads", "both sides have the same number of heads (`model.heads`)."),
        ("normalize_before", "both sides have their norms in the same place (`model.norm`)."),
        ("learned_pos", "both sides have the same kind of positions (`model.positions`)."),
    ):
        options.must_agree(f"encoder_{kind}", f"decoder_{kind}", why)
    # The decoder determines the size; another size of the encoder is projected (`encoder_size`).
    size = options.count("decoder_embed_dim", options.get("encoder_embed_dim"))
    source_size = options.count("encoder_embed_dim", size)
    for name in ("decoder_input_dim", "decoder_output_dim"):
        options.must_be(name, size, "decoder embeddings, blocks and outputs have the same size.")
    inner = [options.count(f"{side}_ffn_embed_dim", 1) for side in ("encoder", "decoder")]
    rate = options.rate("dropout", 0.0)
    config = TransformerConfig(
        encoder_depth=options.count("encoder_layers"),
        decoder_depth=options.count("decoder_layers"),
        size=size,
        encoder_size=0 if source_size == size else source_size,
        feed_forward_size=max(inner),
        heads=options.count("decoder_attention_heads"),
        norm="pre" if options.is_set("decoder_normalize_before") else "post",
        encoder=(
            "unidirectional" if unidirectional or options.is_set("uni_encoder") else "bidirectional"
        ),
        positions=_positions(options),
        max_positions=learned_positions(checkpoint),
        scale_embeddings=not options.is_set("no_scale_embedding"),
        tie=tying(options),
        first_symbol="end",
        dropout=rate,
        embedding_dropout=rate,
        attention_dropout=options.rate("attention_dropout", 0.0),
        # Early versions call it `relu_dropout`.
        activation_dropout=options.rate(
            "activation_dropout" if options.get("activation_dropout") else "relu_dropout", 0.0
        ),
    )
    import_plan = Plan("transformer", config, tied_copies(config.tie, checkpoint), IGNORED)
    if options.is_set("multi_waitk"):
        import_plan.trained_for_every_k("wait-k-sampled")
    elif options.get("waitk") is not None:
        import_plan.trained_along(options.count("waitk"))
    # After faults the configuration contains placeholders, for which recipes make no sense.
    if options.faults:
        return import_plan
    if min(inner) < max(inner):
        import_plan.notes.append(
            f"feed-forward layers of size {min(inner)} are padded to {max(inner)} with zeros"
        )
    import_plan.recipes = _recipes(config, inner, checkpoint)
    return import_plan


def refuse_adaptive_softmax(options: Options, checkpoint: Checkpoint) -> None:
    """Refuse an adaptive softmax; its option has no effect with another criterion."""
    if any(name.startswith("decoder.adaptive_softmax.") for name in checkpoint.views):
        options.refuse("adaptive_softmax_cutoff", "the classifier is one matrix.")


def tying(options: Options) -> Literal["none", "target", "all"]:
    """Return which embeddings and classifier share their matrix."""
    # fairseq ignores the second option if the first is set.
    if options.is_set("share_all_embeddings"):
        return "all"
    return "target" if options.is_set("share_decoder_input_output_embed") else "none"


def tied_copies(
    tied: str, checkpoint: Checkpoint, output: str = "output_projection"
) -> dict[str, str]:
    """Return the names under which a shared matrix is stored again."""
    original = "decoder.embed_tokens.weight"
    copies: dict[str, str] = {}
    if tied != "none":
        copies |= {f"decoder.{output}.weight": original, "decoder.embed_out": original}
    if tied == "all":
        copies["encoder.embed_tokens.weight"] = original
    # Versions of fairseq differ in which of the copies they save.
    return {copy: name for copy, name in copies.items() if copy in checkpoint.views}


def learned_positions(checkpoint: Checkpoint) -> int:
    """Return how many learned positions the longer side has, without the unused first rows."""
    names = [f"{side}.embed_positions.weight" for side in ("encoder", "decoder")]
    counts = [
        size for n in names if n in checkpoint.views for size in checkpoint.views[n].shape[:1]
    ]
    # Without learned positions the number has no effect and stays at our default.
    return max(1, max(counts) - FIRST_POSITION) if counts else 1024


def position_recipes(count: int) -> Recipes:
    """Return the recipes of learned positions: without the unused rows, the last one repeated."""

    def rows(weight: Tensor) -> Tensor:
        # The shorter side never learned the further rows, so its last one is repeated for them.
        used = weight[FIRST_POSITION:]
        return concatenated([used, used[-1:].expand(count - len(used), -1)])

    return {
        f"{prefix}_embedding.position_weight": computed(rows, f"{key}.embed_positions.weight")
        for prefix, key in (("source", "encoder"), ("target", "decoder"))
    }


def embedding_recipes(tied: str) -> Recipes:
    """Return the recipes of both sides' token vectors."""
    source = "decoder" if tied == "all" else "encoder"
    return {
        "source_embedding.weight": computed(reordered, f"{source}.embed_tokens.weight"),
        "target_embedding.weight": computed(reordered, "decoder.embed_tokens.weight"),
    }


def _positions(options: Options) -> Positions:
    if options.is_set("no_token_positional_embeddings"):
        return "none"
    return "learned" if options.is_set("decoder_learned_pos") else "sinusoidal-halves"


def _recipes(config: TransformerConfig, inner: list[int], checkpoint: Checkpoint) -> Recipes:
    recipes = embedding_recipes(config.tie)
    if config.positions == "learned":
        recipes |= position_recipes(config.max_positions)
    if config.tie == "none":
        old = "decoder.embed_out" in checkpoint.views
        name = "decoder.embed_out" if old else "decoder.output_projection.weight"
        recipes["output_weight"] = computed(reordered, name)
    return recipes | block_recipes(config, inner, checkpoint)


def block_recipes(
    config: TransformerConfig, inner: list[int], checkpoint: CheckpointTensors
) -> Recipes:
    """Return the recipes of all blocks and of the norms after the stacks.

    `inner` has the sizes of both sides' feed-forward networks.
    """
    recipes: Recipes = {}
    if config.norm == "pre":
        for side in ("encoder", "decoder"):
            recipes |= linear(f"{side}_norm", f"{side}.layer_norm")
    for layer in range(config.encoder_depth):
        prefix, key = f"encoder.{layer}", f"encoder.layers.{layer}"
        recipes |= _self_attention(f"{prefix}.attention", f"{key}.self_attn", checkpoint)
        recipes |= _feed_forward(f"{prefix}.feed_forward", key, inner[0], config.feed_forward_size)
        norms = ("add_attention", "self_attn"), ("add_feed_forward", "final")
        recipes |= _norms(prefix, key, norms, checkpoint)
    # In our model one projection of the source makes keys and values of all decoder blocks.
    fused: dict[str, list[Recipe]] = {kind: [] for kind in _KINDS}
    for layer in range(config.decoder_depth):
        prefix, key = f"decoder.{layer}", f"decoder.layers.{layer}"
        recipes |= _self_attention(f"{prefix}.self_attention", f"{key}.self_attn", checkpoint)
        attention = f"{key}.encoder_attn"
        for kind in _KINDS:
            query, *keys_and_values = _attention(attention, kind, checkpoint)
            recipes[f"{prefix}.source_attention.query_map.{kind}"] = query
            fused[kind] += keys_and_values
        recipes |= linear(f"{prefix}.source_attention.output_map", f"{attention}.out_proj")
        recipes |= _feed_forward(f"{prefix}.feed_forward", key, inner[1], config.feed_forward_size)
        sides = ("add_self", "self_attn"), ("add_source", "encoder_attn"), _LAST
        recipes |= _norms(prefix, key, sides, checkpoint)
    for kind in _KINDS:
        recipes[f"source_projection.{kind}"] = _joined(fused[kind])
    return recipes


_KINDS = ("weight", "bias")
_LAST = ("add_feed_forward", "final")
_OLD_NORMS = {"encoder": ("self_attn", "final"), "decoder": ("self_attn", "encoder_attn", "final")}


def _attention(key: str, kind: str, checkpoint: CheckpointTensors) -> list[Recipe]:
    """Return the recipes of the projections to queries, keys and values: separate or fused."""
    fused = f"{key}.in_proj_{kind}"
    if fused in checkpoint.views:
        return [computed(lambda t, n=n: t.chunk(3)[n], fused) for n in range(3)]
    names = [f"{key}.{part}_proj.{kind}" for part in "qkv"]
    old_names = [f"{key}.{part}_proj_{kind}" for part in "qkv"]
    pairs = zip(old_names, names, strict=True)
    return [copied(old if old in checkpoint.views else name) for old, name in pairs]


def _self_attention(prefix: str, key: str, checkpoint: CheckpointTensors) -> Recipes:
    recipes = linear(f"{prefix}.output_map", f"{key}.out_proj")
    for kind in _KINDS:
        recipes[f"{prefix}.input_map.{kind}"] = _joined(_attention(key, kind, checkpoint))
    return recipes


def _joined(parts: list[Recipe]) -> Recipe:
    """Return the recipe of the concatenated rows of tensors with one source each."""
    names = tuple(part.names[0] for part in parts)

    def join(*tensors: Tensor) -> Tensor:
        return concatenated([part.fn(t) for part, t in zip(parts, tensors, strict=True)])

    return Recipe(names, join)


def _feed_forward(prefix: str, key: str, inner: int, size: int) -> Recipes:
    """Return the recipes of a feed-forward network; units from `inner` up to `size` are zero."""

    # Relu and swish of 0 are 0, so a padded unit adds nothing to the output.
    def padded(tensor: Tensor) -> Tensor:
        if len(tensor) != inner:
            raise ValueError(f"{len(tensor)} units, not {inner}")
        return concatenated([tensor, tensor.new_zeros(size - len(tensor), *tensor.shape[1:])])

    return {
        f"{prefix}.widen.weight": computed(padded, f"{key}.fc1.weight"),
        f"{prefix}.widen.bias": computed(padded, f"{key}.fc1.bias"),
        f"{prefix}.narrow.weight": computed(lambda t: padded(t.t()).t(), f"{key}.fc2.weight"),
        f"{prefix}.narrow.bias": copied(f"{key}.fc2.bias"),
    }


def _norms(
    prefix: str, key: str, pairs: tuple[tuple[str, str], ...], checkpoint: CheckpointTensors
) -> Recipes:
    """Return the recipes of a block's norms, which old checkpoints number."""
    numbered = _OLD_NORMS[key.partition(".")[0]]
    recipes: Recipes = {}
    for norm, name in pairs:
        # Old checkpoints number the norms of a block, new ones name them.
        old = f"{key}.layer_norms.{numbered.index(name)}"
        is_old = f"{old}.weight" in checkpoint.views
        recipes |= linear(f"{prefix}.{norm}.norm", old if is_old else f"{key}.{name}_layer_norm")
    return recipes
