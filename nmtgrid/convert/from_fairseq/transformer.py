"""Transformers of fairseq: `transformer` and its kin, of old checkpoints and new ones."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from nmtgrid.convert.from_fairseq.checkpoint import Checkpoint
from nmtgrid.convert.from_fairseq.dictionary import reordered
from nmtgrid.convert.from_fairseq.plan import Options, Plan, Recipe, Recipes, linear, computed, copied
from nmtgrid.layers.embedding import Positions
from nmtgrid.models.transformer.config import TransformerConfig

FIRST_POSITION = 2
"""The row of learned positions that fairseq's first token has: its padding's number and one."""
IGNORED = (".version", "._float_tensor", "embed_positions.weights")
_PLAIN = "the encoder and the decoder of `transformer` are plain."
_OFF = {
    "adaptive_input": "embeddings have one size.",
    "layernorm_embedding": "no norm stands behind the embeddings.",
    "cross_self_attention": "attention goes over the prefix or over the source, not over both.",
    "no_cross_attention": "each decoder block attends to the source.",
    "layer_wise_attention": "all decoder blocks read the last encoder block.",
    "no_decoder_final_norm": "with pre-norm a norm stands behind the decoder.",
    "merge_src_tgt_embed": "each side has a vocabulary of its own.",
    "char_inputs": "tokens are read whole.",
    "base_layers": _PLAIN, "quant_noise_pq": _PLAIN, "encoder_xformers_att_config": _PLAIN,
    "decoder_xformers_att_config": _PLAIN, "encoder_layers_to_keep": _PLAIN,
    "decoder_layers_to_keep": _PLAIN, "scale_fc": _PLAIN, "scale_attn": _PLAIN,
    "scale_heads": _PLAIN, "scale_resids": _PLAIN, "tie_adaptive_weights": _PLAIN,
}  # fmt: skip


def plan(options: Options, checkpoint: Checkpoint) -> Plan:
    """Return the plan of a Transformer; what it cannot have is entered into the options' faults."""
    options.must_be_off(_OFF)
    refuse_adaptive_softmax(options, checkpoint)
    options.must_be("activation_fn", ("relu",), "the feed-forward maps rectify (relu).")
    for kind, why in (
        ("attention_heads", "both sides have as many heads (`model.heads`)."),
        ("normalize_before", "both sides have their norms in one place (`model.norm`)."),
        ("learned_pos", "both sides have positions of one kind (`model.positions`)."),
    ):
        options.must_agree(f"encoder_{kind}", f"decoder_{kind}", why)
    size = options.count("decoder_embed_dim", options.get("encoder_embed_dim"))
    source_size = options.count("encoder_embed_dim", size)
    for name in ("decoder_input_dim", "decoder_output_dim"):
        options.must_be(name, (size,), "a decoder's embeddings, blocks and outputs have one size.")
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
        positions=_positions(options),
        max_positions=learned_positions(checkpoint, FIRST_POSITION),
        scale_embeddings=not options.is_set("no_scale_embedding"),
        tie=tying(options),
        first_symbol="end",
        dropout=rate,
        embedding_dropout=rate,
        attention_dropout=options.rate("attention_dropout", 0.0),
        activation_dropout=options.rate(
            "activation_dropout" if options.get("activation_dropout") else "relu_dropout", 0.0
        ),
    )
    made = Plan("transformer", config, {}, tied_copies(config.tie, checkpoint), IGNORED)
    if options.faults:
        return made
    if min(inner) < max(inner):
        made.notes.append(
            f"feed-forward maps of {min(inner)} features are filled up to {max(inner)} with zeros"
        )
    made.recipes = _recipes(config, inner, checkpoint)
    return made


def refuse_adaptive_softmax(options: Options, checkpoint: Checkpoint) -> None:
    """Refuse a classifier in clusters; its option means nothing under another criterion."""
    if any(name.startswith("decoder.adaptive_softmax.") for name in checkpoint.views):
        options.refuse("adaptive_softmax_cutoff", "the classifier is one matrix.")


def tying(options: Options) -> Literal["none", "target", "all"]:
    """Return which matrices are one."""
    if options.is_set("share_all_embeddings"):
        return "all"
    return "target" if options.is_set("share_decoder_input_output_embed") else "none"


def tied_copies(
    tied: str, checkpoint: Checkpoint, output: str = "output_projection"
) -> dict[str, str]:
    """Return the names under which a shared matrix stands again."""
    original = "decoder.embed_tokens.weight"
    copies: dict[str, str] = {}
    if tied != "none":
        copies |= {f"decoder.{output}.weight": original, "decoder.embed_out": original}
    if tied == "all":
        copies["encoder.embed_tokens.weight"] = original
    return {copy: held for copy, held in copies.items() if copy in checkpoint.views}


def learned_positions(checkpoint: Checkpoint, first: int) -> int:
    """Return how many learned positions the longer side has, `first` rows being unused."""
    names = [f"{side}.embed_positions.weight" for side in ("encoder", "decoder")]
    counts = [checkpoint.views[n].shape[0] for n in names if n in checkpoint.views]
    return max(1, max(counts) - first) if counts else 1024


