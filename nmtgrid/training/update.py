"""One update: the summed gradient of its micro-batches, divided once, clipped and applied.

A micro-batch that does not fit into memory is halved, and the update begun again: its gradient is
the same sum, so the update stays exact but for models that take statistics of a batch: each half
has its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence

import torch

from nmtgrid.base.errors import DeviceError, TrainingError
from nmtgrid.base.memory import is_out_of_memory
from nmtgrid.base.processors import is_intel
from nmtgrid.data.batches import Batch
from nmtgrid.models.api import TranslationModel
from nmtgrid.training.api import Objective
from nmtgrid.training.distributed import Processes
from nmtgrid.training.gradients import GradientWatch
from nmtgrid.training.optimiser import clip_and_scale
from nmtgrid.training.weights import Weights, local


@dataclasses.dataclass(frozen=True)
class UpdateResult:
    """What an update amounted to: sums over its target tokens, and the gradient's norm."""

    loss: float
    nll: float
    tokens: int
    pairs: int
    cells: int
    """Grid cells, padding included."""
    gradient_norm: float
    extra: dict[str, float]
    splits: int
    """Micro-batches that had to be halved for want of memory."""
    gradients: dict[str, float] = dataclasses.field(default_factory=dict)
    """Norms at the stages of the network, where they were watched."""


class Updater:
    """Applies updates to a model."""

    def __init__(
        self,
        model: TranslationModel,
        objective: Objective,
        optimiser: torch.optim.Optimizer,
        device: torch.device,
        *,
        bf16: bool,
        clip_norm: float,
        processes: Processes | None = None,
        weights: Weights | None = None,
    ) -> None:
        self.model, self.optimiser = model, optimiser
        self.processes = processes or Processes()
        self.weights = weights or Weights(model, objective)
        self.device, self.bf16, self.clip_norm = device, bf16, clip_norm
        self.too_many_cells = math.inf
        self._parameters = [p for p in model.parameters() if p.requires_grad]

    def apply(
        self, batches: Sequence[Batch], learning_rate: float, watch: GradientWatch | None = None
    ) -> UpdateResult:
        """Do one update on `batches`; `watch` measures its gradients between the layers.

        With several processes these are this one's share of them; what is returned is of all.
        Raises: DeviceError if a single pair does not fit into memory; TrainingError if the loss
        or the gradient is not finite, the weights then being what they were.
        """
        self.model.train()
        splits = 0
        pieces = [half for batch in batches for half in self._presplit(batch)]
        while True:
            self.optimiser.zero_grad(set_to_none=True)
            failed, sums = self._accumulate(pieces, watch)
            if failed is None:
                break
            splits += 1
            piece = pieces[failed]
            self.too_many_cells = min(self.too_many_cells, count_cells(piece))
            pieces[failed : failed + 1] = halve(piece)
        counts = [
            sum(int(batch.target_lengths.sum()) for batch in batches),
            sum(map(len, batches)), sum(map(count_cells, batches)), splits,
        ]  # fmt: skip
        tokens, pairs, cells, splits = map(int, self._all(torch.tensor(counts)))
        norm = self._reduce(tokens)
        names = sorted(set(sums) - {"loss", "nll"})
        held = [sums["loss"], sums["nll"], *(sums[name] for name in names)]
        # Brought over together: a GPU is waited for once.
        values = torch.stack([norm.float(), *(value.float() for value in held)]).tolist()
        size = values[0]
        loss, nll, *others = self._all(torch.tensor(values[1:], dtype=torch.float64))
        if not (math.isfinite(size) and math.isfinite(loss)):
            raise _not_finite(size, loss / tokens, batches, learning_rate)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        self.optimiser.step()
        return UpdateResult(
            loss, nll, tokens, pairs, cells, size, dict(zip(names, others, strict=True)), splits,
            {} if watch is None else watch.norms(tokens, self.processes),
        )  # fmt: skip

    def _reduce(self, tokens: int) -> torch.Tensor:
        """Bring the processes' gradients together, divide and clip them; return their norm."""
        if self.weights.is_sharded:
            # Each process has its shards of what are means over the processes already.
            held = [local(p.grad) for p in self._parameters if p.grad is not None]
            each = tokens / self.processes.count
            return clip_and_scale(held, each, self.clip_norm, self.processes.sum)
        self.processes.sum_gradients(self._parameters)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        return clip_and_scale(gradients, tokens, self.clip_norm)

    def _all(self, values: torch.Tensor) -> list[float]:
        """Return sums over all processes."""
        found: list[float] = self.processes.sum(values).tolist()
        return found

    def _presplit(self, batch: Batch) -> list[Batch]:
        """Return `batch` in pieces below the size that did not fit before."""
        if len(batch) < 2 or count_cells(batch) < self.too_many_cells:
            return [batch]
        return [piece for half in halve(batch) for piece in self._presplit(half)]

    def _accumulate(
        self, pieces: Sequence[Batch], watch: GradientWatch | None
    ) -> tuple[int | None, dict[str, torch.Tensor]]:
        """Sum the gradients of `pieces`; return the first that did not fit (or None), and sums."""
        sums: dict[str, torch.Tensor] = {}
        catching = contextlib.nullcontext if watch is None else watch.catching
        if watch is not None:
            watch.begin()
        for place, piece in enumerate(pieces):
            try:
                with autocast(self.device, self.bf16), catching():
                    parts = self.weights.loss(piece.to(self.device))
                parts.total.backward()
            except (RuntimeError, MemoryError) as fault:
                if not is_out_of_memory(fault):
                    raise
                if len(piece) == 1 or self.weights.is_sharded:
                    raise _too_large(piece) from fault
                failed = place
            else:
                found = {"loss": parts.total.detach(), "nll": parts.nll, **parts.extra}
                for name, value in found.items():
                    sums[name] = sums[name] + value if name in sums else value
                continue
            # Outside the handler: its traceback would keep the failed pass's tensors alive.
            self.optimiser.zero_grad(set_to_none=True)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            return failed, sums
        return None, sums


