"""The text of recipes/extra.sh: extra pairs that repeat a test sentence are left out."""

from __future__ import annotations

import lzma
import sys
from pathlib import Path

import pytest

from recipes import extra_data


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
