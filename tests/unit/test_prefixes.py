"""Translations that begin as they are told to: from Python and from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import nmtgrid
from nmtgrid.base.errors import InputError
from nmtgrid.cli.app import main
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.translate import TranslationOptions, Translator
from tests.unit.copy_model import copier
from tests.unit.pipes import piped
from tests.unit.test_translate import WORDS, saved, translator


@pytest.mark.parametrize("beam", [1, 3])
def test_translations_begin_with_their_prefixes(tmp_path: Path, beam: int) -> None:
    options = TranslationOptions(window=2, batch_tokens=30)
    held = nmtgrid.load(saved(tmp_path / "model"), device="cpu", beam=beam, options=options)
    lines = ["a b c", "", "f", "d e d e d", "b b"]
    free = held.translate(lines)
    assert held.translate(lines, prefixes=[""] * 5) == free
    # What the model writes anyway leaves it as it was, greedily; one that it does not is kept.
    own = [" ".join(text.split()[:2]) for text in free]
    if beam == 1:
        assert held.translate(lines, prefixes=own) == free
    forced = ["f a", "c", "", "e e e", free[4]]
    found = list(held.stream(lines, prefixes=iter(forced)))
    assert [one.text for one in found][1:3] == ["", free[2]], "an empty line stays empty"
    for one, prefix in zip(found, forced, strict=True):
        assert not one.source or one.text.startswith(prefix)
        for hypothesis in one.hypotheses:
            units = held.pipeline.target_tokens(hypothesis.tokens)
            assert units[: len(prefix.split())] == prefix.split()
    pairs = [(line, one.text) for line, one in zip(lines, found, strict=True) if line]
    values = [one.hypotheses[0].log_probability for one in found if one.hypotheses]
    assert held.score(pairs) == pytest.approx(values, abs=1e-4)


def test_prefixes_are_raw_text_in_pieces_and_may_be_longer_than_the_search_goes() -> None:
    held = Translator([copier("h@@ e@@ l@@ o", bpe=True)], SearchPlan(max_length_b=0))
    (one,) = held.stream(["hello"], prefixes=["ole " * 7])
    assert one.text.startswith("ole " * 6 + "ole") and one.target[:3] == ["o@@", "l@@", "e"]
    # Words that the model does not know stand there as they were given.
    assert translator(copier(WORDS)).translate(["a b c d"], prefixes=["Zebra b"]) == ["Zebra b c d"]
    long = Translator([copier(WORDS)], options=TranslationOptions(max_source=2))
    assert long.translate(["a b c d"], prefixes=["d"]) == ["d b c d"]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_prefixes_is_told(count: int) -> None:
    with pytest.raises(InputError, match=rf"prefixes for {count} lines, but (line|there are only)"):
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
    found = capsys.readouterr().out.splitlines()
    assert found[1:3] == free[1:3]
    assert found[0].startswith("f a") and found[3].startswith("c c")
    with piped(text.read_bytes()) as lines, piped(prefix.read_bytes()) as begun:
        assert decode(model, lines, "--prefix", begun) == 0
    assert capsys.readouterr().out.splitlines() == found


@pytest.mark.parametrize(
    ("prefixes", "options", "told"),
    [
        ("a\n", [], "prefix: there are prefixes for 1 lines, but there are 2 lines to translate."),
        ("a\n\nb\n", [], "Give one for each line of the input, an empty one where"),
        ("a\n\n", ["--stream", "--k", "1"], "prefix"),
        ("a\n\n", ["--forced", "--data", "data"], "`--prefix` has no effect with `--forced`"),
    ],
)
def test_prefixes_that_are_refused(
    prefixes: str,
    options: list[str],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, text, prefix = saved(tmp_path / "model"), tmp_path / "text", tmp_path / "prefix"
    text.write_text("a b c\nd e\n")
    prefix.write_text(prefixes)
    given = [] if "--forced" in options else [text]
    assert decode(model, *given, "--prefix", prefix, *options) == 2
    message = capsys.readouterr().err
    assert told in " ".join(message.split()) and "Traceback" not in message
    assert decode(model, "--prefix", "-") == 2
    assert "cannot both be standard input" in capsys.readouterr().err