@contextlib.contextmanager
def autocast(device: torch.device, bf16: bool) -> Iterator[None]:
    """Run what is inside in bfloat16 where that is safe, if `bf16`."""
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        yield


def has_fast_bf16(device: torch.device) -> bool:
    """Return whether `device` multiplies faster in bfloat16 than in fp32.

    AMD's processors do by AVX512-BF16 alone, Intel's by AMX; with AVX512-BF16 alone fp32 updates
    take two thirds of the time there.
    """
    if device.type == "cuda":
        # From Ampere on; torch also calls supported what older ones imitate.
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if torch.cpu._is_amx_tile_supported():
        return True
    return torch.cpu._is_avx512_bf16_supported() and not is_intel()


def count_cells(batch: Batch) -> int:
    """Return the number of grid cells of `batch`, padding included."""
    return len(batch) * batch.source.shape[1] * batch.target_input.shape[1]


def halve(batch: Batch) -> list[Batch]:
    """Return the two halves of `batch`."""
    middle = len(batch) // 2
    rows = torch.arange(len(batch))
    return [batch.select(rows[:middle]), batch.select(rows[middle:])]


def _too_large(piece: Batch) -> DeviceError:
    if len(piece) > 1:
        # With shards all processes must do as many passes: none may halve its batch.
        return DeviceError(
            f"A batch of {len(piece):,} pairs does not fit into memory.",
            "Set a smaller `batches.max_tokens` or `batches.max_cells`.",
        )
    return DeviceError(
        f"Training pair {int(piece.indices[0]) + 1} alone ({piece.source.shape[1]} source and "
        f"{piece.target_input.shape[1]} target tokens) does not fit into memory.",
        "Set a smaller `batches.max_length`, a smaller model, or "
        "`--set model.checkpoint_activations=true`.",
    )


def _not_finite(
    norm: float, loss: float, batches: Sequence[Batch], learning_rate: float
) -> TrainingError:
    lines = sorted(int(i) + 1 for batch in batches for i in batch.indices)
    shown = ", ".join(map(str, lines[:20])) + (", ..." if len(lines) > 20 else "")
    return TrainingError(
        f"The loss is not finite (loss {loss:.4g} per token, gradient norm {norm:.4g}) at "
        f"learning rate {learning_rate:.3g}, on the training pairs (lines) {shown}.",
        "Try a lower `training.learning_rate`, a longer warm-up or `training.clip_norm`.",
    )
