"""Commands whose disk becomes full: at every moment, and on a small in-memory disk."""

import contextlib
import ctypes
import os
import random
from collections.abc import Iterator
from pathlib import Path

from tests.faults.process import Ended, run
from tests.faults.results import Left, leftovers
from tests.faults.scenes import Scene, go_on, scenes
from tests.faults.tally import Tally
from tests.faults.taps import filling

_NEW_NAMESPACE, _PRIVATE, _REMOUNT, _DETACH = 0x20000, 0x4000 | (1 << 18), 32, 2
_BLOCK, _AMPLE = 4096, 1 << 28


def disk(
    stock: Path, folder: Path, rounds: int, draw: random.Random
) -> Iterator[tuple[str, Tally]]:
    """Yield the outcomes of each command: for `rounds` moments, and as many small disks."""
    mounts = _can_mount()
    for scene in scenes():
        alone = scene.undisturbed(stock, folder)
        expected, moments = alone.expected, range(1, alone.moments + 1)
        tally = Tally()
        for at in sorted(draw.sample(moments, min(rounds, len(moments)))):
            ended = run(scene.words, scene.begin(stock, folder), filling(at))
            _judge(tally, f"full at moment {at}", scene, folder, ended, expected)
        yield f"full {scene.name}", tally
        if mounts:
            yield f"small disk {scene.name}", _small(scene, stock, folder, rounds, draw, expected)


def _small(
    scene: Scene, stock: Path, folder: Path, rounds: int, draw: random.Random,
    expected: dict[str, Left],
) -> Tally:  # fmt: skip
    """Run the command on disks with room for a random part of its output."""
    tally = Tally()
    needed = sum(_held(folder / name) for name in scene.makes)
    for _ in range(rounds):
        with _mounted(folder.with_name("mounted")) as mounted:
            work = scene.begin(stock, mounted / "work")
            size = _used(mounted) + _BLOCK * draw.randrange(max(needed // _BLOCK, 1))
            _mount(mounted, size, _REMOUNT)
            ended = run(scene.words, work)
            _mount(mounted, _AMPLE, _REMOUNT)
            _judge(tally, f"disk of {size:,} bytes", scene, work, ended, expected)
    return tally


def _judge(
    tally: Tally, case: str, scene: Scene, folder: Path, ended: Ended,
    expected: dict[str, Left],
) -> None:  # fmt: skip
    faults = []
    if ended.code:
        if not ended.is_refused:
            faults.append(f"ended with {ended.code}: {ended.said[-600:]}")
        elif "disk is full" not in ended.said:
            faults.append(f"did not say that the disk is full: {ended.said[-300:]}")
        faults += [f"left behind at once: {name}" for name in leftovers(folder)]
    outcome, more = go_on(scene, folder, expected)
    tally.add(f"{scene.name}, {case}", outcome if ended.code else "disk sufficient", faults + more)


def _held(folder: Path) -> int:
    """Return the disk usage in bytes, in whole blocks, of a file or folder; links count once."""
    paths = [path for path in (folder, *folder.rglob("*")) if path.is_file()]
    sizes = {path.stat().st_ino: path.stat().st_size for path in paths}
    return sum(-(-size // _BLOCK) * _BLOCK for size in sizes.values())


def _used(disk: Path) -> int:
    facts = os.statvfs(disk)
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize


def _can_mount() -> bool:
    """Give this process its own mount namespace; return whether that is allowed."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_NEW_NAMESPACE):
        return False
    return not library.mount(b"none", b"/", None, _PRIVATE, None)


def _mount(folder: Path, size: int, flags: int = 0) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    options = f"size={size}".encode()
    if library.mount(b"none", os.fsencode(folder), b"tmpfs", flags, options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))


@contextlib.contextmanager
def _mounted(folder: Path) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    _mount(folder, _AMPLE)
    try:
        yield folder
    finally:
        ctypes.CDLL(None).umount2(os.fsencode(folder), _DETACH)
