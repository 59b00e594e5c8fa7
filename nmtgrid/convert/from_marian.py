"""Converts a directory of transformers' `MarianMTModel`, such as OPUS-MT, to a Transformer.

Weights are safetensors, the rest is JSON and two SentencePiece models; nothing in them is executed.
Called by `nmtgrid import-marian`.

The types keep their order after our four special symbols. Marian has no `<s>`: its decoder starts
with the vector of the padding type (`decoder_start_token_id`), which becomes that of `<s>`; as an
output `<s>` gets a bias so low that its probability is zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError, ModelError, StorageError
from nmtgrid.base.io.arrays import Entry, load_tensors, read_header
from nmtgrid.base.io.records import (
    Count,
    Positive,
    Probability,
    Record,
    Size,
    Small,
    convert_file,
    fits,
    read_json,
)
from nmtgrid.convert.from_fairseq.dictionary import named
from nmtgrid.convert.from_fairseq.model import build_model, write_imported
from nmtgrid.convert.from_fairseq.plan import Plan, Recipes, computed
from nmtgrid.convert.from_fairseq.transformer import block_recipes
from nmtgrid.data.directory import check_replaceable
from nmtgrid.layers.embedding import marian_sinusoids
from nmtgrid.models.transformer.config import TransformerConfig
from nmtgrid.text.pipeline import Pipeline, TextFacts
from nmtgrid.text.sentencepiece_model import SentencePieceModel
from nmtgrid.text.vocabulary import BEGIN, END, PAD, SPECIALS, UNKNOWN, Vocabulary

WEIGHTS = "model.safetensors"
_NEVER = -100.0
"""Bias of a type that is never written; its share of any loss stays small in training."""
_CONVERT = (
    'python -c "from transformers import MarianMTModel as M; '
    "M.from_pretrained('{0}').save_pretrained('{0}')\""
)
_ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish"}
# Options of early versions of transformers that current ones ignore.
_OFF = ("normalize_before", "normalize_embedding", "add_final_layer_norm")
_NEUTRAL = {
    "no_repeat_ngram_size": (0,), "encoder_no_repeat_ngram_size": (0,), "min_length": (0,),
    "min_new_tokens": (0,), "sequence_bias": (), "force_words_ids": (), "penalty_alpha": (0, 0.0),
    "repetition_penalty": (1, 1.0), "diversity_penalty": (0, 0.0), "num_beam_groups": (1,),
    "do_sample": (False,), "early_stopping": (False,), "exponential_decay_length_penalty": (),
    "forced_bos_token_id": (), "suppress_tokens": (), "begin_suppress_tokens": (),
}  # fmt: skip
"""Search settings without a counterpart here, with their neutral values."""


class _Config(Record):
    """The fields of `config.json` that are read."""

    vocab_size: Size
    d_model: Size
    encoder_layers: Small
    decoder_layers: Small
    encoder_attention_heads: Small
    decoder_attention_heads: Small
    encoder_ffn_dim: Size
    decoder_ffn_dim: Size
    activation_function: str
    decoder_start_token_id: Count
    pad_token_id: Count
    eos_token_id: Count = 0
    decoder_vocab_size: Size | None = None
    scale_embedding: bool = False
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    max_position_embeddings: Positive = 1024
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0
    activation_dropout: Probability = 0.0
    normalize_before: bool = False
    normalize_embedding: bool = False
    add_final_layer_norm: bool = False


class _Generation(Record):
    """The fields of `generation_config.json` that are read."""

    num_beams: Small = 1
    max_new_tokens: Positive | None = None
    length_penalty: float = 1.0
    max_length: Positive | None = None
    bad_words_ids: list[list[int]] | None = None
    forced_eos_token_id: int | list[int] | None = None
    renormalize_logits: bool = False


class _Tokenizer(Record):
    """The fields of `tokenizer_config.json` that are read."""

    source_lang: str | None = None
    target_lang: str | None = None
    separate_vocabs: bool = False


@dataclasses.dataclass(frozen=True)
class _Weights:
    """The tensors of a folder, under fairseq's names."""

    path: Path
    views: Mapping[str, Entry]
    tensors: Mapping[str, Tensor]

    @property
    def max_bytes(self) -> int:
        # As fp32 a tensor of two bytes per number doubles, and tied ones may be stored twice.
        return 4 * self.path.stat().st_size + (1 << 20)

    def load(self, name: str) -> Tensor:
        return self.tensors[name].float()


