"""`preprocess --test sacrebleu:SET/PAIR`, with a cache that the tests create."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sacrebleu.dataset
from sacrebleu.dataset import DATASETS

from nmtgrid.cli.app import main

LINES = {"de": ["Ein Hund.", "Zwei  Katzen,\u2028 drei."], "en": ["A dog.", "Two cats, three."]}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with wmt15 de-en, and no network."""
    folder = tmp_path / "cache"
    (folder / "wmt15").mkdir(parents=True)
    for field, lang in (("src", "de"), ("ref", "en")):
        text = "".join(f"{line}\n" for line in LINES[lang])
        (folder / "wmt15" / f"wmt15.de-en.{field}").write_text(text, encoding="utf-8")
    for name in ("wmt14", "wmt15"):
        monkeypatch.setattr(DATASETS[name], "_outdir", str(folder / name))
        monkeypatch.setattr(DATASETS[name], "_rawdir", str(folder / name / "raw"))

    def no_network(*arguments: Any, **options: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(sacrebleu.dataset.base, "download_file", no_network)
    return folder


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    for lang in LINES:
        (tmp_path / f"t.{lang}").write_text("Hund .\n" * 3)
    return [
        "preprocess", "--source-lang", "de", "--target-lang", "en", "--train", str(tmp_path / "t"),
        "--out", str(tmp_path / "data"),
    ]  # fmt: skip


def test_a_set_in_the_cache(cache: Path, command: list[str], tmp_path: Path) -> None:
    tests = ["--test", "sacrebleu:wmt15/de-en", "--test", "news=sacrebleu:wmt15/de-en"]
    assert main([*command, *tests]) == 0
    for lang, lines in LINES.items():
        for name in ("test", "news"):
            kept = (tmp_path / "data" / "raw" / f"{name}.{lang}").read_text(encoding="utf-8")
            assert kept == "".join(f"{line}\n" for line in lines)
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert manifest["splits"]["news"]["test_sets"] == ["wmt15/de-en"]


def test_the_cache_is_that_of_the_environment(
    cache: Path, command: list[str], tmp_path: Path
) -> None:
    environment = os.environ | {"SACREBLEU": str(cache)}
    arguments = [sys.executable, "-m", "nmtgrid", *command, "--test", "sacrebleu:wmt15/de-en"]
    result = subprocess.run(arguments, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "data" / "raw" / "test.en").is_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wmt15/en-de", "is from en to de, but this dataset from de to en"),
        ("wmt15/xx-en", "`wmt15` has no languages `xx-en`"),
        ("wmt99/de-en", "has no test set `wmt99`"),
        ("wmt15", "must name a test set and its languages"),
        ("", "must name a test set and its languages"),
    ],
)
def test_sets_that_are_not_known(
    text: str, message: str, cache: Path, command: list[str], refused: Callable[..., str]
) -> None:
    assert message in refused(*command, "--test", f"sacrebleu:{text}")


def test_without_a_network_the_files_are_named(
    cache: Path, command: list[str], refused: Callable[..., str]
) -> None:
    message = refused(*command, "--test", "sacrebleu:wmt14/de-en")
    assert "`wmt14` (de-en) is not in sacreBLEU's cache" in message and "no network" in message
    # Names are sacreBLEU's: the set, the languages, the field.
    assert f"`wmt14.de-en.src` and `wmt14.de-en.ref` into {cache / 'wmt14'}" in message


def test_test_sets_do_not_train(
    cache: Path, command: list[str], refused: Callable[..., str]
) -> None:
    message = refused(*command, "--train", "sacrebleu:wmt15/de-en")
    assert "`--train` cannot be a test set" in message
