"""Checkpoints are read without running them, and a small file never asks for much memory."""

import io
import os
import pickle
import random
import resource
import struct
import subprocess
import sys
import types
import zipfile
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.base.errors import ModelError, NmtgridError
from nmtgrid.convert.from_fairseq.checkpoint import (
    Inert,
    PickleFault,
    PickleReader,
    open_checkpoint,
)
from tests.unit.convert.fairseq_files import TYPES, content, write_checkpoint, write_dictionaries
from tests.unit.convert.fairseq_reference_recurrent import LSTM
from tests.unit.convert.test_import_fairseq import take_over


class Evil:
    """Something that runs a command when the usual reader meets it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


class Evaluated:
    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("1/0",)


def small(**more: Any) -> dict[str, Any]:
    return {"args": Namespace(arch="lstm"), "model": {"a": torch.arange(6.0).view(2, 3)}, **more}


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught, open_checkpoint(path):
        pass
    assert str(path) in caught.value.problem
    return caught.value.problem


either_form = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "stream"])


@either_form
@pytest.mark.parametrize("part", ["model", "args", "extra_state", "last_optimizer_state"])
def test_an_evil_checkpoint_runs_nothing(tmp_path: Path, part: str, zipped: bool) -> None:
    evidence = tmp_path / "evidence"
    values = small(**{part: {"x": [Evil(evidence)]}})
    path = write_checkpoint(tmp_path / "c.pt", values, zipped=zipped)
    assert "`posix.system`" in refused(path) or "`os.system`" in refused(path)
    assert not evidence.exists()
    torch.load(path, weights_only=False)
    assert evidence.exists()  # so it was evil


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("thing", [Evaluated(), print, subprocess.run, type("C", (), {})])
def test_names_of_functions_and_classes_are_refused(thing: Any, protocol: int) -> None:
    if isinstance(thing, type):
        thing.__qualname__, thing.__module__ = thing.__name__, __name__
        globals()[thing.__name__] = thing
    with pytest.raises(PickleFault, match=r"asks for `"):
        PickleReader(pickle.dumps([1, thing], protocol)).load()


@pytest.mark.parametrize("opcode", [b"i", b"o", b"P", b"\x82", b"\x8b", b"I", b"S", b"\xff"])
def test_instructions_that_no_checkpoint_needs_are_refused(opcode: bytes) -> None:
    with pytest.raises(PickleFault, match="instruction 0x"):
        PickleReader(b"\x80\x02" + opcode + b"os\nsystem\n.").load()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_come_through(protocol: int) -> None:
    numbers: list[Any] = [b"bytes", 0, -1, 255, 65535, -(2**31), 2**40, 1.5, None, True, False]
    tuples: list[Any] = [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)]
    values = [*numbers, *tuples, "täxt", [], {}, {"a": {3: [4]}}]
    read = PickleReader(pickle.dumps(values, protocol)).load()
    values[-1] = {"a": {"3": [4]}}  # a number is no key, for many may have one hash
    if protocol == 2:  # bytes are made by a function there, which is not called
        values[0] = Inert("_codecs.encode")
    assert read == values


def test_what_programs_leave_behind_stays_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meters of fairseq, numbers of NumPy: read over, and refused only where options should be."""
    import numpy

    for name in ("fairseq", "fairseq.meters"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    meter = type("AverageMeter", (), {"__module__": "fairseq.meters"})
    sys.modules["fairseq.meters"].AverageMeter = meter  # type: ignore[attr-defined]
    loss = meter()
    loss.sum, loss.count = 3.0, 4
    extra = {"loss": loss, "best": numpy.float64(2.5), "order": OrderedDict([("x", {1, 2})])}
    for zipped in (True, False):
        path = write_checkpoint(tmp_path / "c.pt", small(extra_state=extra), zipped=zipped)
        with open_checkpoint(path) as checkpoint:
            kept = checkpoint.content["extra_state"]
            assert kept["loss"] == Inert("fairseq.meters.AverageMeter")
            assert isinstance(kept["best"], Inert) and list(kept["order"]) == ["x"]
            assert checkpoint.load("a").tolist() == [[0, 1, 2], [3, 4, 5]]
    path = write_checkpoint(tmp_path / "d.pt", small(args=loss))
    write_dictionaries(tmp_path)
    assert take_over(tmp_path, path) == 2


def tampered(path: Path, change: Any, method: int = zipfile.ZIP_STORED) -> Path:
    """Write an archive again; `change` gets each part's name and bytes."""
    with zipfile.ZipFile(path) as old:
        parts = {entry.filename: old.read(entry) for entry in old.infolist()}
    with zipfile.ZipFile(path, "w", method) as new:
        for name, content in parts.items():
            new.writestr(name, change(name, content))
    return path


def enlarged(name: str, content: bytes) -> bytes:
    """Let the header of the one storage and tensor speak of 2^40 numbers."""
    if not name.endswith("data.pkl"):
        return content
    assert content.count(b"K\x06") == 1
    return content.replace(b"K\x06", b"\x8a\x06" + (2**40).to_bytes(6, "little"))


def test_a_header_that_asks_for_terabytes_is_refused(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "c.pt", small())
    assert "cut or missing" in refused(tampered(path, enlarged))
    stream = write_checkpoint(tmp_path / "d.pt", small(), zipped=False)
    stream.write_bytes(enlarged("data.pkl", stream.read_bytes()))
    assert "cut" in refused(stream)


def test_an_archive_that_unpacks_to_more_is_refused(tmp_path: Path) -> None:
    def padded(name: str, content: bytes) -> bytes:
        return content + (b"\0" * 50_000_000 if name.endswith("/0") else b"")

    path = write_checkpoint(tmp_path / "c.pt", small())
    tampered(path, padded, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    assert "compressed" in refused(path)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (lambda: {"a": torch.ones(1).expand(10**6, 10**6)}, "does not lie within"),
        (lambda: {f"a{n}": torch.ones(99).as_strided((9, 11), (1, n)) for n in range(1, 8)}, None),
        (lambda: {"a": torch.ones(2), "b": "text"}, "not a tensor"),
        (lambda: ["a"], "no `model`"),
        # A thousand names for one storage of 4 MB: the sum is compared with the file.
        (lambda: (lambda base: {f"a{n}": base[n:] for n in range(1000)})(torch.zeros(1_000_000)),
         "tensors would fill"),
    ],
)  # fmt: skip
def test_tensors_that_make_no_sense(tmp_path: Path, tensors: Any, words: str | None) -> None:
    path = write_checkpoint(tmp_path / "c.pt", small(model=tensors()))
    if words is None:
        with open_checkpoint(path) as checkpoint:
            assert checkpoint.load("a5").tolist() == torch.ones(9, 11).tolist()
    else:
        assert words in refused(path)


