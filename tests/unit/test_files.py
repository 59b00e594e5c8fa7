"""Reading text: what is put right is counted, what cannot be is named by file and line."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from nmtgrid.base.errors import InputError, StorageError
from nmtgrid.base.io.text import Meter, find_text, open_writer, read_lines

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress,
}  # fmt: skip


def _file(folder: Path, content: bytes, name: str = "text.de") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("ending", PACKERS)
def test_plain_and_packed_files_read_the_same(tmp_path: Path, ending: str) -> None:
    packed = PACKERS[ending]("eins\n\nzwölf".encode())
    assert list(read_lines(_file(tmp_path, packed, f"a.de{ending}"))) == ["eins", "", "zwölf"]


def test_packing_is_told_by_the_bytes_not_the_name(tmp_path: Path) -> None:
    assert list(read_lines(_file(tmp_path, gzip.compress(b"a\n"), "a.txt"))) == ["a"]


def test_only_the_line_feed_ends_a_line(tmp_path: Path) -> None:
    inside = "a\u2028b\x85c\x0bd\x0ce\x1cf\rg"
    notes: Counter[str] = Counter()
    path = _file(tmp_path, f"{inside}\nü\n".encode())
    assert list(read_lines(path, notes)) == [inside, "ü"]
    assert notes["line_separators"] == 1


def test_carriage_returns_and_byte_order_mark_go_and_are_counted(tmp_path: Path) -> None:
    notes: Counter[str] = Counter()
    path = _file(tmp_path, b"\xef\xbb\xbfa\r\nb\r\nc\n\xef\xbb\xbfd")
    assert list(read_lines(path, notes)) == ["a", "b", "c", "\ufeffd"]
    assert notes == {"byte_order_marks": 1, "carriage_returns": 2, "line_separators": 0}


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
    assert caught.value.line == 2
    assert caught.value.path == str(path)
    assert f"{path}:2:" in caught.value.problem
    assert caught.value.advice


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2"])
def test_a_cut_archive_is_refused(tmp_path: Path, ending: str) -> None:
    whole = PACKERS[ending](b"".join(b"%d\n" % n for n in range(20_000)))
    path = _file(tmp_path, whole[: len(whole) // 2], f"a{ending}")
    with pytest.raises(InputError, match="damaged"):
        list(read_lines(path))


def test_missing_empty_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        list(read_lines(tmp_path / "none.de"))
    with pytest.raises(InputError, match="empty"):
        list(read_lines(_file(tmp_path, b"")))
    with pytest.raises(InputError, match="folder"):
        list(read_lines(tmp_path))
    assert list(read_lines(_file(tmp_path, b""), allow_empty=True)) == []


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Standard:
        buffer = io.BytesIO(b"a\r\nb")

    monkeypatch.setattr("sys.stdin", Standard)
    assert list(read_lines("-")) == ["a", "b"]
    assert list(read_lines("-")) == []


def test_the_meter_ends_full(tmp_path: Path) -> None:
    paths = [_file(tmp_path, gzip.compress(b"x\n" * 9999), "a.gz"), _file(tmp_path, b"y\n" * 99)]
    meter = Meter(paths)
    for path in paths:
        list(read_lines(path, meter=meter))
    assert meter.done == meter.total == sum(path.stat().st_size for path in paths)


def test_find_text_takes_any_packing_and_says_what_is_there(tmp_path: Path) -> None:
    _file(tmp_path, b"a", "p.de.xz")
    _file(tmp_path, b"a", "p.en")
    assert find_text(str(tmp_path / "p"), "de").name == "p.de.xz"
    with pytest.raises(InputError, match=r"`p\.fr`") as caught:
        find_text(str(tmp_path / "p"), "fr")
    assert "`.de.xz`, `.en`" in caught.value.advice
    with pytest.raises(InputError, match=r"`q\.de`"):
        find_text(str(tmp_path / "q"), "de")
    with pytest.raises(InputError, match="folder"):
        find_text(str(tmp_path / "none" / "p"), "de")
    _file(tmp_path, b"a", "p.de")
    with pytest.raises(InputError, match="both"):
        find_text(str(tmp_path / "p"), "de")


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
