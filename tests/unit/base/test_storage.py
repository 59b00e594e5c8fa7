"""Files appear whole or not at all, and damaged ones are refused."""

import errno
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from nmtgrid.base.errors import StorageError
from nmtgrid.base.io import arrays, atomic
from nmtgrid.base.io import arrays as storage
from nmtgrid.base.io.records import read_json
from nmtgrid.cli.options import write_report


def test_tensors_come_back_and_shared_ones_too(tmp_path: Path) -> None:
    shared = torch.randn(3, 2)
    tensors = {"a": shared, "b": shared, "c": torch.arange(5), "d": torch.zeros(0)}
    storage.save_tensors(tmp_path / "x.safetensors", tensors)
    read = storage.load_tensors(tmp_path / "x.safetensors")
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        torch.testing.assert_close(read[name], tensor)


def test_every_altered_or_missing_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    storage.save_tensors(path, {"a": torch.arange(16, dtype=torch.uint8)})
    whole = path.read_bytes()
    for index in range(8 + struct.unpack("<Q", whole[:8])[0], len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        with pytest.raises(StorageError, match="altered"):
            storage.load_tensors(path)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(StorageError, match="damaged"):
            storage.load_tensors(path)


def test_a_header_that_promises_gigabytes_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    with pytest.raises(StorageError, match="damaged"):
        arrays.map_arrays(path)
    header = json.dumps({"a": {"dtype": "I64", "shape": [1 << 40], "data_offsets": [0, 8]}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(8))
    with pytest.raises(StorageError, match="does not fit its shape"):
        arrays.map_arrays(path)


def test_arrays_written_in_pieces_are_mapped_back(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    file = arrays.ArrayFile(path, {"tokens": "U16", "offsets": "I64"})
    file.append("tokens", np.array([1, 2, 3]))
    file.append("offsets", np.array([0]))
    file.append("tokens", np.array([65535]))
    file.append("offsets", np.array([3, 4]))
    file.close()
    mapped = arrays.map_arrays(path)
    assert mapped["tokens"].tolist() == [1, 2, 3, 65535]
    assert mapped["offsets"].tolist() == [0, 3, 4]
    arrays.verify(path)
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]
    assert storage.load_tensors(path)["offsets"].tolist() == [0, 3, 4]


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "no space"), KeyboardInterrupt()])
def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, fault: BaseException) -> None:
    path = tmp_path / "x.json"
    atomic.write_json(path, {"old": 1})
    expected = StorageError if isinstance(fault, OSError) else KeyboardInterrupt
    with pytest.raises(expected), atomic.atomic_file(path) as file:
        file.write(b"half")
        raise fault
    assert read_json(path) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize(
    ("content", "fault", "kept"),
    [
        (b"half", KeyboardInterrupt(), True),
        (b"half", ValueError("a fault"), True),
        (b"", KeyboardInterrupt(), False),
        (b"half", OSError(errno.ENOSPC, "no space"), False),
    ],
)
def test_what_is_unfinished_may_be_kept(
    tmp_path: Path, content: bytes, fault: BaseException, kept: bool
) -> None:
    path, names = tmp_path / "x.txt", list[Path]()
    path.write_text("old")
    expected = StorageError if isinstance(fault, OSError) else type(fault)
    with pytest.raises(expected), atomic.atomic_file(path, names.append) as file:
        file.write(content)
        raise fault
    assert path.read_text() == "old"
    partial = tmp_path / "x.txt.partial"
    assert names == [partial] * kept
    assert sorted(tmp_path.iterdir()) == [path, *[partial] * kept]
    assert not kept or partial.read_bytes() == content
    with atomic.atomic_file(path, names.append) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole" and len(names) == kept


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: object, mode: str) -> object:
        return real("/dev/full", mode)

    real = open
    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(StorageError, match="the disk is full"):
        atomic.write_text(tmp_path / "x.txt", "text")


def test_broken_json_and_full_disks(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="missing"):
        read_json(tmp_path / "none.json")
    for text in (b"{\xff", b"[" * 100_000, b"1" * 5000):
        (tmp_path / "bad.json").write_bytes(text)
        with pytest.raises(StorageError, match="not JSON"):
            read_json(tmp_path / "bad.json")


def test_what_is_no_number_is_null_in_reports(tmp_path: Path) -> None:
    path, nan = tmp_path / "x.json", float("nan")
    values = {"loss": nan, "rows": [(1.5, float("inf")), {"worst": -float("inf")}], "name": "NaN"}
    write_report(path, values)
    expected = {"loss": None, "rows": [[1.5, None], {"worst": None}], "name": "NaN"}
    assert json.loads(path.read_text()) == expected == atomic.nan_to_none(values)
    path = tmp_path / "ours.json"
    with pytest.raises(ValueError, match="JSON"):
        atomic.write_json(path, {"loss": float("nan")})
    assert not path.exists()


def test_names_that_are_no_text_are_written_as_escapes(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    facts = atomic.with_checksum({"out": "a\udcff"})
    atomic.write_json(path, facts)
    assert b"a\\udcff" in path.read_bytes()
    assert read_json(path) == facts and not atomic.is_altered(read_json(path))
