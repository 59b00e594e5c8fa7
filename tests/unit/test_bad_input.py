"""Bad files: archives that lose text, closed outputs, codes and dictionaries that hold nothing."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from nmtgrid.base.errors import ConfigError, InputError, NmtgridError, StorageError
from nmtgrid.base.io.text import find_text, is_stream, open_writer, read_lines
from nmtgrid.data import directory
from nmtgrid.data.build import TextPlan, preprocess_files
from nmtgrid.text.bpe import Codes, learn
from nmtgrid.text.cleaning import Filters
from nmtgrid.text.vocabulary import Vocabulary

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress,
}  # fmt: skip
TEXT = b"".join(b"%d %d\n" % (n, n * n) for n in range(5000))


def _flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]


@pytest.mark.parametrize("ending", PACKERS)
def test_streams_behind_each_other_are_all_read(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    path.write_bytes(PACKERS[ending](TEXT) + PACKERS[ending](b"") + PACKERS[ending](b"more\n"))
    lines = list(read_lines(path))
    assert len(lines) == 5001 and lines[0] == "0 0" and lines[-1] == "more"


def test_padding_between_streams_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.xz"
    path.write_bytes(lzma.compress(b"a\n") + b"\0" * 300_000 + lzma.compress(b"b\n") + b"\0" * 4)
    assert list(read_lines(path)) == ["a", "b"]


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("harm", ["second stream", "garbage behind", "middle", "cut", "start"])
def test_a_damaged_archive_loses_no_text_silently(tmp_path: Path, ending: str, harm: str) -> None:
    whole = PACKERS[ending](TEXT)
    damaged = {
        "second stream": whole + _flip(PACKERS[ending](TEXT), 1),
        "garbage behind": whole + b"garbage",
        "middle": _flip(whole, len(whole) // 2),
        "cut": whole[:-9],
        "start": whole[:5],
    }
    path = tmp_path / f"a{ending}"
    path.write_bytes(damaged[harm])
    with pytest.raises(InputError, match=r"compressed file is damaged") as caught:
        list(read_lines(path))
    assert caught.value.line > 0 and str(path) in caught.value.problem


def test_plain_text_that_is_no_utf8_is_not_called_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(b"caf\xe9\n")
    with pytest.raises(InputError, match="not valid UTF-8"):
        list(read_lines(path))


@pytest.mark.parametrize("ending", PACKERS)
def test_standard_input_may_be_packed(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    class Standard:
        buffer = io.BufferedReader(io.BytesIO(PACKERS[ending](b"a\r\nb\n")))

    monkeypatch.setattr("sys.stdin", Standard)
    assert list(read_lines("-")) == ["a", "b"]


def test_closed_input_and_output_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="standard input is closed"):
        list(read_lines("-"))
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(StorageError, match="Standard output is closed"), open_writer("-"):
        pass


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")
def test_devices_are_written_to_and_never_replaced() -> None:
    with pytest.raises(StorageError, match="/dev/full could not"), open_writer("/dev/full") as file:
        file.write(b"x" * 100_000)
    assert Path("/dev/full").is_char_device()


def test_a_named_pipe_takes_text(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert is_stream(pipe) and not is_stream(tmp_path) and not is_stream(tmp_path / "none")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with open_writer(pipe) as file:
        file.write(b"a\n")
    assert os.read(reader, 9) == b"a\n"
    os.close(reader)
    assert is_stream(pipe)


def test_lines_that_end_in_carriage_returns_alone_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "mac.de"
    path.write_bytes(b"eins\rzwei\rdrei\r")
    notes: Counter[str] = Counter()
    assert list(read_lines(path, notes)) == ["eins\rzwei\rdrei"]
    assert notes["line_separators"] == notes["carriage_returns"] == 1


def test_a_folder_is_no_prefix(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "train.de").write_text("a\n")
    for prefix in (f"{folder}/", str(folder)):
        with pytest.raises(InputError, match="is a folder") as caught:
            find_text(prefix, "de")
        assert f"`{folder}/train`" in caught.value.advice
    assert find_text(f"{folder}/train", "de").name == "train.de"


def test_codes_without_a_merge_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "codes"
    path.write_text("#version: 0.2\n")
    with pytest.raises(InputError, match="no merge"):
        Codes.load(path)
    with pytest.raises(ConfigError, match="no two characters stand together twice"):
        learn({"ab": 1, "cd": 1}, 5)


@pytest.mark.parametrize(
    ("content", "words"),
    [("<unk>\n<s>\n</s>\n", "special symbols"), (f"a {'9' * 5000}\n", "one word")],
)
def test_dictionaries_that_make_no_sense(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "dict"
    path.write_text(content)
    with pytest.raises(InputError, match=words):
        Vocabulary.read_foreign(path)


@pytest.mark.parametrize("ratio", [float("inf"), float("nan"), 0.5])
def test_ratios_are_numbers_from_one_on(ratio: float) -> None:
    assert "--max-ratio" in Filters(max_ratio=ratio).faults()[0]


def test_an_altered_manifest_is_refused(tmp_path: Path) -> None:
    facts = {"splits": {"train": {"pairs_kept": 3}}, "files": {}, "text": {"lowercase": False}}
    directory.write(tmp_path, facts)
    assert {**directory.read(tmp_path), **facts} == directory.read(tmp_path)
    path = tmp_path / directory.NAME
    whole = path.read_text()
    path.write_text(whole.replace("false", "true"))
    with pytest.raises(StorageError, match=r"manifest\.json has been altered"):
        directory.read(tmp_path)
    # Layout does not matter, and older manifests have no checksum.
    path.write_text(json.dumps(json.loads(whole)))
    assert directory.read(tmp_path)["splits"] == facts["splits"]
    values = json.loads(whole)
    del values["sha256"]
    path.write_text(json.dumps(values))
    assert directory.read(tmp_path)["splits"] == facts["splits"]


@pytest.mark.parametrize("facts", [None, 3, [], {}, {"size": "x"}])
def test_a_manifest_without_a_files_size_names_the_file(tmp_path: Path, facts: object) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(NmtgridError, match="lacks `a`"):
        directory.check_file(tmp_path, {"files": {"a": facts}}, "a")


def test_workers_and_filters_stay_light(project: Path) -> None:
    import subprocess

    code = "import sys, nmtgrid.cli.options; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(project)},
    )  # fmt: skip
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("workers", [0, -1, 5000])
def test_workers_are_not_without_end(workers: int) -> None:
    assert "from 1 to 256" in TextPlan("de", "en", workers=workers).faults()[0]


def test_a_dataset_does_not_replace_the_text_it_is_made_of(tmp_path: Path) -> None:
    for language in ("de", "en"):
        (tmp_path / f"train.{language}").write_text("a b\n")
    plan, data = TextPlan("de", "en"), tmp_path / "data"
    preprocess_files(plan, {"train": [str(tmp_path / "train")]}, data)
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="would be replaced"):
        preprocess_files(plan, {"train": [str(data / "text/train")]}, data, overwrite=True)
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
