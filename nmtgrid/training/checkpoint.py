"""Saved states of a run: each a numbered folder that appears whole or not at all.

`checkpoints/000012/` holds `last.safetensors` (the weights), `model.safetensors` (the best ones so
far), `training.safetensors` (moments, running average, random states) and `training.json`
(counters, place in the data). The folder is filled under another name and renamed, so a run that
is killed at any moment finds one consistent set when it is resumed. `model.safetensors` and
`last.safetensors` of the model directory are links to the newest folder's files.

Of older states only checkpoints are kept, and of these only the weights, for the mean of the last
ones: a checkpoint is the state of a validation that was due. What a clock or a signal had saved,
and the state of update 0, are for going on alone, so that the mean is that of a run that nobody
interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtgrid.base.errors import StorageError
from nmtgrid.base.io.arrays import load_tensors, save_tensors, verify
from nmtgrid.base.io.atomic import (
    read_json,
    reason,
    remove_stale,
    sync_folder,
    temporary_path,
    write_json,
)
from nmtgrid.base.io.checksums import CHECKSUM, is_altered, with_checksum
from nmtgrid.training.progress import Progress

FORMAT = 1
FOLDER = "checkpoints"
BEST, LAST, AVERAGE = "model.safetensors", "last.safetensors", "average.safetensors"
_TENSORS, _FACTS = "training.safetensors", "training.json"


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A state: weights and what training needs, as tensors and as plain values."""

    weights: dict[str, Tensor]
    tensors: dict[str, Tensor]
    facts: dict[str, Any]


