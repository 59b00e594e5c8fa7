"""`import-marian`: equal to transformers' own `MarianMTModel`, on random models it makes."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import nmtgrid
from nmtgrid.cli.app import main
from nmtgrid.search.translate import Translator

pytest.importorskip("transformers")

from tests.unit.marian_folders import SOURCE, TARGET, load_theirs, make_folder

FORMS: dict[str, dict[str, Any]] = {
    "as OPUS-MT": {},
    "renormalised": {"generation": {"renormalize_logits": True, "length_penalty": 0.6}},
    "two vocabularies": {"share_encoder_decoder_embeddings": False, "scale_embedding": False},
    "untied": {
        "tie_word_embeddings": False, "activation_function": "relu", "encoder_ffn_dim": 20,
        "decoder_layers": 1, "d_model": 20,
    },
}  # fmt: skip
LINES = [*SOURCE, "the cat", ">>fra<< a zebra eats grass", "dog dog dog dog dog dog dog dog"]


@pytest.fixture(scope="module")
def imported(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[Any, Any, Translator, Path]]:
    """Return a function from a form to their model and tokenizer, ours, and its folder."""

    @functools.cache
    def make(form: str) -> tuple[Any, Any, Translator, Path]:
        folder = tmp_path_factory.mktemp("marian")
        theirs = make_folder(folder / "theirs", seed=len(form), **FORMS[form])
        assert main(["import-marian", str(theirs), "--out", str(folder / "ours")]) == 0
        return (*load_theirs(theirs), nmtgrid.load(folder / "ours"), folder / "ours")

    return make


def _padded(tokenizer: Any, lines: list[str]) -> dict[str, Any]:
    return dict(tokenizer(lines, return_tensors="pt", padding=True))


@pytest.mark.parametrize("form", FORMS)
def test_log_probabilities(form: str, imported: Any) -> None:
    model, tokenizer, ours, _ = imported(form)
    pairs = [*zip(SOURCE, TARGET, strict=True), ("the cat", "zut"), (">>fra<< a dog", "un chien")]
    labels = tokenizer(text_target=[t for _, t in pairs], return_tensors="pt", padding=True)
    labels = labels["input_ids"]
    with torch.no_grad():
        logits = model(**_padded(tokenizer, [s for s, _ in pairs]), labels=labels).logits
    log_probabilities = logits.log_softmax(2).gather(2, labels[..., None])[..., 0]
    is_token = labels != tokenizer.pad_token_id
    expected = [row[keep].tolist() for row, keep in zip(log_probabilities, is_token, strict=True)]
    for scored, values in zip(ours.score(pairs), expected, strict=True):
        assert scored == pytest.approx(sum(values), abs=1e-5 * len(values))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("beam", [1, 4])
def test_translations(form: str, beam: int, imported: Any) -> None:
    model, tokenizer, _, folder = imported(form)
    ours = nmtgrid.load(folder, beam=beam)
    with torch.no_grad():
        result = model.generate(
            **_padded(tokenizer, LINES), num_beams=beam, output_scores=True,
            return_dict_in_generate=True,
        )  # fmt: skip
    texts = tokenizer.batch_decode(result.sequences, skip_special_tokens=False)
    translations = list(ours.stream(LINES))
    for index, translation in enumerate(translations):
        best = translation.hypotheses[0]
        text = texts[index].replace("<pad>", "").partition("</s>")[0]
        assert " ".join(translation.text.split()) == " ".join(text.split())
        if beam > 1 and len(best.tokens) < ours.plan.max_length_a:
            # Our score is theirs: log-probability over tokens, the end counted, to a power.
            assert best.score == pytest.approx(float(result.sequences_scores[index]), abs=1e-5)


def test_some_translations_end_by_themselves(imported: Any) -> None:
    *_, ours, _ = imported("as OPUS-MT")
    lengths = [len(t.hypotheses[0].tokens) for t in ours.stream(LINES)]
    assert min(lengths) > 0 and min(lengths) < ours.plan.max_length_a