@dataclasses.dataclass(frozen=True)
class _Types:
    """A converted vocabulary, and the row of each of its types in Marian's matrices."""

    vocabulary: Vocabulary
    rows: list[int]

    def reordered(self, rows: Tensor) -> Tensor:
        """Return `rows` [V, ...] in the order of our types."""
        # Ours has `<s>` in addition.
        if len(rows) != len(self.rows) - 1:
            raise ValueError(f"{len(rows):,} rows for {len(self.rows) - 1:,} types")
        if rows.is_meta:
            return rows.new_empty(len(self.rows), *rows.shape[1:])
        return rows[torch.tensor(self.rows)]

    def output_bias(self, bias: Tensor) -> Tensor:
        """Return `bias` [1, V] in the order of our types; `<s>` is never written."""
        ours = self.reordered(bias[0])
        if not ours.is_meta:
            ours[BEGIN] = _NEVER
        return ours


def import_folder(
    folder: Path, out: Path, source_lang: str | None, target_lang: str | None
) -> dict[str, Any]:
    """Write the model in `folder` as a model directory `out`, which must not exist yet.

    Languages that are None are read from the folder. Returns the facts of the model as JSON keys.
    Raises ModelError, StorageError or InputError for files that are missing or damaged, ConfigError
    listing everything that is different in our Transformer.
    """
    check_replaceable(out, overwrite=None)
    _check_files(folder)
    path = folder / "config.json"
    values = read_json(path)
    if not isinstance(values, dict) or values.get("model_type") != "marian":
        raise ModelError(
            f"{path} does not belong to a Marian model (`model_type`).",
            "Folders of transformers' `MarianMTModel` can be imported.",
        )
    config = convert_file(path, values, _Config)
    path = folder / "tokenizer_config.json"
    tokenizer = convert_file(path, read_json(path) if path.is_file() else {}, _Tokenizer)
    sides = _read_types(folder, config, tokenizer.separate_vocabs)
    languages = {
        "source": source_lang or tokenizer.source_lang,
        "target": target_lang or tokenizer.target_lang,
    }
    faults = _config_faults(config)
    faults += [
        f"The {side} language is not known: give `--{side}-lang`, such as `en`."
        for side, language in languages.items()
        if not language or "/" in language
    ]
    if faults:
        raise ConfigError([f"{folder}:", *faults], "Only equivalent models can be imported.")
    models = [SentencePieceModel.load(folder / f"{side}.spm") for side in ("source", "target")]
    facts = TextFacts(
        str(languages["source"]), str(languages["target"]), tokenize="none",
        subwords="sentencepiece", joint=False,
    )  # fmt: skip
    pipeline = Pipeline(facts, sides[0].vocabulary, sides[1].vocabulary, *models)
    weights = _open_weights(folder / WEIGHTS)
    plan = _plan(config, weights, sides)
    search = _search(folder, values, config, plan.notes)
    model = build_model(plan, weights, pipeline)
    settings = {"search": search, "imported": {"program": "marian", "arch": "MarianMTModel"}}
    origin = f"the `MarianMTModel` in `{folder.resolve().name}`"
    return write_imported(out, plan, model, pipeline, settings, origin)


def _check_files(folder: Path) -> None:
    """Raise ModelError unless the folder has all files that are read."""
    if not folder.is_dir():
        raise ModelError(
            f"There is no folder {folder}.",
            "Give a folder with `config.json` and the weights. nmtgrid downloads nothing: first "
            "fetch a model of the hub with `hf download NAME --local-dir FOLDER`.",
        )
    names = ("config.json", WEIGHTS, "vocab.json", "source.spm", "target.spm")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing == [WEIGHTS]:
        if (folder / "pytorch_model.bin").is_file():
            raise ModelError(
                f"{folder} has its weights only in `pytorch_model.bin`, a pickle, which can "
                "execute code when it is read.",
                f"Convert it in an environment where you trust it: {_CONVERT.format(folder)}",
            )
        if (folder / f"{WEIGHTS}.index.json").is_file():
            raise ModelError(
                f"{folder} has its weights in several files.",
                f"Save them as one: {_CONVERT.format(folder)}",
            )
    if missing:
        raise ModelError(
            f"{folder} lacks {', '.join(f'`{name}`' for name in missing)}.",
            "Fetch the whole folder of the model, including its tokenizer.",
        )


