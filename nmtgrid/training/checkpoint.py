"""Checkpoints of a run: numbered folders that are written completely or not at all.

`checkpoints/000012/` contains `last.safetensors` (the weights), `model.safetensors` (the best ones
so far), `training.safetensors` (moments, moving average, random states) and `training.json`
(counters, position in the data). The folder is written under another name and then renamed, so a
run that is killed at any moment resumes from a consistent state. `model.safetensors` and
`last.safetensors` of the model directory are links to files of the newest folder.

Older states keep only the weights of scheduled validations, for averaging. States that were saved
because of a clock or a signal, and the state of update 0, only serve to resume: the average is that
of a run without interruptions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from nmtgrid.base.errors import StorageError
from nmtgrid.base.io.arrays import UNTRAINED, load_tensors, save_tensors, verify
from nmtgrid.base.io.atomic import (
    CHECKSUM,
    atomic_file,
    link_target,
    reason,
    remove_folder,
    remove_stale,
    sync_folder,
    temporary_path,
    with_checksum,
    write_json,
)
from nmtgrid.base.io.records import Count, Positive, Record, Small, convert, read_json, read_record
from nmtgrid.models.directory import WEIGHTS
from nmtgrid.training.metrics_log import UpdateSums
from nmtgrid.training.optimiser import RateState
from nmtgrid.training.progress import Progress
from nmtgrid.training.validate import Best

FORMAT = 1
FOLDER = "checkpoints"
BEST, LAST, AVERAGE = WEIGHTS["best"], WEIGHTS["last"], WEIGHTS["average"]
_TENSORS, _FACTS = "training.safetensors", "training.json"
_AGAIN = "begin again: with `--overwrite`, or `--resume` for one of several `--seeds`."


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A checkpoint: weights and the state of training, as tensors and plain values."""

    weights: dict[str, Tensor]
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    is_trained: bool = True
    """False before the first update; decoding with such weights gives a warning."""


class _Facts(Record):
    progress: dict[str, Any]


class RunState(Record, kw_only=True):
    """The plain values of a checkpoint; those of early versions lack some."""

    pairs: Positive
    lengths: str | None = None
    valid_lengths: str | None = None
    progress: dict[str, Any]
    rate: RateState
    meter: UpdateSums
    best: Best
    ema_steps: Count
    batches: Small | None = None
    processes: Positive = 1


