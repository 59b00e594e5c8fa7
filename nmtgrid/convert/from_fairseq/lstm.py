"""Converts fairseq's LSTM (`lstm`): a decoder with input feeding and attention."""

from __future__ import annotations

import torch
from torch import Tensor

from nmtgrid.convert.from_fairseq.checkpoint import Checkpoint
from nmtgrid.convert.from_fairseq.dictionary import reordered
from nmtgrid.convert.from_fairseq.plan import (
    Options,
    Plan,
    Recipe,
    Recipes,
    computed,
    copied,
    identity,
    linear,
)
from nmtgrid.convert.from_fairseq.transformer import (
    embedding_recipes,
    refuse_adaptive_softmax,
    tied_copies,
    tying,
)
from nmtgrid.models.bilstm_config import BiLSTMConfig

_FURTHER = "decoder.additional_fc.weight"
_GATES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_RATES = (
    ("encoder_dropout_in", "decoder_dropout_in"),
    ("encoder_dropout_out", "decoder_dropout_out"),
)


def plan(options: Options, checkpoint: Checkpoint) -> Plan:
    """Return the plan of a Bi-LSTM; unsupported options are added to the options' faults."""
    refuse_adaptive_softmax(options, checkpoint)
    # fairseq attends by default: only an option that is off counts, not a missing one.
    if not options.is_set("decoder_attention") and options.get("decoder_attention") is not None:
        options.refuse("decoder_attention", "the decoder attends to the source.")
    options.must_agree(
        "encoder_embed_dim", "decoder_embed_dim", "the embeddings of both sides have the same size."
    )
    embedded = options.count("decoder_embed_dim")
    size = options.count("encoder_hidden_size", embedded)
    decoded = options.count("decoder_hidden_size", embedded)
    tied = tying(options)
    has_projection = _FURTHER in checkpoint.views
    # Our dropout rates apply to both sides: those of the decoder are used.
    rates = [options.rate(name, options.rate("dropout", 0.0)) for _, name in _RATES]
    config = BiLSTMConfig(
        encoder_depth=options.count("encoder_layers"),
        decoder_depth=options.count("decoder_layers"),
        size=size,
        encoder="bidirectional" if options.is_set("encoder_bidirectional") else "unidirectional",
        decoder_size=decoded,
        embedding_size=embedded,
        # A further projection of the output, if there is one, is multiplied into the classifier.
        tie="none" if has_projection else tied,
        output_bias=has_projection or tied == "none",
        first_symbol="end",
        dropout=rates[1],
        embedding_dropout=rates[0],
        output_dropout=rates[1],
    )
    import_plan = Plan("bilstm", config, tied_copies(tied, checkpoint, "fc_out"))
    if any(options.get(encoder, 0.0) != options.get(decoder, 0.0) for encoder, decoder in _RATES):
        import_plan.notes.append(
            "the dropout rates of the decoder are used for both sides; they matter only for "
            "training"
        )
    if not options.faults:
        import_plan.recipes = _recipes(config, tied, checkpoint)
        if has_projection:
            note = "`additional_fc` is multiplied into the classifier"
            untied = ", which is then no longer the matrix of the embeddings"
            import_plan.notes.append(note if tied == "none" else note + untied)
    return import_plan


def _recipes(config: BiLSTMConfig, tied: str, checkpoint: Checkpoint) -> Recipes:
    recipes = embedding_recipes(tied)
    if config.tie == "all":
        # One module serves both sides.
        recipes["source_embedding.weight"] = recipes["target_embedding.weight"]
    ends = ("", "_reverse") if config.both_ways else ("",)
    for layer in range(config.encoder_depth):
        for end in ends:
            for gate in _GATES:
                prefix = f"encoder.{layer}.lstm.{gate}_l0{end}"
                recipes[prefix] = copied(f"encoder.lstm.{gate}_l{layer}{end}")
    for layer in range(config.decoder_depth):
        for gate in _GATES:
            recipes[f"decoder.{layer}.{gate}"] = copied(f"decoder.layers.{layer}.{gate}")
    recipes |= _first_states(config)
    recipes["query_map.weight"] = copied("decoder.attention.input_proj.weight")
    recipes["output_map.weight"] = copied("decoder.attention.output_proj.weight")
    return recipes | _classifier(config, tied, checkpoint)


def _first_states(config: BiLSTMConfig) -> Recipes:
    """Return the recipes of the decoder's first states: the encoder's, projected or not."""
    if config.encoded != config.decoded:
        return linear("initial_hidden", "decoder.encoder_hidden_proj") | linear(
            "initial_cell", "decoder.encoder_cell_proj"
        )
    # fairseq has no projection if the sizes are equal: ours are then identities.
    recipes: Recipes = {}
    for name in ("initial_hidden", "initial_cell"):
        recipes[f"{name}.weight"] = Recipe((), lambda: identity(config.decoded))
        recipes[f"{name}.bias"] = Recipe((), lambda: torch.zeros(config.decoded))
    return recipes


def _classifier(config: BiLSTMConfig, tied: str, checkpoint: Checkpoint) -> Recipes:
    weight = "decoder.fc_out.weight" if tied == "none" else "decoder.embed_tokens.weight"
    bias = ("decoder.fc_out.bias",) if tied == "none" else ()
    if _FURTHER not in checkpoint.views:
        recipes: Recipes = {"output_bias": computed(reordered, *bias)} if bias else {}
        return recipes | (
            {"output_weight": computed(reordered, weight)} if config.tie == "none" else {}
        )

    # Two linear maps in a row are one: W (F x + f) + b = (W F) x + (W f + b).
    def shift(matrix: Tensor, inner: Tensor, *outer: Tensor) -> Tensor:
        return reordered(matrix @ inner + sum(outer))

    return {
        "output_weight": computed(lambda m, f: reordered(m @ f), weight, _FURTHER),
        "output_bias": computed(shift, weight, "decoder.additional_fc.bias", *bias),
    }
