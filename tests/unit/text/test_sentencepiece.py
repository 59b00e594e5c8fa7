"""SentencePiece: units of datasets, models and streams, and text without spaces."""

from __future__ import annotations

import io
import json
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentencepiece")

import sentencepiece
import torch

from nmtgrid.base.errors import ConfigError, InputError, StorageError
from nmtgrid.base.subword_marks import JOINER, SPACE, joined_words, word_numbers
from nmtgrid.cli.app import main
from nmtgrid.data.dataset import Dataset
from nmtgrid.metrics.latency import word_delays, word_ends
from nmtgrid.models import zoo
from nmtgrid.online.policies import WaitK
from nmtgrid.online.stream import StreamTranslator
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.long_sources import SourceLimits, cut, split
from nmtgrid.search.translate import whole_word
from nmtgrid.text.incremental import IncrementalPieces
from nmtgrid.text.moses import Moses
from nmtgrid.text.scripts import bleu_tokenizer, estimated_words
from nmtgrid.text.sentencepiece_model import SentencePieceModel, learn_pieces
from nmtgrid.text.vocabulary import UNKNOWN

GERMAN = ["der rote Hund sieht den Hund", "ein Hund sah den roten Ball", "der Ball, rot und rund"]
CHINESE = ["红色的狗看见那只狗在花园里", "一只狗看见红色的球在花园里", "这只红色的球是圆的在花园里"]


def _model(lines: list[str] = GERMAN, pieces: int = 60) -> SentencePieceModel:
    return learn_pieces(Counter(word for line in lines for word in line.split()), pieces)


