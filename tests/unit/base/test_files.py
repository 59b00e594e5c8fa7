"""Text files, archives, pipes: what is put right, what is refused by file and line."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from nmtgrid.base.errors import ConfigError, InputError, NmtgridError, StorageError
from nmtgrid.base.io import text as text_files
from nmtgrid.base.io.atomic import is_stream
from nmtgrid.base.io.text import Meter, PipeMeter, find_text, open_writer, read_lines
from nmtgrid.data import directory
from nmtgrid.data.build import TextPlan, preprocess_files
from nmtgrid.text.bpe import Codes
from nmtgrid.text.bpe_learning import learn
from nmtgrid.text.cleaning import Filters
from nmtgrid.text.shards import read_shards
from nmtgrid.text.vocabulary import Vocabulary
from tests.conftest import PROJECT
from tests.unit.helpers.damage import contents

WRITER = """
import sys
from pathlib import Path
from nmtgrid.base.io.text import open_writer
with open_writer(Path(sys.argv[1])) as file:
    print("open", flush=True)
    for line in sys.stdin.buffer:
        file.write(line)
        file.flush()
        print("written", flush=True)
"""
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress,
}  # fmt: skip
ARCHIVES = [ending for ending in PACKERS if ending]


def _file(folder: Path, content: bytes, name: str = "text.de") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("ending", PACKERS)
def test_plain_and_packed_files_read_the_same(tmp_path: Path, ending: str) -> None:
    packed = PACKERS[ending]("eins\n\nzwölf".encode())
    assert list(read_lines(_file(tmp_path, packed, f"a.de{ending}"))) == ["eins", "", "zwölf"]


def test_packing_is_told_by_the_bytes_and_padding_passed_over(tmp_path: Path) -> None:
    assert list(read_lines(_file(tmp_path, gzip.compress(b"a\n"), "a.txt"))) == ["a"]
    path = tmp_path / "a.xz"
    path.write_bytes(lzma.compress(b"a\n") + b"\0" * 300_000 + lzma.compress(b"b\n") + b"\0" * 4)
    assert list(read_lines(path)) == ["a", "b"]


INSIDE = "a\u2028b\x85c\x0bd\x0ce\x1cf\rg"


@pytest.mark.parametrize(
    ("content", "lines", "notes"),
    [
        (f"{INSIDE}\nü\n".encode(), [INSIDE, "ü"], (0, None, 1)),
        (b"\xef\xbb\xbfa\r\nb\r\nc\n\xef\xbb\xbfd", ["a", "b", "c", "\ufeffd"], (1, 2, 0)),
        (b"eins\rzwei\rdrei\n", ["eins\rzwei\rdrei"], (0, 0, 1)),
    ],
    ids=["separators", "carriage returns", "carriage returns within"],
)
def test_only_the_line_feed_ends_a_line(
    tmp_path: Path, content: bytes, lines: list[str], notes: tuple[int | None, ...]
) -> None:
    counts: Counter[str] = Counter()
    assert list(read_lines(_file(tmp_path, content), counts)) == lines
    names = ("byte_order_marks", "carriage_returns", "line_separators")
    for name, count in zip(names, notes, strict=True):
        assert count is None or counts[name] == count


@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_carriage_returns_alone_are_named(
    tmp_path: Path, packed: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _file(tmp_path, packed(b"eins\rzwei\rdrei\r"))
    for read in (read_lines, lambda path: [part.read(Counter()) for part in read_shards(path)]):
        with pytest.raises(InputError, match="carriage returns only") as caught:
            list(read(path))
        assert "tr '\\r' '\\n'" in caught.value.advice
    monkeypatch.setattr(text_files, "LONGEST_LINE", 6)
    with pytest.raises(InputError, match="carriage returns only"):
        list(read_lines(path))
    assert list(read_lines(_file(tmp_path, packed(b"eins\r")))) == ["eins"]


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (b"caf\xe9", "UTF-8"),
        (b"cut \xe2\x82", "UTF-8"),
        (b"\xed\xa0\x80", "UTF-8"),
        (b"a\0b", "NUL"),
        (b"\xff\xfea\0", "NUL"),
    ],
    ids=["latin1", "cut", "surrogate", "nul", "utf16"],
)
def test_bytes_that_are_no_text_are_named_by_line(tmp_path: Path, bad: bytes, word: str) -> None:
    path = _file(tmp_path, b"good\n" + bad + b"\nmore\n")
    with pytest.raises(InputError, match=word) as caught:
        list(read_lines(path))
    assert caught.value.line == 2 and caught.value.path == str(path)
    assert f"{path}:2:" in caught.value.problem and caught.value.advice


def test_missing_empty_and_folder(tmp_path: Path) -> None:
    empty = _file(tmp_path, b"")
    for path, words in ((tmp_path / "none.de", "no such file"), (empty, "empty"),
                        (tmp_path, "folder"),
                        (_file(tmp_path, b"\x28\xb5\x2f\xfd\x00", "a.zst"), "zstandard archive"),
                        (_file(tmp_path, b"PK\x03\x04\x00\x00", "a.zip"), "zip archive"),
                        (_file(tmp_path, b"caf\xe9\n", "a.gz"), "not valid UTF-8")):  # fmt: skip
        with pytest.raises(InputError, match=words):
            list(read_lines(path))
    assert list(read_lines(empty, allow_empty=True)) == []

    # The meter ends full.
    paths = [_file(tmp_path, gzip.compress(b"x\n" * 9999), "a.gz"), _file(tmp_path, b"y\n" * 99)]
    meter = Meter(paths)
    for path in paths:
        list(read_lines(path, meter=meter))
    assert meter.done == meter.total == sum(path.stat().st_size for path in paths)


def test_find_text_takes_any_packing_and_says_what_is_there(tmp_path: Path) -> None:
    _file(tmp_path, b"a", "p.de.xz")
    _file(tmp_path, b"a", "p.en")
    assert find_text(str(tmp_path / "p"), "de").name == "p.de.xz"
    with pytest.raises(InputError, match=r"/p\.fr`") as caught:
        find_text(str(tmp_path / "p"), "fr")
    assert "`.de.xz`, `.en`" in caught.value.advice
    _file(tmp_path, b"a", "p.de")
    for prefix, words in (("q", r"file `.*/q\.de`"), ("none/p", "folder"), ("p", "both")):
        with pytest.raises(InputError, match=words):
            find_text(str(tmp_path / prefix), "de")
    _file(tmp_path, b"a", "train.de.gz")
    with pytest.raises(InputError) as caught:
        find_text(str(tmp_path / "trian"), "de")
    assert caught.value.advice.endswith("Did you mean `train`?")
    # `dev` is no German.
    _file(tmp_path, b"a", "text.dev.en")
    _file(tmp_path, b"a", "text.old.de")
    with pytest.raises(InputError) as caught:
        find_text(str(tmp_path / "texd"), "de")
    assert "`text`" not in caught.value.advice
    # A folder is no prefix.
    folder = tmp_path / "corpus"
    folder.mkdir()
    _file(folder, b"a\n", "train.de")
    for name in (f"{folder}/", str(folder)):
        with pytest.raises(InputError, match="is a folder") as caught:
            find_text(name, "de")
        assert f"`{folder}/train`" in caught.value.advice
    assert find_text(f"{folder}/train", "de").name == "train.de"


@pytest.mark.parametrize("ending", PACKERS)
def test_what_is_written_reads_back(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out{ending}"
    with open_writer(path) as file:
        file.write("é\nb\n".encode())
    assert list(read_lines(path)) == ["é", "b"]
    assert path.read_bytes()[:2] == PACKERS[ending]("é\n".encode())[:2]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = _file(tmp_path, b"old\n")
    with pytest.raises(StorageError, match="disk is full"), open_writer(path) as file:
        file.write(b"new")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert path.read_bytes() == b"old\n"
    assert [p.name for p in tmp_path.iterdir()] == ["text.de"]


TEXT = b"".join(b"%d %d\n" % (n, n * n) for n in range(5000))


def _flip(data: bytes, offset: int) -> bytes:
    return data[:offset] + bytes([data[offset] ^ 0xFF]) + data[offset + 1 :]


@pytest.mark.parametrize("ending", ARCHIVES)
def test_streams_behind_each_other_are_all_read(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    path.write_bytes(PACKERS[ending](TEXT) + PACKERS[ending](b"") + PACKERS[ending](b"more\n"))
    lines = list(read_lines(path))
    assert len(lines) == 5001 and lines[0] == "0 0" and lines[-1] == "more"


@pytest.mark.parametrize("ending", ARCHIVES)
def test_a_damaged_archive_loses_no_text_silently(tmp_path: Path, ending: str) -> None:
    whole, path = PACKERS[ending](TEXT), tmp_path / f"a{ending}"
    damaged = {
        "second stream": whole + _flip(PACKERS[ending](TEXT), 1),
        "garbage behind": whole + b"garbage",
        "middle": _flip(whole, len(whole) // 2),
        "half": whole[: len(whole) // 2],
        "cut": whole[:-9],
        "start": whole[:5],
    }
    for harm, content in damaged.items():
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"compressed file is damaged") as caught:
            list(read_lines(path))
        assert caught.value.line > 0 and str(path) in caught.value.problem, harm


@pytest.mark.parametrize("ending", PACKERS)
def test_standard_input_may_be_packed(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    class Standard:
        buffer = io.BufferedReader(io.BytesIO(PACKERS[ending](b"a\r\nb\n")))

    monkeypatch.setattr("sys.stdin", Standard)
    assert list(read_lines("-")) == ["a", "b"] and list(read_lines("-")) == []


@pytest.mark.parametrize("is_standard", [True, False])
def test_a_pipe_says_whether_more_has_arrived(
    monkeypatch: pytest.MonkeyPatch, is_standard: bool
) -> None:
    reader, writer = os.pipe()
    stdin = os.fdopen(reader)
    monkeypatch.setattr("sys.stdin", stdin)
    meter = PipeMeter()
    assert not meter.is_waiting(), "nothing has been opened"
    lines = read_lines("-" if is_standard else f"/dev/fd/{reader}", meter=meter)
    os.write(writer, b"a\nb\n")
    assert next(lines) == "a" and not meter.is_waiting(), "b has been read, but is not taken"
    assert next(lines) == "b" and meter.is_waiting()
    os.write(writer, b"c\n")
    assert not meter.is_waiting(), "c is in the pipe"
    assert next(lines) == "c" and meter.is_waiting()
    os.close(writer)
    assert not meter.is_waiting(), "the end is something to read"
    assert list(lines) == []
    stdin.close()


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


def test_codes_and_dictionaries_that_make_no_sense(tmp_path: Path) -> None:
    path = tmp_path / "codes"
    path.write_text("#version: 0.2\n")
    with pytest.raises(InputError, match="no merge"):
        Codes.load(path)
    with pytest.raises(ConfigError, match="no two characters are adjacent twice"):
        learn({"ab": 1, "cd": 1}, 5)

    for text, words in (
        ("<unk>\n<s>\n</s>\n", "special symbols"),
        (f"a {'9' * 5000}\n", "one word"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=words):
            Vocabulary.read_foreign(path)


def test_ratios_and_workers_have_bounds() -> None:
    for ratio, count in ((float("inf"), 0), (float("nan"), -1), (0.5, 5000)):
        assert "--max-ratio" in Filters(max_ratio=ratio).faults()[0]
        assert "from 1 to 256" in TextPlan("de", "en", workers=count).faults()[0]


def test_an_altered_manifest_is_refused(tmp_path: Path) -> None:
    text = {"source_lang": "de", "target_lang": "en", "lowercase": False}
    facts = {"splits": {"train": {"pairs_kept": 3}}, "files": {}, "text": text}
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


@pytest.mark.parametrize("facts", [3, [], {}, {"size": "x"}])
def test_a_manifest_without_a_files_size_names_the_file(tmp_path: Path, facts: object) -> None:
    text = {"source_lang": "de", "target_lang": "en"}
    directory.write(tmp_path, {"splits": {}, "files": {"a": facts}, "text": text})
    with pytest.raises(NmtgridError, match=r"manifest\.json is damaged: .*`files\.a"):
        directory.read(tmp_path)
    directory.write(tmp_path, {"splits": {}, "files": {}, "text": text})
    (tmp_path / "a").write_text("x")
    with pytest.raises(NmtgridError, match="lacks `a`"):
        directory.check_file(tmp_path, directory.read(tmp_path), "a")


def test_a_dataset_does_not_replace_the_text_it_is_made_of(tmp_path: Path) -> None:
    for language in ("de", "en"):
        _file(tmp_path, b"a b\n", f"train.{language}")
    plan, data = TextPlan("de", "en"), tmp_path / "data"
    preprocess_files(plan, {"train": [str(tmp_path / "train")]}, data)
    before = contents(data)
    with pytest.raises(ConfigError, match="would be replaced"):
        preprocess_files(plan, {"train": [str(data / "text/train")]}, data, overwrite=True)
    assert contents(data) == before


@pytest.mark.parametrize("last", [0, 1])
def test_of_two_writers_the_last_wins_whole(tmp_path: Path, last: int) -> None:
    path = tmp_path / "out"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(PROJECT)},
        )
        for _ in range(2)
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == b"open\n"
    for line in range(3):
        for number, writer in enumerate(writers):
            assert writer.stdin is not None and writer.stdout is not None
            writer.stdin.write(f"{number} {line}\n".encode())
            writer.stdin.flush()
            assert writer.stdout.readline() == b"written\n"
    assert not path.exists()
    for number in (1 - last, last):
        writers[number].communicate()
        assert writers[number].returncode == 0
        assert path.read_text() == "".join(f"{number} {line}\n" for line in range(3))
    assert os.listdir(tmp_path) == ["out"]
