"""Scripts without spaces, languages that Moses does not know, and case and marks of others."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from nmtgrid.base.io.records import read_json
from nmtgrid.cli.app import main
from nmtgrid.text.moses import Moses, is_invisible
from nmtgrid.text.pipeline import Pipeline, TextFacts
from nmtgrid.text.scripts import count_unspaced, is_unsegmented
from nmtgrid.text.vocabulary import Vocabulary

SENTENCES = {
    "zh": "我们今天去北京的大学图书馆看书。",
    "ja": "私たちは今日、図書館で本を読みました。",
    "th": "วันนี้พวกเราไปอ่านหนังสือที่ห้องสมุด",
    "lo": "ມື້ນີ້ພວກເຮົາໄປອ່ານປຶ້ມຢູ່ຫໍສະໝຸດ",
    "km": "ថ្ងៃនេះយើងទៅអានសៀវភៅនៅបណ្ណាល័យ",
    "my": "ယနေ့ကျွန်ုပ်တို့စာကြည့်တိုက်သို့သွားသည်",
}


@pytest.mark.parametrize("lang", SENTENCES)
def test_unsegmented_text(lang: str) -> None:
    line = SENTENCES[lang]
    assert is_unsegmented(count_unspaced([line] * 3 + ["an English line"]))
    assert not is_unsegmented(count_unspaced([line] + ["an English line"] * 3))
    assert not is_unsegmented(count_unspaced([" ".join(line)]))
    words = " ".join(line[first : first + 4] for first in range(0, len(line), 4))
    assert not is_unsegmented(count_unspaced([words]))


@pytest.mark.parametrize("line", ["", "Ein Satz.", "우리는 오늘 갔다", "Она пришла, 好", "déjà vu"])
def test_other_text(line: str) -> None:
    assert not is_unsegmented(count_unspaced([line]))
    assert not is_unsegmented(Counter())


def _pairs(folder: Path, source: str, target: str, languages: tuple[str, str]) -> list[str]:
    for text, language in zip((source, target), languages, strict=True):
        (folder / f"t.{language}").write_text(f"{text}\n" * 3, encoding="utf-8")
    return [
        "preprocess", "--source-lang", languages[0], "--target-lang", languages[1],
        "--train", str(folder / "t"), "--valid", str(folder / "t"), "--out", str(folder / "data"),
    ]  # fmt: skip


def test_unsegmented_pairs_are_explained(tmp_path: Path, messages: list[str]) -> None:
    command = _pairs(tmp_path, SENTENCES["zh"], SENTENCES["ja"], ("zh", "ja"))
    assert main(command) == 0
    (advice,) = [line for line in messages if "SentencePiece" in line]
    assert "in zh and ja has no spaces" in advice and "--tokenize none`" in advice
    assert [line for line in messages if "no rules for `ja`" in line]
    assert not [line for line in messages if "no rules for `zh`" in line]


def test_pairs_dropped_by_their_ratio_are_explained(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    message = refused(*_pairs(tmp_path, SENTENCES["th"], "Today we read books.", ("th", "en")))
    assert "in th has no spaces" in message and "--tokenize none`" in message


def test_segmented_text_is_taken(tmp_path: Path, messages: list[str]) -> None:
    source, target = " ".join(SENTENCES["zh"]), "Today we go to the library of the old university ."
    command = _pairs(tmp_path, source, target, ("zh", "en"))
    assert main([*command, "--tokenize", "none"]) == 0
    assert not [line for line in messages if "spaces" in line or "no rules" in line]


@pytest.mark.parametrize("lang", ["tr", "az"])
def test_dotted_and_dotless_i(lang: str) -> None:
    moses = Moses(lang, lowercase=True, turkic_case=True)
    assert moses.tokenize("IĞDIR'da İstanbul") == "ığdır &apos; da istanbul"
    # As models of before have it, and other languages.
    for other in (Moses(lang, lowercase=True), Moses("en", lowercase=True, turkic_case=True)):
        assert other.tokenize("IĞDIR").startswith("iğ")


def test_new_datasets_and_models_know_it_and_old_ones_do_not(tmp_path: Path) -> None:
    command = _pairs(tmp_path, "IĞDIR İl", "A Town", ("tr", "en"))
    assert main([*command, "--lowercase"]) == 0
    data = tmp_path / "data"
    assert (data / "text/train.tr").read_text(encoding="utf-8").split("\n")[0] == "ığdır il"
    assert main(["bpe", "learn", str(data), "--words"]) == 0
    pipeline = Pipeline.load(data)
    assert pipeline.source.tokens("IĞDIR") == ["ığdır"]
    folder = tmp_path / "model"
    folder.mkdir()
    pipeline.save(folder)
    assert Pipeline.load(folder).source.tokens("İl") == ["il"]
    old = TextFacts("tr", "en", lowercase=True, subwords="words")
    Pipeline(old, Vocabulary(["il"]), Vocabulary(["a"])).save(folder)
    assert "turkic_case" not in json.dumps(read_json(folder / "text.json"))
    assert Pipeline.load(folder).source.tokens("İl") == ["i̇l"]


@pytest.mark.parametrize(
    ("lang", "text"),
    [
        ("ar", "مرحبا، كيف حالك؟ نعم؛ لا. (هذا)"),
        ("fa", "سلام، خوبی؟"),
        ("ur", "یہ کیا ہے؟ ہاں۔ ٹھیک ہے، شکریہ۔"),
        ("hi", "यह क्या है? हाँ। ठीक है, धन्यवाद। श्लोक॥"),
        ("mr", "तो आला। ती गेली॥ १॥"),
    ],
)
def test_marks_survive_the_round_trip(lang: str, text: str) -> None:
    moses = Moses(lang)
    tokens = moses.tokenize(text)
    assert moses.detokenize(tokens) == text
    marks = [word for word in tokens.split() if word in "،؛؟۔।॥"]
    assert len(marks) == sum(letter in "،؛؟۔।॥" for letter in text)


def test_a_mark_alone_stays() -> None:
    assert Moses("hi").detokenize("॥ श्लोक ॥") == "॥ श्लोक॥"


INVISIBLE = ["\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u00ad", " \u200b \u00a0\u200e"]


def test_every_character_without_width() -> None:
    formats = [c for c in map(chr, range(sys.maxunicode)) if unicodedata.category(c) == "Cf"]
    assert all(map(is_invisible, formats))
    assert not any(map(is_invisible, ("a", "\u200ba", "。", "\u0301", "-")))


@pytest.mark.parametrize("tokenize", [True, False])
@pytest.mark.parametrize("text", INVISIBLE)
def test_invisible_lines_are_empty(text: str, tokenize: bool) -> None:
    assert Moses("en", tokenize).tokenize(text) == ""


def test_invisible_lines_are_dropped_and_translated_as_empty(
    tmp_path: Path, tiny_model: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    for language in ("de", "en"):
        lines = ["a b", *INVISIBLE] if language == "de" else ["a b"] * (1 + len(INVISIBLE))
        (tmp_path / f"t.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    report = tmp_path / "report.json"
    command = ["preprocess", "--source-lang", "de", "--target-lang", "en", "--train"]
    command += [str(tmp_path / "t"), "--out", str(tmp_path / "data"), "--json", str(report)]
    assert main(command) == 0
    train = read_json(report)["splits"]["train"]
    assert train["pairs_kept"] == 1 and train["dropped"]["empty"] == len(INVISIBLE)
    out = tmp_path / "out"
    text = tmp_path / "t.de"
    text.write_text("\n".join(INVISIBLE) + "\n", encoding="utf-8")
    assert main(["decode", str(tiny_model), str(text), "--out", str(out)]) == 0
    assert out.read_bytes() == b"\n" * len(INVISIBLE)
    capsysbinary.readouterr()
