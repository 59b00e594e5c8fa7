"""Translations that begin as they are told to: from Python and from the command line."""

from pathlib import Path

import pytest

import nmtgrid
from nmtgrid.base.errors import InputError
from nmtgrid.cli.app import main
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.translate import TranslationOptions, Translator
from tests.unit.helpers.copy_model import copier
from tests.unit.helpers.pipes import piped
from tests.unit.search.test_translate import WORDS, check_scores, saved, translator


@pytest.mark.parametrize("beam", [1, 3])
def test_translations_begin_with_their_prefixes(tmp_path: Path, beam: int) -> None:
    options = TranslationOptions(window=2, batch_tokens=30)
    loaded = nmtgrid.load(saved(tmp_path / "model"), device="cpu", beam=beam, options=options)
    lines = ["a b c", "", "f", "d e d e d", "b b"]
    free = loaded.translate(lines)
    assert loaded.translate(lines, prefixes=[""] * 5) == free
    # What the model writes anyway leaves it as it was, greedily; one that it does not is kept.
    own = [" ".join(text.split()[:2]) for text in free]
    if beam == 1:
        assert loaded.translate(lines, prefixes=own) == free
    forced = ["f a", "c", "", "e e e", free[4]]
    translations = list(loaded.translations(lines, prefixes=iter(forced)))
    assert [translation.text for translation in translations][1:3] == ["", free[2]], (
        "an empty line stays empty"
    )
    for translation, prefix in zip(translations, forced, strict=True):
        assert not translation.source or translation.text.startswith(prefix)
        for hypothesis in translation.hypotheses:
            units = loaded.pipeline.target_tokens(hypothesis.tokens)
            assert units[: len(prefix.split())] == prefix.split()
    check_scores(loaded, lines, translations)


def test_prefixes_are_raw_text_in_pieces_and_may_be_longer_than_the_search_goes() -> None:
    loaded = Translator([copier("h@@ e@@ l@@ o", bpe=True)], SearchPlan(max_length_b=0))
    (translation,) = loaded.translations(["hello"], prefixes=["ole " * 7])
    assert translation.text.startswith("ole " * 6 + "ole") and translation.target[:3] == [
        "o@@",
        "l@@",
        "e",
    ]
    # Words that the model does not know stand there as they were given.
    assert translator(copier(WORDS)).translate(["a b c d"], prefixes=["Zebra b"]) == ["Zebra b c d"]
    long = Translator([copier(WORDS)], options=TranslationOptions(max_source=2))
    assert long.translate(["a b c d"], prefixes=["d"]) == ["d b c d"]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_prefixes_is_told(count: int) -> None:
    with pytest.raises(InputError, match=rf"for {count} lines?, but (line|the input has only)"):
        translator(copier(WORDS)).translate(["a", "b"], prefixes=["a"] * count)
    with pytest.raises(TypeError, match="prefixes must be several strings"):
        translator(copier(WORDS)).translate(["a", "b"], prefixes="ab")


def decode(folder: Path, *options: str | Path) -> int:
    return main(["decode", str(folder), *map(str, options), "--device", "cpu"])


def test_decode_with_prefixes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, text, prefix = saved(tmp_path / "model"), tmp_path / "text", tmp_path / "prefix"
    text.write_text("a b c\n\nd e\nf\n")
    prefix.write_text("f a\n\n\n  c   c\n")
    assert decode(model, text) == 0
    free = capsys.readouterr().out.splitlines()
    assert decode(model, text, "--prefix", prefix) == 0
    translations = capsys.readouterr().out.splitlines()
    assert translations[1:3] == free[1:3]
    assert translations[0].startswith("f a") and translations[3].startswith("c c")
    with piped(text.read_bytes()) as lines, piped(prefix.read_bytes()) as begun:
        assert decode(model, lines, "--prefix", begun) == 0
    assert capsys.readouterr().out.splitlines() == translations


@pytest.mark.parametrize(
    ("prefixes", "options", "words"),
    [
        ("a\n", [], "prefix: there are prefixes for 1 line, but 2 lines are to be translated."),
        ("a\n\nb\n", [], "Give one for each line of the input, an empty one for"),
        ("a\n" + "b " * 1025 + "\n", [], "prefix of line 2 has 1,025 units, but at most 1,024"),
        ("a\n\n", ["--stream", "--k", "1"], "prefix"),
        ("a\n\n", ["--forced", "--data", "data"], "`--prefix` has no effect with `--forced`"),
    ],
)
def test_prefixes_that_are_refused(
    prefixes: str, options: list[str], words: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model, text, prefix = saved(tmp_path / "model"), tmp_path / "text", tmp_path / "prefix"
    text.write_text("a b c\nd e\n")
    prefix.write_text(prefixes)
    inputs = [] if "--forced" in options else [text]
    assert decode(model, *inputs, "--prefix", prefix, *options) == 2
    message = capsys.readouterr().err
    assert words in " ".join(message.split()) and "Traceback" not in message
    assert decode(model, "--prefix", "-") == 2
    assert "cannot both be standard input" in capsys.readouterr().err
