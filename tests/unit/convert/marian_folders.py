"""Folders of random `MarianMTModel`s with tiny tokenizers, made by transformers' own classes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from nmtgrid.base.io.arrays import save_tensors
from nmtgrid.text.sentencepiece_model import SentencePieceModel
from tests.unit.helpers.text_data import foreign_pieces

SOURCE = ["the red cat sees a small dog", "a dog eats the red fish", "small cats see fish"]
TARGET = ["le chat rouge voit un petit chien", "un chien mange le poisson rouge", "chats voient"]
SIZE, INNER, LAYERS = 16, 24, 2


def pieces_of(lines: list[str], count: int = 60) -> SentencePieceModel:
    """Return a model learned from a few lines that normalises text, as those of OPUS-MT do."""
    words = Counter(word for line in lines for word in line.split())
    content = foreign_pieces(
        [f"{word}\t{times}" for word, times in words.items()],
        input_format="tsv", vocab_size=count, character_coverage=1.0, num_threads=1,
    )  # fmt: skip
    return SentencePieceModel(content)


def _write_text(folder: Path, is_separate: bool) -> dict[str, Any]:
    """Write the tokenizer's files; return the settings of a small model for it."""
    folder.mkdir(parents=True)
    models = [pieces_of(SOURCE), pieces_of(TARGET)]
    lists = [
        sorted({piece for line in lines for piece in model.segment(line.split())})
        for model, lines in zip(models, (SOURCE, TARGET), strict=True)
    ]
    joint = sorted({*lists[0], *lists[1], ">>fra<<"})
    # Both sides have one id of the padding.
    longest = max(map(len, lists))
    fillers = [[f"filler{n}" for n in range(longest - len(some))] for some in lists]
    types = [a + b for a, b in zip(lists, fillers, strict=True)] if is_separate else [joint, joint]
    # As transformers' converter has them: the end, the unknown, the types, the padding.
    names = [["</s>", "<unk>", *some, "<pad>"] for some in types]
    for name, side in zip(("vocab.json", "target_vocab.json"), names, strict=True):
        if name == "vocab.json" or is_separate:
            (folder / name).write_text(json.dumps({piece: n for n, piece in enumerate(side)}))
    for name, model in zip(("source.spm", "target.spm"), models, strict=True):
        model.save(folder / name)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"source_lang": "en", "target_lang": "fr", "separate_vocabs": is_separate})
    )
    pad = len(names[1]) - 1
    return {
        "vocab_size": len(names[0]), "decoder_vocab_size": len(names[1]), "d_model": SIZE,
        "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_ffn_dim": INNER,
        "decoder_ffn_dim": INNER, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "scale_embedding": True, "activation_function": "swish", "pad_token_id": pad,
        "decoder_start_token_id": pad, "eos_token_id": 0, "forced_eos_token_id": 0,
        "max_position_embeddings": 64,
    }  # fmt: skip


def bare_folder(folder: Path) -> Path:
    """Write a model without transformers, its weights zero."""
    settings = _write_text(folder, False)
    (folder / "config.json").write_text(json.dumps({"model_type": "marian", **settings}))
    tensors = {
        "model.shared.weight": torch.zeros(settings["vocab_size"], SIZE),
        "final_logits_bias": torch.zeros(1, settings["vocab_size"]),
    }
    linear = {f"self_attn.{part}": (SIZE, SIZE)
              for part in ("q_proj", "k_proj", "v_proj", "out_proj")}  # fmt: skip
    linear |= {"fc1": (INNER, SIZE), "fc2": (SIZE, INNER)}
    other = {name.replace("self_attn", "encoder_attn"): linear[name]
             for name in linear if "attn" in name}  # fmt: skip
    for side, maps in (("encoder", linear), ("decoder", linear | other)):
        norms = ["self_attn", "final", *(["encoder_attn"] if side == "decoder" else [])]
        for layer in range(LAYERS):
            key = f"model.{side}.layers.{layer}"
            for name, shape in maps.items():
                tensors[f"{key}.{name}.weight"] = torch.zeros(shape)
                tensors[f"{key}.{name}.bias"] = torch.zeros(shape[0])
            for name in norms:
                for kind in ("weight", "bias"):
                    tensors[f"{key}.{name}_layer_norm.{kind}"] = torch.ones(SIZE)
    save_tensors(folder / "model.safetensors", tensors)
    return folder


def make_folder(
    folder: Path, seed: int = 1, end: float = 2.5, generation: Any = None, **changes: Any
) -> Path:
    """Write a random model, whose end symbol is likely, and its tokenizer's files."""
    # Imported here, because it takes seconds and `bare_folder` does without.
    from transformers.models.marian.configuration_marian import MarianConfig
    from transformers.models.marian.modeling_marian import MarianMTModel

    settings = _write_text(folder, changes.get("share_encoder_decoder_embeddings") is False)
    torch.manual_seed(seed)
    model = MarianMTModel(MarianConfig(**(settings | changes)))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.3)
        model.final_logits_bias.normal_(0.0, 0.5)
        model.final_logits_bias[0, 0] = end
    config = model.generation_config
    config.bad_words_ids, config.num_beams = [[settings["pad_token_id"]]], 4
    config.max_length = 40
    for name, value in (generation or {}).items():
        setattr(config, name, value)
    model.save_pretrained(folder)
    return folder


def load_theirs(folder: Path) -> tuple[Any, Any]:
    """Return transformers' model and tokenizer of a folder."""
    from transformers.models.marian.modeling_marian import MarianMTModel
    from transformers.models.marian.tokenization_marian import MarianTokenizer

    # Typed as anything: transformers leaves most of itself without types.
    model: Any = MarianMTModel.from_pretrained(folder)
    return model.eval(), MarianTokenizer.from_pretrained(folder)
