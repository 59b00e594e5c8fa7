"""The processes of a run under torchrun: shared facts, sums and messages.

With a single process, `Processes` works without torch.distributed. Objects are sent over the CPU
(gloo), gradients over NCCL on GPUs. Called by the command `train` and by the loop of trainer.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy
import torch
import torch.distributed
from torch import Tensor

from nmtgrid.base.devices import is_out_of_memory
from nmtgrid.base.errors import ConfigError, StorageError, TrainingError, listed
from nmtgrid.base.io.atomic import remove

_BUCKET = 1 << 23
"""Maximum number of values in one all-reduce."""
_TIMEOUT = datetime.timedelta(minutes=30)
"""Maximum time to wait for each other: rank 0 may be saving, another compiling."""


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes of a run: this one's `rank` (from 0) of `count`."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process prints and writes files for all."""
        return self.rank == 0

    def share(self, costs: Sequence[float]) -> list[int]:
        """Return the indices (rising) of the items with these `costs` that this process takes.

        Items are assigned in order of falling cost, back and forth over the ranks, which balances
        the sums of all processes. A single process takes all items.
        """
        order = sorted(range(len(costs)), key=costs.__getitem__, reverse=True)
        turns = 2 * self.count
        return sorted(order[self.rank :: turns] + order[turns - 1 - self.rank :: turns])

    def check(self, batches: int, *, even: bool) -> None:
        """Raise TrainingError unless this number of batches can be shared, `even` equally."""
        if self.count <= batches and not (even and batches % self.count):
            return
        each = "one batch" if batches == 1 else f"{batches} batches"
        raise TrainingError(
            f"An update of this run consists of {each}, which {self.count} processes cannot share.",
            f"Continue with at most {batches}, or start a new run."
            + (" Shards need equal numbers." if even else ""),
        )

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over the processes, in double precision, on the CPU."""
        # On the CPU, through gloo: counts are small, and NCCL supports only tensors on GPUs.
        total = values.detach().to("cpu", torch.float64, copy=True)
        if self.count > 1:
            with _clear_errors():
                torch.distributed.all_reduce(total)
        return total

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Sum the gradients of `parameters` over the processes; None in all stays None."""
        if self.count == 1:
            return
        # A layer that this process' batches do not reach has no gradient here, but takes part.
        has = self.sum(torch.tensor([p.grad is not None for p in parameters]))
        used = [p for p, count in zip(parameters, has.tolist(), strict=True) if count]
        # All processes must send equally many numbers.
        for parameter in used:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        # Buckets: one call for each small tensor would cost more than the data it sends.
        buckets: list[list[Tensor]] = []
        room = 0
        for gradient in (p.grad for p in used if p.grad is not None):
            if not buckets or gradient.numel() > room:
                buckets.append([])
                room = _BUCKET
            buckets[-1].append(gradient)
            room -= gradient.numel()
        with _clear_errors():
            # All are started before waiting for the first, so that they overlap.
            works = []
            for bucket in buckets:
                flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
                works.append((bucket, flat, torch.distributed.all_reduce(flat, async_op=True)))
            for bucket, flat, work in works:
                work.wait()
                parts = flat.split([gradient.numel() for gradient in bucket])
                torch._foreach_copy_(
                    bucket, [part.view_as(g) for part, g in zip(parts, bucket, strict=True)]
                )

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite `tensors` with their values in the first process."""
        if self.count > 1:
            with torch.no_grad(), _clear_errors():
                for tensor in tensors:
                    torch.distributed.broadcast(tensor, 0)

    def gather(self, payload: bytes) -> list[bytes]:
        """Return the payload of each process, by rank."""
        if self.count == 1:
            return [payload]
        lengths = torch.zeros(self.count, dtype=torch.float64)
        lengths[self.rank] = len(payload)
        sizes = [int(size) for size in self.sum(lengths).tolist()]
        # All send as many bytes as the longest: gloo only gathers tensors of the same size.
        buffer = torch.zeros(max(1, *sizes), dtype=torch.uint8)
        buffer[: len(payload)] = torch.from_numpy(numpy.frombuffer(payload, numpy.uint8).copy())
        buffers = [torch.empty_like(buffer) for _ in sizes]
        with _clear_errors():
            torch.distributed.all_gather(buffers, buffer)
        return [b[:size].numpy().tobytes() for b, size in zip(buffers, sizes, strict=True)]


ALONE = Processes()


def processes_from_environment() -> Processes:
    """Return the processes according to torchrun's environment, or a single one without it.

    Raises ConfigError if that environment is incomplete.
    """
    count = os.environ.get("WORLD_SIZE", "1")
    if count == "1":
        return ALONE
    names = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if name not in os.environ]
    try:
        processes = Processes(int(os.environ.get("RANK", "0")), int(count))
        int(os.environ.get("LOCAL_RANK", "0"))
    except ValueError:
        missing.append("a whole number for WORLD_SIZE, RANK and LOCAL_RANK")
        processes = ALONE
    if missing or not 0 <= processes.rank < processes.count:
        raise ConfigError(
            f"WORLD_SIZE is {count}, as if torchrun had started this, but the environment lacks "
            f"{', '.join(missing) or 'a RANK below it'}.",
            "Start it as `torchrun --nproc-per-node N -m nmtgrid train ...`, or unset WORLD_SIZE.",
        )
    return processes


def local_device(name: str) -> str:
    """Return the device of this process for `--device name`: each takes a GPU of its machine."""
    if name == "cpu" or not torch.cuda.is_available():
        return name
    gpus, own = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
    if own >= gpus > 1:
        raise ConfigError(
            f"Process {own} (from 0) of this machine has no GPU: the machine has {gpus}.",
            f"Start at most {gpus} processes on it: `torchrun --nproc-per-node {gpus} ...`.",
        )
    # If one GPU is visible, the launcher may have assigned each process its own.
    return f"cuda:{own % gpus}"


@contextlib.contextmanager
def process_group(processes: Processes, device: torch.device) -> Iterator[None]:
    """Connect the processes within the context."""
    if processes.count == 1:
        yield
        return
    # Both backends on a GPU: NCCL for gradients, gloo for counts and payloads on the host.
    backend = "gloo"
    if device.type == "cuda":
        # NCCL sends from the current device.
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    with _clear_errors():
        torch.distributed.init_process_group(
            backend, rank=processes.rank, world_size=processes.count, timeout=_TIMEOUT
        )
    try:
        yield
    except BaseException:
        # NCCL would wait for the others, which do not know yet, and the error would not be shown.
        if device.type != "cuda":
            torch.distributed.destroy_process_group()
        raise
    torch.distributed.destroy_process_group()


@contextlib.contextmanager
def _clear_errors() -> Iterator[None]:
    """Raise TrainingError if another process has gone, which torch reports in many forms."""
    try:
        yield
    except RuntimeError as fault:
        # Running out of memory concerns this process only, and update.py handles it.
        if is_out_of_memory(fault):
            raise
        first = str(fault).strip().partition("\n")[0]
        raise TrainingError(
            "Another process of this run has ended or cannot be reached.",
            f"Its own message says why; this process received: {first}",
        ) from fault


def pack_states(states: dict[str, Tensor]) -> bytes:
    """Return random states (uint8 tensors) as bytes."""
    return json.dumps({name: state.tolist() for name, state in states.items()}).encode()


def unpack_states(packed: bytes) -> dict[str, Tensor]:
    """Return the states that `pack_states` packed."""
    values = json.loads(packed).items()
    return {name: torch.tensor(state, dtype=torch.uint8) for name, state in values}


_SHARED_FOLDER_SECONDS = 5.0
"""Seconds within which a network file system shows a new file to all machines."""


def check_shared_folder(folder: Path, processes: Processes) -> None:
    """Raise StorageError unless all processes see `folder` as the first one does.

    The first process creates a file with a new name in it, or in the nearest existing folder above
    it, and the others look for it. All of them raise the same error.
    """
    if processes.count == 1:
        return
    probe = _new_file(folder) if processes.is_first else None
    try:
        path = processes.gather(b"" if probe is None else os.fsencode(probe))[0]
        is_seen = not path or _appears(Path(os.fsdecode(path)))
        seen = processes.gather(b"yes" if is_seen else b"")
    finally:
        if probe is not None:
            remove(probe)
    blind = [rank for rank, answer in enumerate(seen) if not answer]
    if blind:
        raise StorageError(
            f"{len(blind)} of {processes.count} processes ({listed(blind)}) do not see what "
            f"process 0 writes to {folder}.",
            "All machines must use the same folder: give `--out` an absolute path on a shared file "
            "system.",
        )


def _new_file(folder: Path) -> Path | None:
    """Return a new file; None if it cannot be created, which is an error when the run begins."""
    home = next(path for path in (folder, *folder.parents) if path.is_dir())
    probe = home / f".nmtgrid-{uuid.uuid4().hex}"
    try:
        probe.touch(exist_ok=False)
    except OSError:
        return None
    return probe


def _appears(path: Path) -> bool:
    # A network file system may show a new file late.
    end = time.monotonic() + _SHARED_FOLDER_SECONDS
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