def _config_faults(config: _Config) -> list[str]:
    """Return a fault for each option that our Transformer does not have."""
    faults = []
    if config.activation_function not in _ACTIVATIONS:
        names = ", ".join(f"`{name}`" for name in _ACTIVATIONS)
        faults.append(
            f"`activation_function` is `{config.activation_function[:60]}`; nmtgrid has {names}."
        )
    if config.encoder_attention_heads != config.decoder_attention_heads:
        faults.append(
            f"`encoder_attention_heads` is {config.encoder_attention_heads}, "
            f"`decoder_attention_heads` {config.decoder_attention_heads}: both sides must have the "
            "same number of heads (`model.heads`)."
        )
    for name in _OFF:
        if getattr(config, name):
            faults.append(
                f"`{name}` is set, but `MarianMTModel` ignores it and always normalises after the "
                "residual sum: the file does not tell which model was trained."
            )
    types = config.decoder_vocab_size or config.vocab_size
    if config.share_encoder_decoder_embeddings and types != config.vocab_size:
        faults.append(
            f"`decoder_vocab_size` is {types:,}, `vocab_size` {config.vocab_size:,}, but "
            "`share_encoder_decoder_embeddings` shares one matrix between both sides."
        )
    return faults


def _read_types(folder: Path, config: _Config, separate: bool) -> tuple[_Types, _Types]:
    """Return the types of both sides. Raises ModelError for a vocabulary that does not fit."""
    target_size = config.decoder_vocab_size or config.vocab_size
    source = _types(folder / "vocab.json", config.vocab_size, None)
    path = folder / ("target_vocab.json" if separate else "vocab.json")
    if separate and not path.is_file():
        raise ModelError(
            f"{folder} lacks `{path.name}`, which `tokenizer_config.json` requires.",
            "Fetch the whole folder of the model, including its tokenizer.",
        )
    target = _types(path, target_size, config.decoder_start_token_id)
    if target.rows[END] != config.eos_token_id:
        raise ModelError(
            f"{path}: `</s>` has the id {target.rows[END]}, but `eos_token_id` of `config.json` is "
            f"{config.eos_token_id}.",
            "The two files may belong to different models.",
        )
    return source, target


def _types(path: Path, size: int, start: int | None) -> _Types:
    """Return the `size` types of a `vocab.json`; `<s>` gets the vector of the id `start`."""
    advice = "Do `config.json` and the vocabulary belong together?"
    ids = read_json(path)
    if not fits(ids, dict[str, Count]):
        raise ModelError(f"{path} must be an object of types and their ids.", advice)
    names: list[str | None] = [None] * len(ids)
    for name, number in ids.items():
        if number >= len(ids) or names[number] is not None:
            raise ModelError(
                f"{path}: the ids of {len(ids):,} types must be 0 to {len(ids) - 1:,}, each once, "
                f"but `{name[:60]}` has {number:,}.",
                "Restore a copy.",
            )
        names[number] = name
    if len(ids) != size:
        raise ModelError(
            f"{path} has {len(ids):,} types, but the model has vectors for {size:,}.", advice
        )
    missing = [SPECIALS[n] for n in (PAD, END, UNKNOWN) if SPECIALS[n] not in ids]
    if missing:
        raise ModelError(f"{path} lacks {' and '.join(f'`{name}`' for name in missing)}.", advice)
    if start is not None and start >= size:
        raise ModelError(
            f"`decoder_start_token_id` is {start:,}, but {path} has {size:,} types.", advice
        )
    special = [ids[SPECIALS[PAD]], ids[SPECIALS[PAD]], ids[SPECIALS[END]], ids[SPECIALS[UNKNOWN]]]
    others = [number for number in range(size) if number not in special]
    if start is not None:
        special[BEGIN] = start
    # Names that cannot occur in text, such as those with spaces, keep their ids.
    types = [
        name if name.split() == [name] and name not in SPECIALS and "\0" not in name else None
        for name in (str(names[number]) for number in others)
    ]
    return _Types(Vocabulary(named(types)), [*special, *others])


def _open_weights(path: Path) -> _Weights:
    return _Weights(
        path,
        {name.removeprefix("model."): entry for name, entry in read_header(path)[0].items()},
        {name.removeprefix("model."): tensor for name, tensor in load_tensors(path).items()},
    )


