"""SentencePiece: units of datasets, models and streams, and text without spaces."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
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
from nmtgrid.models.api import TranslationModel
from nmtgrid.online.policies import WaitK
from nmtgrid.online.stream import LineText, StreamTranslator
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.long_sources import SourceLimits, cut, split, units_to_split
from nmtgrid.search.translate import whole_word
from nmtgrid.serve.streams import Limits, Stream, Worker
from nmtgrid.serve.systems import System, SystemRequest
from nmtgrid.text.bpe import Codes
from nmtgrid.text.incremental import IncrementalPieces
from nmtgrid.text.moses import Moses
from nmtgrid.text.pipeline import Pipeline, Side
from nmtgrid.text.scripts import bleu_tokenizer, estimated_words
from nmtgrid.text.sentencepiece_model import SentencePieceModel, learn_pieces
from nmtgrid.text.vocabulary import UNKNOWN, Vocabulary
from tests.unit.helpers.text_data import foreign_pieces

GERMAN = ["der rote Hund sieht den Hund", "ein Hund sah den roten Ball", "der Ball, rot und rund"]
CHINESE = ["红色的狗看见那只狗在花园里", "一只狗看见红色的球在花园里", "这只红色的球是圆的在花园里"]


def _model(lines: list[str] = GERMAN, pieces: int = 60) -> SentencePieceModel:
    return learn_pieces(Counter(word for line in lines for word in line.split()), pieces)


def test_pieces_are_those_of_the_package() -> None:
    content = foreign_pieces(GERMAN)
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


def test_learned_pieces_do_not_normalise() -> None:
    # The package's default makes `,`, `!`, `(`, `...`, `x2`, `1⁄2`, `TM` and so on of these.
    odd = ["狗，看见！", "（那只）？", "…", "x²", "½", "™", "ﬁel", "Ａ", "e\u0301", "a\u200bb", "①"]
    model = _model([*GERMAN, *odd], 90)
    for word in odd:
        assert "".join(model.segment([word])) == f"▁{word}"
        assert all(piece in model for piece in model.segment([word]))
    # A model that others trained keeps its own rules.
    foreign = SentencePieceModel(foreign_pieces([*GERMAN, *odd], vocab_size=60))
    assert "".join(foreign.segment(["½，"])) == "▁1⁄2,"


def test_language_codes_stay_whole() -> None:
    model = _model()
    assert model.segment([">>fra<<", "rot"]) == [">>fra<<", *model.segment(["rot"])]
    assert model.segment([">>fra<<rot"]) == model.segment([">>fra<<", "rot"])
    assert ">>fra<<" in model and ">>" not in model
    assert model.segment([">>zho_Hans<<"]) == [">>zho_Hans<<"]
    # Quotation marks are text.
    for word in (">>Ja<<", ">>Nein<<,", ">>rote<<"):
        pieces = model.segment(["der", word, "Hund"])
        assert joined_words(pieces, SPACE) == ["der", word, "Hund"] and word not in model


def test_learning_says_what_is_wrong() -> None:
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
    path.write_bytes(b"no model" if options is None else foreign_pieces(lines, **options))
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


def test_of_text_without_spaces_a_unit_is_copied() -> None:
    # The `▁` goes with the unit behind it.
    units = ["▁", "我们", "看见", "那只", "狗", "。", "▁Hund"]
    assert [whole_word(units, n, SPACE) for n in (0, 1, 2, 6)] == ["我们", "我们", "看见", "Hund"]
    assert whole_word(["我@@", "们@@", "看见@@", "那只@@", "狗"], 2) == "看见"
    assert whole_word(["北@@", "京", "好"], 0) == "北京"


def test_long_lines_are_cut_between_words() -> None:
    units = ["▁Er", "▁g", "ing", ".", "▁Sie", "▁kam", "▁nie", "."]
    limits = SourceLimits(whole=6, segment=6)
    assert split(units, limits, Moses("de", tokenize=False), SPACE) == [4, 8]
    # At most five: not within a word, so behind `ing`, unless a clause ends before.
    assert cut(["▁a", "▁b", "▁c", "▁ding", "en", "t"], 5, SPACE) == [3, 6]
    assert cut(["▁我", "看", "，", "你", "来", "了"], 5, SPACE) == [3, 6]


def test_long_text_without_spaces_is_split_at_its_sentences() -> None:
    vocabulary = Vocabulary(["a"])
    sentences = [f"{CHINESE[0]}。", "这只球是圆的吗？", "「狗看见。」它看见！", f"{CHINESE[1]}。"]
    pieces, limits = _model([*CHINESE, *sentences], 200), SourceLimits(10, 40)
    for codes in (pieces, Codes(["的 狗", "圆 的"])):
        side = Side(Moses("zh", tokenize=False), codes, vocabulary)
        units = units_to_split("".join(sentences), limits, side)
        ends = split(units, limits, side.moses, side.mark)
        # Each is as if it stood alone: its first piece has a mark, its last unit of BPE has none.
        split_units = [units[start:end] for start, end in pairwise([0, *ends])]
        assert split_units == [side.tokens(sentence) for sentence in sentences]
        short = "".join(sentences[1:3])
        assert units_to_split(short, SourceLimits(40, 40), side) == side.tokens(short)
    # A normaliser of the model's does not hide the marks: `？` is `?` in its units.
    foreign = SentencePieceModel(foreign_pieces([*CHINESE, *sentences], vocab_size=60))
    side = Side(Moses("zh", tokenize=False), foreign, vocabulary)
    units = units_to_split(sentences[1] * 2, SourceLimits(4, 40), side)
    assert units == side.tokens(sentences[1]) * 2 and units[-1] == "?"


def test_spaces_between_translated_segments() -> None:
    def joined(segments: list[str], tokenize: bool = False) -> str:
        side = Side(Moses("zh", tokenize), _model(), Vocabulary(["a"]))
        return side.join_segments([segment.split() for segment in segments])

    assert joined(["▁红色的 狗看见 。", "", "▁ 一只狗 看见球 。"]) == "红色的狗看见。一只狗看见球。"
    assert joined(["▁Er ▁g ing .", "", "▁Sie ▁kam ."]) == "Er ging. Sie kam."
    # Words that are set apart by spaces stay so, and so do tokens of Moses.
    assert joined(["▁红色 ▁狗", "▁看见 ▁球"]) == "红色 狗 看见 球"
    tokens = joined(["▁红色的 狗看见", "▁一只狗 看见球"], tokenize=True)
    assert tokens == "红色的狗看见 一只狗看见球"


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
    tagged = f">>zho<< {GERMAN[0]}"
    raw.write_text("".join(f"{line}\n" for line in [tagged, *GERMAN, *CHINESE]))
    model = str(data / "sentencepiece.model")
    assert main(["bpe", "apply", model, "--input", str(raw), "--out", str(cut_text)]) == 0
    assert main(["bpe", "undo", "--input", str(cut_text), "--out", str(back)]) == 0
    assert back.read_text() == raw.read_text() and "▁" in cut_text.read_text()
    # In BPE such a mark is a word like others.
    cut_text.write_text("ei@@ n H@@ und ▁ x\n")
    assert main(["bpe", "undo", "--input", str(cut_text), "--out", str(back)]) == 0
    assert back.read_text() == "ein Hund ▁ x\n"
    cut_text.write_text("▁ ei@@ n Hund\n▁ Hund @@\n")
    assert main(["bpe", "undo", "--input", str(cut_text), "--out", str(back)]) == 0
    assert back.read_text() == "▁ ein Hund\nHund@@\n"
    undo = ["bpe", "undo", "--method", "bpe", "--input", str(cut_text), "--out", str(back)]
    assert main(undo) == 0
    assert back.read_text() == "▁ ein Hund\n▁ Hund \n"


def _small(pipeline: Pipeline) -> TranslationModel:
    """Return a causal model with drawn weights: what it writes may be anything."""
    torch.manual_seed(4)
    sizes = {"encoder_depth": 1, "decoder_depth": 1, "size": 8, "heads": 2}
    return zoo.build(
        "transformer", overrides={**sizes, "feed_forward_size": 8, "encoder": "unidirectional"},
        source_vocab_size=len(pipeline.source_vocabulary),
        target_vocab_size=len(pipeline.target_vocabulary),
    ).eval()  # fmt: skip


def test_streams_write_the_text_of_the_search(data: Path) -> None:
    pipeline = Dataset.open(data).pipeline
    model = _small(pipeline)
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
    assert stream.source == pipeline.source.tokens(GERMAN[0])


def test_pieces_show_as_they_are_written(data: Path) -> None:
    """In `decode --stream`, whose line is a `LineText`, and in the demo."""
    pipeline = Dataset.open(data).pipeline
    plan = SearchPlan(max_length_a=12, max_length_b=0.0)
    translator = StreamTranslator([_small(pipeline)], pipeline, WaitK(2), plan)
    line, limits, shown = LineText(translator), Limits(), ""
    worker = Worker(limits)
    demo = Stream([System(SystemRequest(), "", translator)], worker, limits, 60)
    for word in GERMAN[0].split():
        shown += line.read(word)
        assert shown == line.text == "".join(line.stream.target).replace(SPACE, " ").lstrip()
        list(demo.feed(word))
        assert "".join(e["text"] for e in demo.events if e["event"] == "text") == shown
    assert shown, "before the line has ended"
    shown += line.end()
    list(demo.feed("", end=True))
    worker.close()
    assert demo.events[-1]["text"] == line.trace(1).text == shown


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