class Checkpoints:
    """The saved states of the model directory `folder`: the newest, and checkpoints before it.

    There are at most `keep` of them, which can be averaged.
    """

    def __init__(self, folder: Path, keep: int = 1) -> None:
        self.model_folder = folder
        self.folder = folder / FOLDER
        self.keep = max(1, keep)

    def save(self, snapshot: Snapshot, best: Mapping[str, Tensor] | None) -> Path:
        """Write `snapshot`; `best` are new best weights, or None to keep the previous ones.

        Raises StorageError if the disk is full; the previous states are then still there.
        """
        existing = self.existing()
        number = int(existing[-1].name) + 1 if existing else 1
        part, path = self.folder / f".{number:06d}.part", self.folder / f"{number:06d}"
        # The leftovers of a killed run may be what fills the disk.
        for leftover in self.folder.glob(".*.part"):
            remove_folder(leftover)
        try:
            part.mkdir(parents=True)
            facts = {} if snapshot.is_trained else {UNTRAINED: "true"}
            save_tensors(part / LAST, snapshot.weights, facts)
            save_tensors(part / _TENSORS, snapshot.tensors)
            write_json(part / _FACTS, with_checksum({"format": FORMAT, **snapshot.facts}))
            if best is not None:
                save_tensors(part / BEST, best, facts)
            # Unchanged best weights are linked, which costs no space and no time.
            elif existing and (existing[-1] / BEST).exists():
                _link(existing[-1] / BEST, part / BEST)
            else:
                _link(part / LAST, part / BEST)
            sync_folder(part)
            # Only this step makes it a state: a run killed before leaves no state at all.
            os.rename(part, path)
            sync_folder(self.folder)
        except (OSError, StorageError) as fault:
            # A StorageError begins with the file's temporary name; the reason follows.
            why = reason(fault) if isinstance(fault, OSError) else fault.problem
            advice = "continue with `--resume`: the previous state is intact."
            raise StorageError(
                f"The state {path} could not be saved: {why.rpartition(': ')[2].rstrip('.')}.",
                "Fix this, for example by freeing disk space, and "
                + (advice if existing else _AGAIN),
            ) from fault
        finally:
            remove_folder(part)
        self.publish(path)
        self._prune()
        return path

    def publish(self, path: Path) -> None:
        """Link the model directory's files to those of the state at `path`."""
        for name in (BEST, LAST):
            _link(path / name, self.model_folder / name)

    def load(self) -> Snapshot | None:
        """Return the newest state, or None. Raises StorageError if it is damaged."""
        existing = self.existing()
        if not existing:
            return None
        path = existing[-1]
        try:
            facts = read_record(path / _FACTS, dict[str, Any], FORMAT)
            facts.pop(CHECKSUM, None)
            del facts["format"]
            weights, tensors = load_tensors(path / LAST), load_tensors(path / _TENSORS)
            # Not needed now, but damaged best weights would replace good ones unnoticed.
            verify(path / BEST)
        except StorageError as fault:
            raise self.damaged(fault) from fault
        self.publish(path)
        self._prune()
        return Snapshot(weights, tensors, facts)

    def damaged(self, fault: Exception) -> StorageError:
        """Return the error for a newest state that cannot be read or is inconsistent."""
        newest = self.existing()[-1]
        return StorageError(
            fault.problem if isinstance(fault, StorageError) else f"{newest} is damaged: {fault}.",
            f"Restore a copy of {newest}, or start a new run from the weights with "
            f"`--init {self.model_folder}` and another `--out`.",
        )

    def existing(self) -> list[Path]:
        """Return the folders of the saved states, oldest first."""
        if not self.folder.is_dir():
            return []
        # Six digits sort like their numbers; hidden names are incomplete states.
        return sorted(
            path
            for path in self.folder.iterdir()
            if path.name.isascii() and path.name.isdigit() and path.is_dir()
        )

    def clear(self) -> None:
        """Remove all states, but no other files in their folder. Raises OSError."""
        for path in (*self.existing(), *self.folder.glob(".*.part")):
            shutil.rmtree(path)
        # The folder stays if it is a link or contains something else.
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def average(self) -> dict[str, Tensor]:
        """Return the mean of the weights of the newest state and the checkpoints before it.

        Integers are those of the newest state, which must exist.
        """
        paths = self._counting()
        total: dict[str, Tensor] = {}
        for path in paths:
            for name, tensor in load_tensors(path / LAST).items():
                if not tensor.is_floating_point():
                    total[name] = tensor
                else:
                    # Summed in double precision, so that the mean keeps all digits of the weights.
                    value = tensor.double()
                    total[name] = total[name] + value if name in total else value
        return {
            name: (tensor / len(paths)).float() if tensor.is_floating_point() else tensor
            for name, tensor in total.items()
        }

    @property
    def averaged(self) -> int:
        """Number of states of which `average` takes the mean."""
        return len(self._counting())

    def write_average(self, weights: Mapping[str, Tensor]) -> None:
        """Write averaged weights into the model directory."""
        save_tensors(self.model_folder / AVERAGE, weights)

    def _counting(self) -> list[Path]:
        """Return the states to average, oldest first: checkpoints, and the newest state."""
        *older, newest = self.existing()
        newest_update = _progress_of(newest).update
        checkpoints = []
        for path in older:
            progress = _progress_of(path)
            is_checkpoint = progress.update == progress.checkpoint_update != 0
            # The mean must not count twice a state that was saved twice.
            is_counted = is_checkpoint and progress.update != newest_update
            # Only checkpoints have their facts removed; older versions did so with any state.
            if is_counted or not (path / _FACTS).exists():
                checkpoints.append(path)
        return [*checkpoints, newest][-self.keep :]

    def _prune(self) -> None:
        """Keep the newest state complete, and the weights of the checkpoints before it."""
        counting = self._counting()
        for path in self.existing():
            if path not in counting:
                # Atomically: under another name it is not a state.
                with contextlib.suppress(OSError):
                    os.rename(path, path.with_name(f".{path.name}.part"))
        # A mean needs only the weights of older ones.
        for path in counting[:-1]:
            for name in (_TENSORS, BEST, _FACTS):
                with contextlib.suppress(OSError):
                    (path / name).unlink()
        # Including what a killed run had not completed or not removed.
        for leftover in self.folder.glob(".*.part"):
            remove_folder(leftover)


def _progress_of(path: Path) -> Progress:
    """Return the progress of the run in a state, or that of update 0 if it cannot be read."""
    try:
        return Progress.from_json(convert(read_json(path / _FACTS), _Facts).progress)
    except (StorageError, ValueError):
        return Progress()


def _link(source: Path, target: Path) -> None:
    """Make `target` the same file as `source`: a hard link, or else a copy."""
    target = link_target(target)
    remove_stale(target)
    part = temporary_path(target)
    try:
        part.unlink(missing_ok=True)
        os.link(source, part)
        os.replace(part, target)
        # If both are links to one file already, `replace` does nothing at all.
        part.unlink(missing_ok=True)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        with atomic_file(target) as copy, source.open("rb") as original:
            shutil.copyfileobj(original, copy)