class Checkpoints:
    """The saved states of the model directory `folder`: the newest, and checkpoints before it.

    Together they are at most `keep`, of which a mean may be taken.
    """

    def __init__(self, folder: Path, keep: int = 1) -> None:
        self.model_folder = folder
        self.folder = folder / FOLDER
        self.keep = max(1, keep)

    def save(self, snapshot: Snapshot, best: Mapping[str, Tensor] | None) -> Path:
        """Write `snapshot`; `best` holds new best weights, or None to keep those before.

        Raises StorageError when the disk is full; the states before are then still there.
        """
        existing = self.existing()
        number = int(existing[-1].name) + 1 if existing else 1
        part, place = self.folder / f".{number:06d}.part", self.folder / f"{number:06d}"
        self._sweep()
        try:
            part.mkdir(parents=True)
            save_tensors(part / LAST, snapshot.weights)
            save_tensors(part / _TENSORS, snapshot.tensors)
            write_json(part / _FACTS, with_checksum({"format": FORMAT, **snapshot.facts}))
            if best is not None:
                save_tensors(part / BEST, best)
            elif existing and (existing[-1] / BEST).exists():
                _link(existing[-1] / BEST, part / BEST)
            else:
                _link(part / LAST, part / BEST)
            os.rename(part, place)
            sync_folder(self.folder)
        except (OSError, StorageError) as fault:
            raise _unsaved(fault, place, is_first=not existing) from fault
        finally:
            shutil.rmtree(part, ignore_errors=True)
        self.publish(place)
        self._prune()
        return place

    def publish(self, place: Path) -> None:
        """Let the model directory's files be those of the state at `place`."""
        for name in (BEST, LAST):
            _link(place / name, self.model_folder / name)

    def load(self) -> Snapshot | None:
        """Return the newest state, or None. Raises StorageError when it is damaged."""
        existing = self.existing()
        if not existing:
            return None
        place = existing[-1]
        try:
            facts = _opened(read_json(place / _FACTS), place)
            weights, tensors = load_tensors(place / LAST), load_tensors(place / _TENSORS)
            # Not needed now, but it would take the place of good weights, and be lost at the end.
            verify(place / BEST)
        except StorageError as fault:
            raise StorageError(
                fault.problem,
                f"Restore a copy of {place}, or begin a new run from the weights by `--init "
                f"{self.model_folder}` and another `--out`.",
            ) from fault
        self.publish(place)
        self._sweep()
        self._prune()
        return Snapshot(weights, tensors, facts)

    def existing(self) -> list[Path]:
        """Return the folders of the saved states, oldest first."""
        if not self.folder.is_dir():
            return []
        names = (place for place in self.folder.iterdir() if place.is_dir())
        return sorted(place for place in names if place.name.isascii() and place.name.isdigit())

    def average(self) -> dict[str, Tensor]:
        """Return the mean of the weights of the newest state and the checkpoints before it.

        Whole numbers are those of the newest state, of which there must be one.
        """
        places = self._kept()
        total: dict[str, Tensor] = {}
        for place in places:
            for name, tensor in load_tensors(place / LAST).items():
                is_mean = name in total and tensor.is_floating_point()
                held = tensor.double() if tensor.is_floating_point() else tensor
                total[name] = total[name] + held if is_mean else held
        return {
            name: (tensor / len(places)).float() if tensor.is_floating_point() else tensor
            for name, tensor in total.items()
        }

    def write_average(self, weights: Mapping[str, Tensor]) -> None:
        """Write averaged weights into the model directory."""
        save_tensors(self.model_folder / AVERAGE, weights)

    def _kept(self) -> list[Path]:
        """Return the states that are worth keeping, oldest first: checkpoints, and the newest."""
        *older, newest = self.existing()
        update = _progress_of(newest).update
        return [*(place for place in older if _is_checkpoint(place, update)), newest][-self.keep :]

    def _prune(self) -> None:
        """Keep the newest state whole, and of checkpoints before it the weights."""
        kept = self._kept()
        for place in self.existing():
            if place not in kept:
                self._remove(place)
        for place in kept[:-1]:
            for name in (_TENSORS, BEST, _FACTS):
                with contextlib.suppress(OSError):
                    (place / name).unlink()

    def _remove(self, place: Path) -> None:
        """Remove a state at one stroke: under another name it is none."""
        gone = place.with_name(f".{place.name}.part")
        with contextlib.suppress(OSError):
            os.rename(place, gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what a killed run left half made or half removed."""
        for part in self.folder.glob(".*.part"):
            shutil.rmtree(part, ignore_errors=True)


def _is_checkpoint(place: Path, newest: int) -> bool:
    """Return whether an older state counts beside that of the update `newest`."""
    if not (place / _FACTS).exists():
        # Checkpoints alone are kept so; older versions kept the last states of any kind.
        return True
    progress = _progress_of(place)
    # A mean would count twice what was saved twice.
    return progress.is_checkpoint and progress.update != newest


def _progress_of(place: Path) -> Progress:
    """Return how far the run was in a state, that of update 0 where it cannot be read."""
    try:
        return Progress.from_json(read_json(place / _FACTS)["progress"])
    except (StorageError, LookupError, TypeError):
        return Progress()


def copy_weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the model's weights, on the CPU and of their own memory."""
    return {name: t.detach().to("cpu", copy=True) for name, t in model.state_dict().items()}


def _opened(facts: Any, place: Path) -> dict[str, Any]:
    """Return `facts` as they were saved. Raises StorageError where they differ."""
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise StorageError(f"{place} was written in another format.")
    if is_altered(facts):
        raise StorageError(f"{place / _FACTS} has been altered (its checksum differs).")
    facts.pop(CHECKSUM, None)
    del facts["format"]
    return facts


def _unsaved(fault: Exception, place: Path, *, is_first: bool) -> StorageError:
    """Return the error for a state that could not be written to `place`."""
    # A StorageError names the file under a passing name: what happened to it comes after that.
    why = reason(fault) if isinstance(fault, OSError) else str(getattr(fault, "problem", fault))
    return StorageError(
        f"The state {place} could not be saved: {why.rpartition(': ')[2].rstrip('.')}.",
        "Mend that, such as by freeing space, and "
        + ("begin again with `--overwrite`." if is_first else
           "go on with `--resume`: the state before it is whole."),
    )  # fmt: skip


def _link(source: Path, target: Path) -> None:
    """Let `target` be `source`, in one step: a hard link, or a copy where there are none."""
    remove_stale(target)
    part = temporary_path(target)
    try:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        try:
            os.link(source, part)
        except OSError:
            shutil.copyfile(source, part)
        os.replace(part, target)
        # Where both are links to one file already, `replace` does nothing at all.
        part.unlink(missing_ok=True)
    except OSError as fault:
        with contextlib.suppress(OSError):
            part.unlink()
        raise StorageError(f"{target} could not be written: {reason(fault)}.") from fault
