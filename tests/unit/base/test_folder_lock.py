"""Locks of folders: one holder at a time, named to others, released however it ends."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nmtgrid.base.errors import StorageError
from nmtgrid.base.io import lock
from nmtgrid.base.io.lock import NAME, FolderLock

_HOLDER = """
import sys, time
from pathlib import Path
from nmtgrid.base.io.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]), "nmtgrid train", beside=sys.argv[2] == "beside")
print("holds", flush=True)
sys.stdin.read()
lock.release()
"""


def _holder(folder: Path, where: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(folder), where],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "holds\n"
    return process


@pytest.mark.parametrize("where", ["inside", "beside"])
@pytest.mark.parametrize("end", ["release", "kill"])
def test_one_process_at_a_time(tmp_path: Path, where: str, end: str) -> None:
    folder = tmp_path / "a/model"
    (tmp_path / "link").symlink_to(folder)
    process = _holder(folder, where)
    for path in (folder, tmp_path / "link"):
        with pytest.raises(StorageError) as fault:
            FolderLock(path, "nmtgrid train", beside=where == "beside")
        assert f"`nmtgrid train` (process {process.pid} on " in fault.value.problem
        assert str(folder) in fault.value.problem
    if end == "kill":
        process.send_signal(signal.SIGKILL)
        process.wait()
    else:
        process.communicate()
        # Nothing is left: the folders were made for the lock.
        assert not (tmp_path / "a").exists() or where == "beside"
    FolderLock(folder, "nmtgrid train", beside=where == "beside").release()
    assert not list(tmp_path.rglob(f"*{NAME}"))


def test_two_locks_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    with FolderLock(tmp_path, "nmtgrid train"), pytest.raises(StorageError, match="in use"):
        FolderLock(tmp_path, "nmtgrid adaptive-tune")
    FolderLock(tmp_path, "nmtgrid train").release()


def test_of_many_at_once_one_has_it(tmp_path: Path) -> None:
    folder, barrier, count = tmp_path / "model", threading.Barrier(8), 8
    holders: list[int] = []
    inside: list[int] = []
    faults: list[BaseException] = []

    def work(number: int) -> None:
        barrier.wait()
        for _ in range(50):
            try:
                with FolderLock(folder, "nmtgrid train"):
                    inside.append(number)
                    assert inside == [number]
                    holders.append(number)
                    inside.clear()
            except StorageError as fault:
                if "in use" not in fault.problem:
                    faults.append(fault)
            except BaseException as fault:
                faults.append(fault)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults and holders and not list(tmp_path.rglob(NAME))


def test_a_folder_that_goes_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another holder had it when it was to be made, and had removed it when that was looked at."""
    plain, calls = Path.mkdir, [0]

    def mkdir(path: Path, *options: object, **more: object) -> None:
        calls[0] += 1
        if calls[0] == 1:
            raise FileExistsError(errno.EEXIST, "File exists")
        plain(path, *options, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with FolderLock(tmp_path / "model", "nmtgrid train"):
        assert (tmp_path / "model").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        FolderLock(tmp_path / "file", "nmtgrid train")


def test_what_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    FolderLock(tmp_path / "empty", "nmtgrid train").release()
    assert (tmp_path / "empty").is_dir()
    lock = FolderLock(tmp_path / "gone/deep", "nmtgrid train")
    lock.release()
    lock.release()
    assert not (tmp_path / "gone").exists()
    with FolderLock(tmp_path / "new", "nmtgrid train"):
        (tmp_path / "new/config.json").touch()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["config.json"]


@pytest.mark.parametrize("content", [b"", b"[" * 4000, b"\xff\0", b"[1]", b'{"host": [1]}'])
def test_a_file_with_anything_in_it_is_no_lock(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with FolderLock(tmp_path, "nmtgrid train"):
        assert json.loads((tmp_path / NAME).read_bytes())["process"] == os.getpid()
        with pytest.raises(StorageError, match="in use"):
            FolderLock(tmp_path, "nmtgrid train")


def _no_locks(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSYS, "Function not implemented")


def test_without_locks_of_the_file_system_the_file_is_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", _no_locks)
    with FolderLock(tmp_path, "nmtgrid train"):
        with pytest.raises(StorageError) as fault:
            FolderLock(tmp_path, "nmtgrid train")
        assert f"remove {tmp_path / NAME}" in fault.value.advice
    FolderLock(tmp_path, "nmtgrid train").release()


def test_a_file_of_another_machine_where_its_locks_are_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"task": "nmtgrid train", "host": "elsewhere", "process": 7, "since": "today"}
    (tmp_path / NAME).write_text(json.dumps(record))
    # A file system of this machine: whoever wrote that has ended.
    with FolderLock(tmp_path, "nmtgrid train"):
        pass
    monkeypatch.setattr(lock, "_has_local_locks", lambda path: True)
    (tmp_path / NAME).write_text(json.dumps(record))
    with pytest.raises(StorageError, match="process 7 on elsewhere"):
        FolderLock(tmp_path, "nmtgrid train")
    (tmp_path / NAME).unlink()
    FolderLock(tmp_path, "nmtgrid train").release()


def test_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = os.stat(tmp_path).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    for mount, expected in {
        "ext4 /dev/sda1 rw": False,
        "nfs4 server:/home rw,vers=4.2,local_lock=none": False,
        "nfs server:/home rw,nolock": True,
        "lustre mgs:/x rw,localflock": True,
        "fuse.sshfs me@there: rw": True,
    }.items():
        line = f"36 35 {device} / {tmp_path} rw,noatime master:1 - {mount}\n"
        monkeypatch.setattr(Path, "read_text", lambda path, text=line, **kwargs: text)
        assert lock._has_local_locks(tmp_path) is expected, mount
    # Of other mounts and of no mount at all.
    monkeypatch.setattr(Path, "read_text", lambda path, **kwargs: "36 35 0:0 / / rw - 9p x rw\n")
    assert not lock._has_local_locks(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(Path, "read_text", _no_locks)
    assert lock._has_local_locks(tmp_path)


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        FolderLock(tmp_path / "file/model", "nmtgrid train")
    (tmp_path / NAME).symlink_to(tmp_path / "file")
    with pytest.raises(StorageError, match="cannot be written"):
        FolderLock(tmp_path, "nmtgrid train")
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("exists", [True, False])
def test_a_full_disk_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    folder = tmp_path / "a/model"
    if exists:
        folder.mkdir(parents=True)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageError, match="the disk is full"):
        FolderLock(folder, "nmtgrid train")
    assert not (folder / NAME).exists() and (tmp_path / "a").exists() == exists


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """As in /proc, where making a folder fails as if its parent were not there."""
    (tmp_path / "gone").symlink_to("/proc/nmtgrid-there-is-no-such-folder")
    for folder in (Path("/proc/nmtgrid"), tmp_path / "gone/model"):
        with pytest.raises(StorageError, match=r"cannot be written: No such file"):
            FolderLock(folder, "nmtgrid train")
