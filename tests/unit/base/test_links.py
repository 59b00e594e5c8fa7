"""What is written through a symbolic link replaces what the link names, never the link."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nmtgrid.base.errors import StorageError
from nmtgrid.base.io.atomic import atomic_file, make_folder, write_json, write_text
from nmtgrid.base.io.text import open_writer
from nmtgrid.cli.app import main
from nmtgrid.training.prepare import clear_folder
from tests.unit.helpers.damage import contents

WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: write_text(path, "new\n"),
    "json": lambda path: write_json(path, {}),
    "writer": lambda path: _write(path),
}


def _write(path: Path) -> None:
    with open_writer(path) as file:
        file.write(b"new\n")


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("exists", [True, False])
def test_files(tmp_path: Path, writer: str, exists: bool) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    target, link = folder / "file", tmp_path / "link"
    second = tmp_path / "second"
    if exists:
        target.write_text("old\n")
    second.symlink_to("link")
    link.symlink_to("elsewhere/file")
    WRITERS[writer](second)
    assert link.is_symlink() and second.is_symlink() and not target.is_symlink()
    assert target.read_text() in ("new\n", "{}\n")
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "link", "second"]
    assert os.listdir(folder) == ["file"]


@pytest.mark.parametrize(("target", "words"), [("loop", "leads to itself"), ("no/file", "folder")])
def test_links_to_nowhere_are_refused(tmp_path: Path, target: str, words: str) -> None:
    link = tmp_path / "loop"
    link.symlink_to(target)
    with pytest.raises(StorageError, match=words), atomic_file(link):
        pass
    assert link.is_symlink()


def test_a_dataset_in_a_link_that_leads_to_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for language in ("xx", "yy"):
        (tmp_path / f"train.{language}").write_text("a b\n")
    words = f"preprocess --source-lang xx --target-lang yy --train {tmp_path}/train --out"
    assert main([*words.split(), str(tmp_path / "loop")]) == 2
    assert "loop" in capsys.readouterr().err


def test_folders(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("folder")
    make_folder(link)
    assert link.is_symlink() and (tmp_path / "folder").is_dir()


KINDS = {
    "translations": "decode MODEL TEXT --out LINK",
    "traces": "decode MODEL TEXT --traces LINK --out OUT",
    "alignments": "decode MODEL TEXT --alignments LINK --out OUT",
    "report": "decode MODEL --data DATA --split valid --json LINK",
    "table": "preprocess --toy 10 --out OUT --json LINK",
    "page": "analyze report HYP --reference REF --out LINK",
    "picture": "analyze lengths HYP --reference REF --out LINK",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exists", [True, False])
def test_outputs_of_commands(
    tmp_path: Path, toy_dataset: Path, tiny_model: Path, kind: str, exists: bool
) -> None:
    text, target = tmp_path / "text", tmp_path / "target.png"
    link = tmp_path / ("link.html" if kind == "page" else "link.png")
    text.write_text("la la\n")
    if exists:
        target.write_text("old")
    link.symlink_to("target.png")
    hypotheses, references = tmp_path / "hyp", tmp_path / "ref"
    hypotheses.write_text("la lo li\n" * 20)
    references.write_text("la lo\n" * 20)
    paths = {
        "MODEL": tiny_model, "TEXT": text, "LINK": link, "OUT": tmp_path / "out",
        "DATA": toy_dataset, "HYP": hypotheses, "REF": references,
    }  # fmt: skip
    assert main([str(paths.get(word, word)) for word in KINDS[kind].split()]) == 0
    assert link.is_symlink() and target.is_file() and target.read_bytes() not in (b"", b"old")


@pytest.mark.parametrize("exists", [True, False])
def test_datasets_and_models(tmp_path: Path, tiny_model: Path, exists: bool) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    if exists:
        target.mkdir()
    link.symlink_to("target")
    assert main(["preprocess", "--toy", "10", "--out", str(link)]) == 0
    assert link.is_symlink() and (target / "manifest.json").is_file()


def test_units_of_a_dataset_go_where_its_links_lead(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert main(["preprocess", "--toy", "10", "--out", str(data)]) == 0
    learn = ["bpe", "learn", str(data), "--overwrite", "--merges"]
    assert main([*learn, "10"]) == 0
    links = [data / name for name in ("bpe.codes", "vocab.qa.txt", "train.safetensors")]
    for link in links:
        link.rename(elsewhere / link.name)
        link.symlink_to(f"../elsewhere/{link.name}")
    before = contents(elsewhere)
    assert main([*learn, "20"]) == 0
    assert all(link.is_symlink() and link.is_file() for link in links)
    after = contents(elsewhere)
    assert after.keys() == before.keys() and all(after[path] != before[path] for path in before)
    # Without codes there is nothing for the link to name.
    assert main(["bpe", "learn", str(data), "--words", "--overwrite"]) == 0
    assert not links[0].is_symlink() and not (elsewhere / "bpe.codes").exists()


def test_a_run_is_cleared_where_its_links_lead(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    folder.mkdir()
    (elsewhere / "000001").mkdir(parents=True)
    for name in ("notes.txt", "weights", "000001/last.safetensors"):
        (elsewhere / name).write_text(name)
    (folder / "checkpoints").symlink_to("../elsewhere")
    (folder / "model.safetensors").symlink_to("../elsewhere/weights")
    clear_folder(folder)
    assert sorted(os.listdir(elsewhere)) == ["notes.txt"], "only what a run wrote"
    assert (folder / "checkpoints").is_symlink() and (folder / "model.safetensors").is_symlink()


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoints/000001"])
def test_what_a_new_run_would_take_for_its_own_is_told(tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("kept")
    (tmp_path / "model/checkpoints").mkdir(parents=True)
    (tmp_path / "model" / name).symlink_to(elsewhere)  # a state is no link, a file no folder
    with pytest.raises(StorageError, match="could not be removed"):
        clear_folder(tmp_path / "model")
    assert (elsewhere / "file").read_text() == "kept"
