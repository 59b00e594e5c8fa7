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
from nmtgrid.models.directory import load_model
from nmtgrid.search.translate import Translator
from nmtgrid.text.vocabulary import BEGIN, PAD

pytest.importorskip("transformers")

from tests.unit.convert.marian_folders import (
    SOURCE,
    TARGET,
    bare_folder,
    load_theirs,
    make_folder,
)

FORMS: dict[str, dict[str, Any]] = {
    "as OPUS-MT": {},
    "renormalised": {
        "generation": {"renormalize_logits": True, "length_penalty": 0.6},
    },
    "two vocabularies": {
        "share_encoder_decoder_embeddings": False, "scale_embedding": False, "seed": 2, "end": 0.5,
    },
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
        theirs = make_folder(folder / "theirs", **FORMS[form])
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
    translations = list(ours.translations(LINES))
    for index, translation in enumerate(translations):
        best = translation.hypotheses[0]
        text = texts[index].replace("<pad>", "").partition("</s>")[0]
        assert " ".join(translation.text.split()) == " ".join(text.split())
        if beam > 1 and len(best.tokens) < ours.plan.max_length_a:
            # Our score is theirs: log-probability over tokens, the end counted, to a power.
            assert best.score == pytest.approx(float(result.sequences_scores[index]), abs=1e-5)


def test_some_translations_end_by_themselves(imported: Any) -> None:
    lengths = [
        {len(t.hypotheses[0].tokens) for t in imported(form)[2].translations(LINES)}
        for form in ("as OPUS-MT", "two vocabularies")
    ]
    # None of them at the limit, then some.
    assert len(lengths[0]) >= 3 and max(lengths[0]) < 38 and 38 in lengths[1]


def test_tokens_are_theirs(imported: Any) -> None:
    _, tokenizer, ours, _ = imported("as OPUS-MT")
    lines = [*LINES, "  The   Cat\u3000’ﬁ’ ½  ", "", ">>fra<<a dog"]
    for line in lines:
        assert ours.pipeline.source.tokens(line) == tokenizer.tokenize(line)


def test_a_repeated_vector_starts_the_target(imported: Any) -> None:
    model, tokenizer, ours, _ = imported("as OPUS-MT")
    weight = ours.models[0].target_embedding.weight
    start = model.get_input_embeddings().weight[tokenizer.pad_token_id]
    assert torch.equal(weight[BEGIN], start) and torch.equal(weight[PAD], start)


@pytest.mark.parametrize("beam", [1, 4])
def test_ctranslate2_translates_the_same(beam: int, imported: Any, tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    *_, ours, folder = imported("renormalised")
    out = tmp_path / "ct2"
    assert main(["export", str(folder), "--to", "ctranslate2", "--out", str(out)]) == 0
    ours = nmtgrid.load(folder, beam=beam, length_penalty=0.0)
    sources = [ours.pipeline.source.tokens(line) for line in LINES]
    results = ctranslate2.Translator(str(out), intra_threads=1).translate_batch(
        sources, beam_size=beam, length_penalty=0.0, return_end_token=True, return_scores=True,
        min_decoding_length=0, max_decoding_length=39,
    )  # fmt: skip
    compared = 0
    for translation, result in zip(ours.translations(LINES), results, strict=True):
        best = translation.hypotheses[0]
        if len(best.tokens) < 38:
            assert result.hypotheses[0] == [*translation.target, "</s>"]
            assert result.scores[0] == pytest.approx(best.log_probability, abs=1e-4)
            compared += 1
    assert compared >= 2


def test_policies_that_need_no_training_work(imported: Any, tmp_path: Path) -> None:
    *_, folder = imported("as OPUS-MT")
    for lang, lines in (("en", SOURCE), ("fr", TARGET)):
        (tmp_path / f"t.{lang}").write_text("".join(f"{line}\n" for line in lines))
    prefix, data = str(tmp_path / "t"), str(tmp_path / "data")
    languages = ["--source-lang", "en", "--target-lang", "fr", "--tokenize", "none"]
    texts = ["--train", prefix, "--test", prefix, "--max-ratio", "9"]
    assert main(["preprocess", *languages, *texts, "--out", data]) == 0
    models = [str(folder / f"sentencepiece.{lang}.model") for lang in ("en", "fr")]
    assert main(["bpe", "learn", data, "--model", models[0], "--model", models[1]]) == 0
    report = tmp_path / "report.json"
    policies = ["local-agreement n=2", "re-translation mask=0", "confidence threshold=0.3"]
    named = [option for policy in policies for option in ("--policy", policy)]
    command = ["online-eval", str(folder), "--data", data, "--split", "test", *named]
    assert main([*command, "--json", str(report)]) == 0
    settings = json.loads(report.read_text())["settings"]
    assert {row["policy"] for row in settings} == {p.partition(" ")[0] for p in policies}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("whole") / "theirs")


def _change(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def _add_type(folder: Path) -> None:
    _change(folder, "vocab.json", more=29)
    _change(folder, "config.json", vocab_size=30, decoder_vocab_size=30)


FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (shutil.rmtree, "There is no folder"),
    "no tokenizer": (lambda folder: (folder / "source.spm").unlink(), "lacks `source.spm`"),
    "a pickle alone": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "a pickle",
    ),
    "several files": (
        lambda folder: (folder / "model.safetensors").rename(
            folder / "model.safetensors.index.json"
        ),
        "several files",
    ),
    "another model": (lambda folder: _change(folder, "config.json", model_type="bart"), "Marian"),
    "no number": (lambda folder: _change(folder, "config.json", d_model="x"), "`d_model`"),
    "another function": (
        lambda folder: _change(folder, "config.json", activation_function="gelu"), "`gelu`",
    ),
    "pre-norm": (
        lambda folder: _change(folder, "config.json", normalize_before=True), "`normalize_before`",
    ),
    "heads": (
        lambda folder: _change(folder, "config.json", decoder_attention_heads=2),
        "`decoder_attention_heads`",
    ),
    "layers": (
        lambda folder: _change(folder, "config.json", encoder_layers=3), "encoder.layers.2",
    ),
    "fewer layers": (
        lambda folder: _change(folder, "config.json", encoder_layers=1), "encoder.layers.1",
    ),
    "size": (lambda folder: _change(folder, "config.json", d_model=12), "[36, 12]"),
    "end": (lambda folder: _change(folder, "config.json", eos_token_id=1), "`eos_token_id`"),
    "start": (
        lambda folder: _change(folder, "config.json", decoder_start_token_id=999),
        "`decoder_start_token_id`",
    ),
    "types": (lambda folder: _change(folder, "vocab.json", more=27), "`more` has 27"),
    "more types": (lambda folder: _change(folder, "vocab.json", more=29), "has vectors for"),
    "rows": (_add_type, "29 rows for 30 types"),
    "no padding": (
        lambda folder: (folder / "vocab.json").write_text(
            (folder / "vocab.json").read_text().replace('"<pad>"', '"pad"')
        ),
        "lacks `<pad>`",
    ),
    "no JSON": (lambda folder: (folder / "vocab.json").write_text("["), "vocab.json"),
    "no SentencePiece": (
        lambda folder: (folder / "target.spm").write_text("x"), "not a model of SentencePiece",
    ),
    "cut weights": (
        lambda folder: (folder / "model.safetensors").write_bytes(
            (folder / "model.safetensors").read_bytes()[:-9]
        ),
        "model.safetensors",
    ),
    "no language": (
        lambda folder: _change(folder, "tokenizer_config.json", source_lang=None),
        "`--source-lang`",
    ),
    "a target vocabulary": (
        lambda folder: _change(folder, "tokenizer_config.json", separate_vocabs=True),
        "lacks `target_vocab.json`",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_clear(
    fault: str, whole: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    folder = tmp_path / "theirs"
    shutil.copytree(whole, folder)
    damage, message = FAULTS[fault]
    damage(folder)
    assert message in refused("import-marian", str(folder), "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_rates_of_dropout_keep_their_positions(tmp_path: Path) -> None:
    folder = bare_folder(tmp_path / "theirs")
    _change(
        folder, "config.json", dropout=0.2, attention_dropout=0.3, activation_dropout=0.4
    )  # fmt: skip
    assert main(["import-marian", str(folder), "--out", str(tmp_path / "out")]) == 0
    config = load_model(tmp_path / "out").model.config
    assert (config.dropout, config.embedding_dropout) == (0.2, 0.2)
    assert (config.attention_dropout, config.activation_dropout) == (0.3, 0.4)


def test_what_generate_does_otherwise_is_noted(
    whole: Path, tmp_path: Path, messages: list[str]
) -> None:
    folder = tmp_path / "theirs"
    shutil.copytree(whole, folder)
    _change(folder, "generation_config.json", no_repeat_ngram_size=3, bad_words_ids=None)
    assert main(["import-marian", str(folder), "--out", str(tmp_path / "out")]) == 0
    notes = [line for line in messages if line.startswith("Note: ")]
    assert len(notes) == 2
    assert "`no_repeat_ngram_size`" in notes[0] and "`bad_words_ids`" in notes[1]


def test_the_number_of_new_tokens_is_the_limit(
    whole: Path, tmp_path: Path, messages: list[str]
) -> None:
    """It wins over `max_length`, which counts the start symbol too."""
    folder = tmp_path / "theirs"
    shutil.copytree(whole, folder)
    limits = {}
    for name, changes in (("length", {"max_length": 8}), ("new", {"max_new_tokens": 7})):
        _change(folder, "generation_config.json", **changes, min_new_tokens=3)
        assert main(["import-marian", str(folder), "--out", str(tmp_path / name)]) == 0
        limits[name] = load_model(tmp_path / name).settings["search"]["max_length_a"]
    assert limits == {"length": 6.0, "new": 6.0}
    assert sum("`min_new_tokens`" in line for line in messages) == 2
    theirs, tokenizer = load_theirs(folder)
    encoded = tokenizer(["the red cat sees a small dog"], return_tensors="pt")
    # With the start and the end symbol, which is written in any case.
    longest = theirs.generate(**encoded, min_new_tokens=7)
    assert longest.shape[1] == 8