def position_recipes(checkpoint: Checkpoint, count: int) -> Recipes:
    """Return the recipes of learned positions: without the unused rows, the last one repeated."""

    def rows(weight: Tensor) -> Tensor:
        kept = weight[FIRST_POSITION:]
        return torch.cat([kept, kept[-1:].expand(count - len(kept), -1)])

    return {
        f"{ours}_embedding.position_weight": computed(rows, f"{theirs}.embed_positions.weight")
        for ours, theirs in (("source", "encoder"), ("target", "decoder"))
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
    found = embedding_recipes(config.tie)
    if config.positions == "learned":
        found |= position_recipes(checkpoint, config.max_positions)
    if config.tie == "none":
        old = "decoder.embed_out" in checkpoint.views
        name = "decoder.embed_out" if old else "decoder.output_projection.weight"
        found["output_weight"] = computed(reordered, name)
    if config.norm == "pre":
        for side in ("encoder", "decoder"):
            found |= linear(f"{side}_norm", f"{side}.layer_norm")
    for place in range(config.encoder_depth):
        ours, theirs = f"encoder.{place}", f"encoder.layers.{place}"
        found |= _self_attention(f"{ours}.attention", f"{theirs}.self_attn", checkpoint)
        found |= _feed_forward(f"{ours}.feed_forward", theirs, inner[0], config.feed_forward_size)
        norms = ("add_attention", "self_attn"), ("add_feed_forward", "final")
        found |= _norms(ours, theirs, norms, checkpoint)
    keys: list[Recipe] = []
    for place in range(config.decoder_depth):
        ours, theirs = f"decoder.{place}", f"decoder.layers.{place}"
        found |= _self_attention(f"{ours}.self_attention", f"{theirs}.self_attn", checkpoint)
        parts = {kind: _attention(f"{theirs}.encoder_attn", kind, checkpoint) for kind in _KINDS}
        found |= {f"{ours}.source_attention.query_map.{kind}": parts[kind][0] for kind in _KINDS}
        keys += [part for kind in _KINDS for part in parts[kind][1:]]
        found |= linear(f"{ours}.source_attention.output_map", f"{theirs}.encoder_attn.out_proj")
        found |= _feed_forward(f"{ours}.feed_forward", theirs, inner[1], config.feed_forward_size)
        sides = ("add_self", "self_attn"), ("add_source", "encoder_attn"), _LAST
        found |= _norms(ours, theirs, sides, checkpoint)
    for at, kind in enumerate(_KINDS):
        pairs = [keys[n + 2 * at : n + 2 * at + 2] for n in range(0, len(keys), 4)]
        found[f"source_projection.{kind}"] = _joined([part for pair in pairs for part in pair])
    return found


_KINDS = ("weight", "bias")
_LAST = ("add_feed_forward", "final")
_OLD_NORMS = {"encoder": ("self_attn", "final"), "decoder": ("self_attn", "encoder_attn", "final")}


def _attention(theirs: str, kind: str, checkpoint: Checkpoint) -> list[Recipe]:
    """Return the recipes of the maps to queries, keys and values: apart, or in one."""
    fused = f"{theirs}.in_proj_{kind}"
    if fused in checkpoint.views:
        return [computed(lambda t, n=n: t.chunk(3)[n], fused) for n in range(3)]
    found = [f"{theirs}.{part}_proj.{kind}" for part in "qkv"]
    old = [f"{theirs}.{part}_proj_{kind}" for part in "qkv"]
    return [copied(o if o in checkpoint.views else n) for o, n in zip(old, found, strict=True)]


def _self_attention(ours: str, theirs: str, checkpoint: Checkpoint) -> Recipes:
    found = linear(f"{ours}.output_map", f"{theirs}.out_proj")
    for kind in _KINDS:
        found[f"{ours}.input_map.{kind}"] = _joined(_attention(theirs, kind, checkpoint))
    return found


def _joined(parts: list[Recipe]) -> Recipe:
    """Return the recipe of several tensors of one name each, one below another."""
    makes = [part.make for part in parts]
    names = tuple(part.names[0] for part in parts)
    return Recipe(names, lambda *held: torch.cat([m(t) for m, t in zip(makes, held, strict=True)]))


def _feed_forward(ours: str, theirs: str, inner: int, size: int) -> Recipes:
    """Return the recipes of maps to `inner` units and back; units up to `size` stay zero."""

    def below(tensor: Tensor) -> Tensor:
        if len(tensor) != inner:
            raise ValueError(f"{len(tensor)} units, not {inner}")
        return torch.cat([tensor, tensor.new_zeros(size - len(tensor), *tensor.shape[1:])])

    return {
        f"{ours}.widen.weight": computed(below, f"{theirs}.fc1.weight"),
        f"{ours}.widen.bias": computed(below, f"{theirs}.fc1.bias"),
        f"{ours}.narrow.weight": computed(lambda t: below(t.t()).t(), f"{theirs}.fc2.weight"),
        f"{ours}.narrow.bias": copied(f"{theirs}.fc2.bias"),
    }


def _norms(
    ours: str, theirs: str, pairs: tuple[tuple[str, str], ...], checkpoint: Checkpoint
) -> Recipes:
    """Return the recipes of a block's norms, which old checkpoints number."""
    numbered = _OLD_NORMS[theirs.partition(".")[0]]
    found: Recipes = {}
    for mine, name in pairs:
        old = f"{theirs}.layer_norms.{numbered.index(name)}"
        is_old = f"{old}.weight" in checkpoint.views
        found |= linear(f"{ours}.{mine}.norm", old if is_old else f"{theirs}.{name}_layer_norm")
    return found