def _plan(config: _Config, weights: _Weights, sides: Sequence[_Types]) -> Plan:
    """Return our configuration and the recipes of its tensors."""
    is_tied = config.tie_word_embeddings
    is_shared = config.share_encoder_decoder_embeddings and is_tied
    inner = [config.encoder_ffn_dim, config.decoder_ffn_dim]
    ours = TransformerConfig(
        encoder_depth=config.encoder_layers,
        decoder_depth=config.decoder_layers,
        size=config.d_model,
        feed_forward_size=max(inner),
        heads=config.encoder_attention_heads,
        norm="post",
        activation="relu" if config.activation_function == "relu" else "swish",
        positions="sinusoidal-marian",
        scale_embeddings=config.scale_embedding,
        tie="all" if is_shared else "target" if is_tied else "none",
        output_bias=True,
        dropout=config.dropout,
        embedding_dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
    )
    embeddings = {side: f"{side}.embed_tokens.weight" for side in ("encoder", "decoder")}
    copies = {}
    if is_shared:
        embeddings = dict.fromkeys(embeddings, "shared.weight")
        names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
        copies = dict.fromkeys(names, "shared.weight")
    elif is_tied:
        copies = {"lm_head.weight": embeddings["decoder"]}
    # Early versions also store positions, and `shared.weight` even if nothing shares it.
    plan = Plan("transformer", ours, copies, ("embed_positions.weight", "shared.weight"))
    _check_positions(config, weights)
    if plan.config.faults():
        return plan
    source, target = sides
    recipes: Recipes = {
        "source_embedding.weight": computed(source.reordered, embeddings["encoder"]),
        "target_embedding.weight": computed(target.reordered, embeddings["decoder"]),
        "output_bias": computed(target.output_bias, "final_logits_bias"),
    }
    if is_shared:
        # One matrix; only the target reads its row of `<s>`.
        recipes["source_embedding.weight"] = recipes["target_embedding.weight"]
    if not is_tied:
        recipes["output_weight"] = computed(target.reordered, "lm_head.weight")
    plan.recipes = recipes | block_recipes(ours, inner, weights)
    return plan


def _check_positions(config: _Config, weights: _Weights) -> None:
    """Raise ModelError for stored positions that are not the sinusoids."""
    for side in ("encoder", "decoder"):
        name = f"{side}.embed_positions.weight"
        if name in weights.tensors:
            stored = weights.load(name)
            if stored.shape[-1] != config.d_model or not torch.allclose(
                stored, marian_sinusoids(0, len(stored), stored), atol=1e-3
            ):
                raise ModelError(
                    f"{weights.path}: `{name}` is not Marian's sinusoids.",
                    "Only models with fixed positions can be imported.",
                )


def _search(
    folder: Path, values: Mapping[str, Any], config: _Config, notes: list[str]
) -> dict[str, Any]:
    """Return our search settings, and add notes on what `generate` does differently."""
    path = folder / "generation_config.json"
    # Early versions store these settings in `config.json`.
    if path.is_file():
        generation = read_json(path)
    else:
        path, generation = folder / "config.json", dict(values)
    if not isinstance(generation, dict):
        raise StorageError(f"{path} must be an object.", "Restore a copy.")
    generation = {name: value for name, value in generation.items() if value is not None}
    record = convert_file(path, generation, _Generation)
    for name, neutral in _NEUTRAL.items():
        if name in generation and generation[name] not in neutral:
            notes.append(f"`{name}` of transformers' search has no counterpart here")
    if record.bad_words_ids is None:
        notes.append("without `bad_words_ids` transformers may write the padding")
    elif record.bad_words_ids != [[config.pad_token_id]]:
        notes.append(
            "`bad_words_ids` contains more than the padding, and transformers may write other "
            "tokens"
        )
    if record.forced_eos_token_id not in (config.eos_token_id, [config.eos_token_id]):
        notes.append("without `forced_eos_token_id` transformers truncates at the maximum length")
    penalty = record.length_penalty
    if penalty < 0:
        notes.append(f"`length_penalty` is {penalty}, which is replaced by 0")
    # All limits count the end symbol, and all but `max_new_tokens`, which takes precedence, also
    # the start symbol.
    longest = record.max_length or config.max_position_embeddings
    if record.max_new_tokens is not None:
        longest = record.max_new_tokens + 1
    longest = min(longest, 1_000_000)
    return {
        "beam": record.num_beams,
        "length_penalty": max(0.0, penalty),
        "max_length_a": float(max(1, longest - 2)),
        "max_length_b": 0.0,
        "style": "transformers",
        "renormalize": record.renormalize_logits,
    }