def test_copies_of_lists_cannot_fill_the_memory() -> None:
    """One list of 20,000 pairs, made a table 10,000 times over, would hold 200 million."""
    pairs = b"".join(b"K\x01K" + bytes([n % 256]) + b"\x86" for n in range(20_000))
    head = b"\x80\x02](" + pairs + b"eq\x00"
    again = b"ccollections\nOrderedDict\nq\x01" + b"h\x01h\x00\x85R" * 10_000
    with pytest.raises(PickleFault, match="copy more than they hold"):
        PickleReader(head + again + b".").load()


@either_form
def test_cut_files_are_refused(tmp_path: Path, zipped: bool) -> None:
    path = write_checkpoint(tmp_path / "c.pt", small(), zipped=zipped)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:size])
        assert refused(path)


@either_form
def test_altered_bytes_do_no_harm(tmp_path: Path, zipped: bool) -> None:
    """Whatever is flipped: a fault for people, or tensors of the shapes that the file says."""
    whole = bytearray(write_checkpoint(tmp_path / "c.pt", small(), zipped=zipped).read_bytes())
    draw, path, refusals = random.Random(3), tmp_path / "d.pt", 0
    for _ in range(400):
        altered = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            altered[draw.randrange(len(altered))] = draw.randrange(256)
        path.write_bytes(altered)
        try:
            with open_checkpoint(path) as checkpoint:
                for name, view in checkpoint.views.items():
                    assert tuple(checkpoint.load(name).shape) == view.shape
        except NmtgridError:
            refusals += 1
    assert refusals > 40


def test_a_bomb_in_little_memory(tmp_path: Path) -> None:
    """In a process that may have 1 GB more than torch alone takes, nothing breaks."""
    path = tampered(write_checkpoint(tmp_path / "c.pt", small()), enlarged)
    code = (
        "import resource, sys\n"
        "from nmtgrid.convert.from_fairseq.checkpoint import open_checkpoint\n"
        "from pathlib import Path\n"
        "from nmtgrid.base.errors import ModelError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))\n"
        "try:\n"
        "    with open_checkpoint(Path(sys.argv[1])): pass\n"
        "except ModelError: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert int(done.stdout) < here + 1_000_000


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    assert "cannot be read" in refused(path)
    path.mkdir()
    assert "cannot be read" in refused(path)
    path = tmp_path / "d.pt"
    for wrong in (b"", b"text\n" * 9, pickle.dumps(5, 2), b"PK\x03\x04" + b"\0" * 30):
        path.write_bytes(wrong)
        assert refused(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/b.txt", "x")
    assert "no `data.pkl`" in refused(path)
    write_checkpoint(path, small())
    assert "big-endian" in refused(
        tampered(path, lambda name, content: b"big" if name.endswith("byteorder") else content)
    )
    stream = io.BytesIO()
    for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": False}):
        stream.write(pickle.dumps(value, 2))
    path.write_bytes(stream.getvalue())
    assert "big-endian" in refused(path)
    path = write_checkpoint(path, small(), zipped=False)
    content = path.read_bytes()
    start = content.rindex(struct.pack("<q", 6))
    path.write_bytes(content[:start] + struct.pack("<q", 5) + content[start + 8 :])
    assert "another count" in refused(path)


def test_the_command_leaves_nothing_behind(tmp_path: Path, messages: list[str]) -> None:
    write_dictionaries(tmp_path)
    reference = LSTM(TYPES)
    values = content(reference.options, reference.state)
    values["extra_state"]["hook"] = Evil(tmp_path / "evidence")
    assert take_over(tmp_path, write_checkpoint(tmp_path / "c.pt", values)) == 2
    assert any("Nothing of it was run" in line for line in messages)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"c.pt", "dict.de.txt", "dict.en.txt"}