def _foreign(lines: list[str], **options: Any) -> bytes:
    """Return a model that the package itself learns from whole lines."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=content, hard_vocab_limit=False,
        minloglevel=2, **{"vocab_size": 40} | options,
    )  # fmt: skip
    return content.getvalue()


def test_pieces_are_those_of_the_package() -> None:
    content = _foreign(GERMAN)
    model, processor = SentencePieceModel(content), sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(content)
    for line in [*GERMAN, "Zebra  ﬁel ½ ´ \u200b x", "der der der"]:
        # A word's pieces do not depend on the words around it.
        assert model.segment(line.split()) == processor.encode(line, out_type=str)
        assert " ".join(joined_words(model.segment(line.split()), SPACE)) == " ".join(
            processor.decode(processor.encode(line, out_type=str)).split()
        )
    assert pickle.loads(pickle.dumps(model)).segment(["rotrund"]) == model.segment(["rotrund"])
    assert len(model) == processor.get_piece_size() and "Z" not in model


def test_language_codes_stay_whole() -> None:
    model = _model()
    assert model.segment([">>fra<<", "rot"]) == [">>fra<<", *model.segment(["rot"])]
    assert model.segment([">>fra<<rot"]) == model.segment([">>fra<<", "rot"])
    assert ">>fra<<" in model and ">>" not in model


def test_learning_says_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        learn_pieces({"a": 1}, 0)
    with pytest.raises(ConfigError, match="no text"):
        learn_pieces({}, 9)
    with pytest.raises(ConfigError, match="11 different characters"):
        learn_pieces({"abcdefghijk": 2}, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (None, "not a model of SentencePiece"),
        ({"split_by_whitespace": False}, "span several words"),
        ({"treat_whitespace_as_suffix": True}, "span several words"),
        ({"add_dummy_prefix": False}, "first word of a line"),
        ({"byte_fallback": True, "vocab_size": 400}, "into bytes"),
    ],
)
def test_models_that_cannot_be_used(
    options: dict[str, Any] | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.model"
    lines = ["a b a b c a b"] * 9
    path.write_bytes(b"no model" if options is None else _foreign(lines, **options))
    with pytest.raises(InputError, match=message):
        SentencePieceModel.load(path)


def test_marks_of_words() -> None:
    units = ["▁ein", "▁", "Hun", "d", "▁sah", "▁"]
    assert word_numbers(units, SPACE) == [0, 1, 1, 1, 2, 2]
    assert joined_words(units, SPACE) == ["ein", "Hund", "sah"]
    assert joined_words(["ei@@", "n", "Hund"], JOINER) == ["ein", "Hund"]
    assert whole_word(units, 3, SPACE) == "Hund"
    # `Hund` is final with the write of `▁sah`, the last word with the end symbol, which is write 6.
    assert word_ends(7, units, SPACE) == [1, 4, 6]
    # Source words of 1 and 2 units; the fourth write saw 2 units, the fifth and last all 3.
    assert word_delays([1, 1, 2, 2, 3, 3, 3], [1, 2], units, SPACE) == [1, 2, 2]


def test_long_lines_are_cut_between_words() -> None:
    units = ["▁Er", "▁g", "ing", ".", "▁Sie", "▁kam", "▁nie", "."]
    limits = SourceLimits(whole=6, piece=6)
    assert split(units, limits, Moses("de", tokenize=False), SPACE) == [4, 8]
    # At most five: not within a word, so behind `ing`, unless a clause ends before.
    assert cut(["▁a", "▁b", "▁c", "▁ding", "en", "t"], 5, SPACE) == [3, 6]
    assert cut(["▁我", "看", "，", "你", "来", "了"], 5, SPACE) == [3, 6]


def test_pieces_become_text_at_once() -> None:
    text = IncrementalPieces()
    assert [text.add(piece) for piece in ("▁", "我", "看", "▁the", "▁", "▁c", "at")] == [
        "", "我", "看", " the", " ", "c", "at",
    ]  # fmt: skip
    assert text.text == "我看 the cat"


def _dataset(folder: Path, *options: str, learn: tuple[str, ...] = ()) -> Path:
    folder.mkdir()
    for lang, lines in (("de", GERMAN), ("zh", CHINESE)):
        (folder / f"t.{lang}").write_text("".join(f"{line}\n" for line in lines * 3))
    prefix, data = str(folder / "t"), folder / "data"
    texts = ["--train", prefix, "--valid", prefix, "--test", prefix, "--out", str(data)]
    languages = ["--source-lang", "de", "--target-lang", "zh", "--tokenize", "none"]
    assert main(["preprocess", *languages, *texts, *options]) == 0
    assert main(["bpe", "learn", str(data), *learn]) == 0
    return data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pieces") / "d"
    return _dataset(folder, learn=("--method", "sentencepiece", "--pieces", "70"))


def test_datasets_restore_raw_text(data: Path) -> None:
    dataset = Dataset.open(data)
    pipeline, train = dataset.pipeline, dataset.split("train")
    # Chinese without spaces passed the length filters.
    assert len(train) == 9 and dataset.manifest["splits"]["train"]["unsegmented"] == ["zh"]
    for index, line in enumerate(CHINESE):
        assert pipeline.encode_target(line) == train.target(index)
        assert pipeline.restore(train.target(index)) == line
        assert UNKNOWN not in train.target(index)
    assert train.target_lengths.max() > 4
    assert UNKNOWN in pipeline.encode_source("Zebra")  # no line has its first letter
    assert pipeline.facts.subwords == "sentencepiece" and pipeline.target_joiner == SPACE


def test_given_models_and_two_models(data: Path, tmp_path: Path) -> None:
    model = str(data / "sentencepiece.model")
    again = _dataset(tmp_path / "a", learn=("--model", model))
    for name in ("vocab.de.txt", "vocab.zh.txt", "sentencepiece.model", "train.safetensors"):
        assert (again / name).read_bytes() == (data / name).read_bytes()
    both = ("--method", "sentencepiece", "--pieces", "50", "--separate")
    pipeline = Dataset.open(_dataset(tmp_path / "b", learn=both)).pipeline
    assert pipeline.files[2:4] == ["sentencepiece.de.model", "sentencepiece.zh.model"]
    assert pipeline.target.codes is not pipeline.source.codes


def test_altered_models_are_noticed(data: Path, tmp_path: Path) -> None:
    copy = _dataset(tmp_path / "a", learn=("--model", str(data / "sentencepiece.model")))
    content = bytearray((copy / "sentencepiece.model").read_bytes())
    content[200] ^= 1
    (copy / "sentencepiece.model").write_bytes(content)
    with pytest.raises(StorageError, match="altered"):
        Dataset.open(copy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--method", "sentencepiece", "--merges", "9"), "`--merges` applies to BPE"),
        (("--method", "sentencepiece", "--codes", "x"), "`--codes` applies to BPE"),
        (("--pieces", "9"), "`--pieces` applies to SentencePiece"),
        (("--method", "bpe", "--model", "x"), "`--model` applies to SentencePiece"),
        (("--words", "--method", "sentencepiece"), "`--method` has no effect with `--words`"),
        (("--model", "x", "--pieces", "9"), "`--pieces` has no effect with `--model`"),
        (("--model", "x", "--model", "y", "--joint"), "`--joint` uses the same subwords"),
        (("--model", "x", "--separate"), "`--separate` needs `--model` twice"),
        (("--model", "nothing.model", "--overwrite"), "nothing.model"),
    ],
)
def test_bad_options(
    options: tuple[str, ...], message: str, data: Path, refused: Callable[..., str]
) -> None:
    assert message in refused("bpe", "learn", str(data), *options)


def test_merges_beside_a_model_are_one_fault(data: Path, refused: Callable[..., str]) -> None:
    message = refused("bpe", "learn", str(data), "--model", "x", "--merges", "9")
    assert "`--merges` has no effect with `--model`" in message
    assert "applies to BPE only" not in message


def test_text_without_spaces_is_noticed(tmp_path: Path, messages: list[str]) -> None:
    _dataset(tmp_path / "a", learn=("--merges", "9"))
    notes = [line for line in messages if "--method sentencepiece" in line]
    assert len(notes) == 2 and all("zh" in line for line in notes)


def test_lengths_of_text_without_spaces() -> None:
    # 13 letters of Chinese are some six words, 16 of Thai three; other text is as it stands.
    assert estimated_words([CHINESE[0]]) == 6
    assert estimated_words(["วันนี้พวกเราไปอ่าน"]) == 4
    assert estimated_words(["我们", "hello", "Donaudampfschiff"]) == 3
    assert bleu_tokenizer("zh", CHINESE, "13a") == "zh"
    assert bleu_tokenizer("ja", CHINESE, "none") == "char"
    assert bleu_tokenizer("de", GERMAN, "13a") == "13a"


def test_apply_and_undo(data: Path, tmp_path: Path) -> None:
    raw, cut_text, back = (tmp_path / name for name in ("raw", "cut", "back"))
    raw.write_text("".join(f"{line}\n" for line in [*GERMAN, *CHINESE]))
    model = str(data / "sentencepiece.model")
    assert main(["bpe", "apply", model, "--input", str(raw), "--out", str(cut_text)]) == 0
    assert main(["bpe", "undo", "--input", str(cut_text), "--out", str(back)]) == 0
    assert back.read_text() == raw.read_text() and "▁" in cut_text.read_text()


def test_streams_write_the_text_of_the_search(data: Path) -> None:
    pipeline = Dataset.open(data).pipeline
    torch.manual_seed(4)
    sizes = {"encoder_depth": 1, "decoder_depth": 1, "size": 8, "heads": 2}
    model = zoo.build(
        "transformer", overrides={**sizes, "feed_forward_size": 8, "encoder": "unidirectional"},
        source_vocab_size=len(pipeline.source_vocabulary),
        target_vocab_size=len(pipeline.target_vocabulary),
    ).eval()  # fmt: skip
    plan = SearchPlan(max_length_a=12, max_length_b=0.0)
    # Both directions of text: the model is random, its words may be anything.
    stream = StreamTranslator([model], pipeline, WaitK(2), plan).begin()
    written = [stream.read(word) for word in GERMAN[0].split()]
    words = [word for some in [*written, stream.end()] for word in some]
    tokens = stream.hypothesis().tokens
    assert " ".join(words) == pipeline.restore_tokenized(tokens)
    assert len(stream.word_delays()) == len(words) > 0
    text = IncrementalPieces()
    for unit in stream.target:
        text.add(unit)
    assert text.text.strip() == pipeline.restore(tokens)
    assert stream.source == pipeline.source_tokens(GERMAN[0])


def test_bpe_dropout_is_refused(data: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    message = refused(
        "train", str(data), "--arch", "transformer", "--preset", "toy", "--out",
        str(tmp_path / "m"), "--set", "batches.source_bpe_dropout=0.1",
    )  # fmt: skip
    assert "pieces of SentencePiece" in message


def test_facts_are_those_of_the_model(data: Path) -> None:
    facts = json.loads((data / "manifest.json").read_text())["units"]
    assert facts["subwords"] == "sentencepiece" and facts["joint"]
    (size,) = facts["pieces"]
    assert size == len(SentencePieceModel.load(data / "sentencepiece.model")) <= 70
