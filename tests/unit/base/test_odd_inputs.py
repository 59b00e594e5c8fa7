"""Pipes, devices, sockets, folders and endless lines where a text or a file of ours is expected."""

from __future__ import annotations

import os
import random
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nmtgrid.base.errors import InputError, NmtgridError, StorageError
from nmtgrid.base.io import atomic, records, text
from nmtgrid.base.io.arrays import read_header
from nmtgrid.base.io.text import find_text, read_lines
from nmtgrid.cli.app import main
from nmtgrid.convert.from_fairseq.checkpoint import open_checkpoint
from nmtgrid.convert.from_fairseq.dictionary import read_codes
from nmtgrid.data.captioning.coco import read_captions
from nmtgrid.models.directory import load_model
from nmtgrid.text import incremental
from nmtgrid.text.bpe import Codes
from nmtgrid.text.incremental import stream_words
from nmtgrid.text.shards import read_shards
from nmtgrid.text.vocabulary import Vocabulary


def _open_checkpoint(path: Path) -> None:
    with open_checkpoint(path):
        pass


READERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: list(read_lines(path)),
    "shards": lambda path: list(read_shards(path)),
    "stream": lambda path: [word for word, _ in zip(stream_words(path, print), "x", strict=False)],
    "codes": Codes.load,
    "vocabulary": Vocabulary.read_foreign,
    "json": records.read_json,
    "tensors": read_header,
    "captions": read_captions,
    "codes of fairseq": read_codes,
    "checkpoint": _open_checkpoint,
}
READ_TWICE = ["json", "tensors", "captions", "codes of fairseq", "checkpoint"]


@pytest.fixture
def bad_paths(tmp_path: Path) -> Iterator[dict[str, Path]]:
    # A short path: those of sockets have about 100 characters.
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.getcwd()
        os.chdir(tmp_path)
        listener.bind("socket")
        os.chdir(before)
        os.mkfifo(tmp_path / "fifo")
        yield {
            "zero": Path("/dev/zero"), "folder": tmp_path, "socket": tmp_path / "socket",
            "fifo": tmp_path / "fifo",
        }  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["zero", "folder", "socket"])
def test_what_is_no_file_is_refused(bad_paths: dict[str, Path], reader: str, kind: str) -> None:
    with pytest.raises(NmtgridError) as caught:
        READERS[reader](bad_paths[kind])
    assert str(bad_paths[kind]) in str(caught.value)


@pytest.mark.parametrize("reader", READ_TWICE)
def test_pipes_are_refused_where_they_are_read_twice(
    bad_paths: dict[str, Path], reader: str
) -> None:
    with pytest.raises(NmtgridError, match="pipe"):
        READERS[reader](bad_paths["fifo"])


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "text.json", "bpe.codes"])
def test_pipes_in_a_model_directory(tiny_model: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(NmtgridError, match=name):
        load_model(folder)


def test_parallel_files_are_files(bad_paths: dict[str, Path], tmp_path: Path) -> None:
    bad_paths["fifo"].rename(tmp_path / "train.de")
    with pytest.raises(InputError, match="this is a pipe, a socket or a device, not a file"):
        find_text(str(tmp_path / "train"), "de")


def test_a_pipe_is_read_once(tmp_path: Path, tiny_model: Path) -> None:
    pipe, out = tmp_path / "pipe", tmp_path / "out"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("la\nlo\n",))
    writer.start()
    assert main(["decode", str(tiny_model), str(pipe), "--out", str(out)]) == 0
    writer.join()
    assert out.read_text().count("\n") == 2


@pytest.mark.parametrize("reader", ["text", "shards", "codes", "vocabulary"])
def test_endless_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    monkeypatch.setattr(text, "LONGEST_LINE", 1 << 20)
    path = tmp_path / "text"
    first = b"a\n" if reader == "vocabulary" else b"a b\n"
    path.write_bytes(first + b"x" * (1 << 21))
    with pytest.raises(InputError, match=r"text:2: the line has more than 1 MiB"):
        READERS[reader](path)
    path.write_bytes(b"a b\n" + b"x" * ((1 << 20) - 1) + b"\n")
    if reader in ("text", "shards"):
        READERS[reader](path)


@pytest.mark.parametrize("before", [0, 100_000])
@pytest.mark.parametrize("kind", ["NUL", "random", "latin1", "utf16"])
def test_a_stream_that_is_no_text_ends(tmp_path: Path, kind: str, before: int) -> None:
    """At once, and after a lot of text; a stream of Latin-1 with few umlauts goes on."""
    draw, path = random.Random(1), tmp_path / "stream"
    damaged = {
        "NUL": bytes(200_000), "random": draw.randbytes(200_000),
        "latin1": "für über öde Tage ".encode("latin1") * 10_000,
        "utf16": "Guten Tag\n".encode("utf-16") * 10_000,
    }  # fmt: skip
    path.write_bytes(b"Guten Tag\n" * (before // 10) + damaged[kind])
    count = 0
    try:
        for _ in stream_words(path, lambda warning: None):
            count += 1
        assert kind == "latin1"
    except InputError as fault:
        assert kind != "latin1" and "characters are not valid UTF-8" in str(fault)
        assert count < before // 3 + 20_000


def test_a_line_of_a_stream_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incremental, "LONGEST_LINE", 1000)
    path = tmp_path / "stream"
    path.write_text("la " * 300 + "\n" + "la " * 400_000)
    with pytest.raises(InputError, match="stream:2: the line has more than 1,000 characters"):
        list(stream_words(path, pytest.fail))


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_leftovers_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if kind == "file":
        monkeypatch.setattr(Path, "unlink", refuse)
        monkeypatch.setattr(os, "fsync", refuse)
        warns = pytest.warns(UserWarning, match=r"\.file\..*\.part is a leftover")
        with warns, pytest.raises(StorageError, match="not permitted"):
            atomic.write_text(tmp_path / "file", "text")
    else:
        (tmp_path / "folder").mkdir()
        monkeypatch.setattr(os, "rmdir", refuse)
        with pytest.warns(UserWarning, match="folder is a leftover"):
            atomic.remove_folder(tmp_path / "folder")


def test_a_report_refuses_pipes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its sections read the files one after the other: a pipe would be waited for without end."""
    pipe, text = tmp_path / "pipe", tmp_path / "text"
    os.mkfifo(pipe)
    text.write_text("a b\n")
    words = ["analyze", "report", f"a={text}", "--reference", str(pipe)]
    assert main([*words, "--out", str(tmp_path / "page.html")]) == 2
    assert "this is a pipe" in capsys.readouterr().err
