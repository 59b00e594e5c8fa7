"""What a power cut, a failing rename or a bit that turned would do to files that were written."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.base.errors import StorageError
from nmtgrid.base.io.arrays import save_tensors
from nmtgrid.base.io.atomic import atomic_file, write_json
from nmtgrid.data.directory import new_folder, write
from nmtgrid.training.checkpoint import Checkpoints, Snapshot

Event = tuple[str, str]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """What is done to the disk from now on, in order: what, and to which name."""
    log: list[Event] = []
    opened = builtins.open

    def name_of(descriptor: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name

    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wxa"):
            log.append(("open", Path(file).name))
        return opened(file, mode, *args, **kwargs)

    def fsync(descriptor: int, call: Callable[[int], None] = os.fsync) -> None:
        size = "folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else str(
            os.fstat(descriptor).st_size
        )  # fmt: skip
        log.append((f"fsync {size}", name_of(descriptor)))
        call(descriptor)

    def rename(source: Any, target: Any, call: Callable[[Any, Any], None] = os.replace) -> None:
        log.append(("rename", Path(target).name))
        call(source, target)

    monkeypatch.setattr(builtins, "open", open_file)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    monkeypatch.setattr(os, "rename", rename)
    return log


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, events: list[Event]) -> None:
    with atomic_file(tmp_path / "a.txt") as file:
        file.write(b"12345")
    (written, part), *rest = events
    assert (written, part[:3]) == ("open", ".a.")
    # All five bytes, then the name, then the folder that holds the name.
    assert rest == [("fsync 5", part), ("rename", "a.txt"), ("fsync folder", tmp_path.name)]


@pytest.mark.parametrize(
    "make",
    [lambda path: write_json(path, {}), lambda path: save_tensors(path, {"w": torch.ones(3)})],
    ids=["json", "tensors"],
)
def test_every_writer_goes_this_way(
    tmp_path: Path, events: list[Event], make: Callable[[Path], None]
) -> None:
    make(tmp_path / "x")
    assert [kind.split()[0] for kind, _ in events] == ["open", "fsync", "rename", "fsync"]
    assert events[-1] == ("fsync folder", tmp_path.name)


@pytest.mark.parametrize("has_links", [True, False], ids=["links", "copies"])
@pytest.mark.parametrize("is_best", [True, False], ids=["best", "worse"])
def test_a_state_is_on_the_disk_before_it_is_one(
    tmp_path: Path,
    events: list[Event],
    monkeypatch: pytest.MonkeyPatch,
    is_best: bool,
    has_links: bool,
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", refuse_links)
    states = Checkpoints(tmp_path)
    state = Snapshot({"w": torch.ones(2)}, {"m": torch.ones(2)}, {"update": 1})
    states.save(state, {"w": torch.zeros(2)})
    events.clear()
    path = states.save(state, {"w": torch.zeros(2)} if is_best else None)
    becomes = events.index(("rename", path.name))
    names = ["last.safetensors", "training.safetensors", "training.json", "model.safetensors"]
    assert [name for kind, name in events[:becomes] if kind == "rename"] == names
    for name in names:
        assert (tmp_path / "checkpoints" / path.name / name).stat().st_size > 0
    # The bytes of each file that is not a link, then the folder with all names.
    synced = [kind for kind, _ in events[:becomes] if kind.startswith("fsync ")]
    files = len(names) if is_best or not has_links else len(names) - 1
    assert len([kind for kind in synced if kind != "fsync folder"]) == files
    assert events[becomes - 1] == ("fsync folder", f".{path.name}.part")
    # The next step makes the state's own name last; only then do others link to it.
    assert events[becomes + 1] == ("fsync folder", "checkpoints")


def refuse_links(*_: Any) -> None:
    raise OSError("no links here")


def test_altered_best_weights_are_not_gone_on_with(tmp_path: Path) -> None:
    states = Checkpoints(tmp_path)
    state = Snapshot({"w": torch.ones(2)}, {"m": torch.ones(2)}, {"update": 1})
    best = states.save(state, {"w": torch.zeros(2)}) / "model.safetensors"
    content = bytearray(best.read_bytes())
    content[-1] ^= 1
    best.write_bytes(content)
    with pytest.raises(
        StorageError, match=r"model\.safetensors is damaged: its bytes have been altered"
    ):
        states.load()


def test_a_dataset_comes_back_where_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    with new_folder(data) as folder:
        write(folder, {"files": {"a": {}}, "splits": {}, "text": {}})
        (folder / "a").write_text("before")
    rename = os.rename

    def refuse(source: Any, target: Any) -> None:
        if Path(source).name.endswith(".part") and Path(target) == data:
            raise OSError("no")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(StorageError), new_folder(data, overwrite=True) as folder:
        write(folder, {"files": {}, "splits": {}, "text": {}})
    assert (data / "a").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
