"""Texts that recipes make: extra pairs, without those of the test set, and fewer pairs."""

from __future__ import annotations

import lzma
import sys
from pathlib import Path

import pytest

from recipes import extra_data, fewer_pairs


def test_repeated_test_sentences_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {
        "plain/train": (["Eins.", "Zwei."], ["One.", "Two."]),
        "plain/valid": (["Ein Hund bellt."], ["A dog barks."]),
        "plain/test": (["Drei Äpfel!"], ["Three apples!"]),
        "extra/train": (
            ["ein hund bellt", "Ein Wolf heult.", "DREI ÄPFEL.", "Da sind sie.", "Vier."],
            ["It barks.", "A wolf howls.", "Apples.", "three apples", "Four."],
        ),
    }
    for name, sides in texts.items():
        for language, lines in zip(("de", "en"), sides, strict=True):
            path = tmp_path / f"{name}.{language}"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    # Compressed files are found too.
    path = tmp_path / "extra/train.de"
    with lzma.open(tmp_path / "extra/train.de.xz", "wb") as file:
        file.write(path.read_bytes())
    path.unlink()
    words = ["de", "en", "--plain", tmp_path / "plain", "--extra", tmp_path / "extra/train"]
    command = ["extra_data.py", *map(str, words), "--out", str(tmp_path / "both/train")]
    monkeypatch.setattr(sys, "argv", command)
    extra_data.main()
    both = {side: (tmp_path / f"both/train.{side}").read_text("utf-8") for side in ("de", "en")}
    assert both["de"] == "Eins.\nZwei.\nEin Wolf heult.\nVier.\n"
    assert both["en"] == "One.\nTwo.\nA wolf howls.\nFour.\n"
    assert "2 pairs and 2 extra ones; 3 left out" in capsys.readouterr().out


def test_fewer_pairs_are_at_equal_distances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for side in ("de", "en"):
        lines = "".join(f"{side} {number}\n" for number in range(10))
        (tmp_path / f"train.{side}").write_text(lines, encoding="utf-8")

    def take(number: int) -> list[list[str]]:
        out = tmp_path / "few/train"
        words = ["fewer_pairs.py", str(number), "de", "en", "--text", str(tmp_path / "train")]
        monkeypatch.setattr(sys, "argv", [*words, "--out", str(out)])
        fewer_pairs.main()
        return [
            out.with_name(f"train.{side}").read_text("utf-8").splitlines() for side in ("de", "en")
        ]

    assert take(4) == [[f"{side} {number}" for number in (0, 2, 5, 7)] for side in ("de", "en")]
    assert "4 of 10 pairs." in capsys.readouterr().out
    assert take(10)[0] == [f"de {number}" for number in range(10)]
    for number in (0, 11):
        with pytest.raises(SystemExit):
            take(number)
        assert f"cannot take {number} of 10 pairs" in capsys.readouterr().err
    (tmp_path / "train.en").write_text("en 0\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        take(1)
    assert "the sides have 10 and 1 lines" in capsys.readouterr().err
