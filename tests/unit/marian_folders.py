"""Folders of random `MarianMTModel`s with tiny tokenizers, made by transformers' own classes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from transformers.models.marian.configuration_marian import MarianConfig
from transformers.models.marian.modeling_marian import MarianMTModel

from nmtgrid.text.sentencepiece_model import SentencePieceModel, learn_pieces

SOURCE = ["the red cat sees a small dog", "a dog eats the red fish", "small cats see fish"]
TARGET = ["le chat rouge voit un petit chien", "un chien mange le poisson rouge", "chats voient"]


def pieces_of(lines: list[str], count: int = 60) -> SentencePieceModel:
    """Return a model of SentencePiece learned from a few lines."""
    return learn_pieces(Counter(word for line in lines for word in line.split()), count)


def make_folder(
    folder: Path, seed: int = 1, end: float = 2.5, generation: Any = None, **changes: Any
) -> Path:
    """Write a random model, whose end symbol is likely, and its tokenizer's files."""
    folder.mkdir(parents=True)
    models = [pieces_of(SOURCE), pieces_of(TARGET)]
    is_separate = changes.get("share_encoder_decoder_embeddings") is False
    lists = [
        sorted({piece for line in lines for piece in model.segment(line.split())})
        for model, lines in zip(models, (SOURCE, TARGET), strict=True)
    ]
    # As transformers' converter has them: the end, the unknown, the types, the padding.
    joint = sorted({*lists[0], *lists[1], ">>fra<<"})
    # Both sides have one id of the padding.
    longest = max(map(len, lists))
    fillers = [[f"filler{n}" for n in range(longest - len(some))] for some in lists]
    types = [a + b for a, b in zip(lists, fillers, strict=True)] if is_separate else [joint, joint]
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
    settings: dict[str, Any] = {
        "vocab_size": len(names[0]), "decoder_vocab_size": len(names[1]), "d_model": 16,
        "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "scale_embedding": True,
        "activation_function": "swish", "pad_token_id": pad, "decoder_start_token_id": pad,
        "eos_token_id": 0, "forced_eos_token_id": 0, "max_position_embeddings": 64,
    }  # fmt: skip
    torch.manual_seed(seed)
    model = MarianMTModel(MarianConfig(**(settings | changes)))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.3)
        model.final_logits_bias.normal_(0.0, 0.5)
        model.final_logits_bias[0, 0] = end
    config = model.generation_config
    config.bad_words_ids, config.num_beams, config.max_length = [[pad]], 4, 40
    for name, value in (generation or {}).items():
        setattr(config, name, value)
    model.save_pretrained(folder)
    return folder


def load_theirs(folder: Path) -> tuple[Any, Any]:
    """Return transformers' model and tokenizer of a folder."""
    from transformers.models.marian.tokenization_marian import MarianTokenizer

    return MarianMTModel.from_pretrained(folder).eval(), MarianTokenizer.from_pretrained(folder)
