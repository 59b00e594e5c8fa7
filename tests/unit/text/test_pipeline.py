"""The pipeline: raw text to ids and back, and its files."""

import json
from pathlib import Path

import pytest

from nmtgrid.base.errors import NmtgridError, StorageError
from nmtgrid.text.bpe import Codes
from nmtgrid.text.pipeline import Pipeline, TextFacts
from nmtgrid.text.vocabulary import BEGIN, END, PAD, UNKNOWN, Vocabulary

SOURCE = Vocabulary(["hu@@", "nd", "."])
TARGET = Vocabulary(["do@@", "g", ".", "&apos;s"])
CODES = Codes(["h u", "n d</w>", "d o"])


def _pipeline() -> Pipeline:
    return Pipeline(TextFacts("de", "en", lowercase=True), SOURCE, TARGET, CODES)


def test_there_and_back() -> None:
    pipeline = _pipeline()
    assert pipeline.source.tokens("Hund.") == ["hu@@", "nd", "."]
    assert pipeline.encode_source("Hund!") == [4, 5, UNKNOWN]
    assert pipeline.encode_target("Dog.") == [4, 5, 6]
    assert pipeline.restore_tokenized([4, 5, 7, 6]) == "dog &apos;s ."
    assert pipeline.restore([4, 5, 7, 6]) == "dog's."
    pipeline = _pipeline()
    assert pipeline.encode_source("") == pipeline.encode_source(" \u2028 ") == []
    assert pipeline.restore([]) == pipeline.restore([END]) == ""
    pipeline = _pipeline()
    assert pipeline.target_tokens([BEGIN, 4, PAD, 5, END, 6]) == ["do@@", "g"]
    assert pipeline.restore([UNKNOWN]) == "<unk>"


def test_words_and_separate_codes() -> None:
    facts = TextFacts("de", "en", tokenize="none", subwords="words")
    pipeline = Pipeline(facts, Vocabulary(["Hund.", "@@"]), Vocabulary(["a@@", "b"]))
    assert pipeline.encode_source("Hund. @@ x") == [4, 5, UNKNOWN]
    # Words are no units: what looks like a joiner is text.
    assert pipeline.restore([4, 5]) == "a@@ b"
    facts = TextFacts("de", "en", joint=False)
    pipeline = Pipeline(facts, SOURCE, TARGET, CODES, Codes(["o g</w>"]))
    assert pipeline.source.tokens("dog") == ["do@@", "g"]
    assert pipeline.target.tokens("dog") == ["d@@", "og"]


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        (TextFacts("de", "en", joint=True), {"vocab.de.txt", "vocab.en.txt", "bpe.codes"}),
        (
            TextFacts("de", "en", joint=False),
            {"vocab.de.txt", "vocab.en.txt", "bpe.de.codes", "bpe.en.codes"},
        ),
        (TextFacts("en", "en", subwords="words"), {"vocab.source.txt", "vocab.target.txt"}),
    ],
    ids=["joint", "separate", "one-language"],
)
def test_saved_and_loaded_it_is_the_same(tmp_path: Path, facts: TextFacts, names: set[str]) -> None:
    codes = [] if facts.subwords == "words" else [CODES, Codes(["o g</w>"])]
    pipeline = Pipeline(facts, SOURCE, TARGET, *codes)
    pipeline.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*names, "text.json"}
    assert set(pipeline.files) == {*names, "text.json"}
    loaded = Pipeline.load(tmp_path)
    assert loaded.facts == facts
    for line in ("Hund.", "dog 's"):
        assert loaded.encode_source(line) == pipeline.encode_source(line)
        assert loaded.encode_target(line) == pipeline.encode_target(line)


@pytest.mark.parametrize("name", ["vocab.de.txt", "vocab.en.txt", "bpe.codes", "text.json"])
def test_a_missing_or_altered_part_is_named(tmp_path: Path, name: str) -> None:
    _pipeline().save(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StorageError, match=name):
        Pipeline.load(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(StorageError, match=name):
        Pipeline.load(tmp_path)


def test_unknown_facts_are_refused(tmp_path: Path) -> None:
    _pipeline().save(tmp_path)
    text = (tmp_path / "text.json").read_text()
    (tmp_path / "text.json").write_text(text.replace('"moses"', '"mozes"'))
    with pytest.raises(StorageError, match=r"text\.json has been truncated or altered"):
        Pipeline.load(tmp_path)
    values = json.loads(text.replace('"moses"', '"mozes"'))
    del values["sha256"]["text"]
    (tmp_path / "text.json").write_text(json.dumps(values))
    with pytest.raises(NmtgridError, match="mozes"):
        Pipeline.load(tmp_path)
    (tmp_path / "text.json").write_text(text.replace('"format": 1', '"format": 9'))
    with pytest.raises(StorageError, match="format 9"):
        Pipeline.load(tmp_path)
