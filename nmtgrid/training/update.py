"""One update: the summed gradient of its micro-batches, divided once, clipped and applied.

A micro-batch that does not fit into memory is halved, and the update starts again. The gradient is
the same sum, except in models with batch statistics, which are then those of each half. Results of
a GPU are read while it computes the next update, so that it never waits for the host. Called by
trainer.py; `benchmarks/training_speed.py` times it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from nmtgrid.base import console
from nmtgrid.base.devices import (
    autocast,
    fragmentation_advice,
    is_intel,
    is_out_of_memory,
    keep_memory,
)
from nmtgrid.base.errors import ConfigError, DeviceError, TrainingError, listed
from nmtgrid.data.batches import Batch
from nmtgrid.layers.probes import ProbePoint, hooked
from nmtgrid.models.api import TranslationModel
from nmtgrid.training.distributed import ALONE, Processes
from nmtgrid.training.trained_model import TrainedModel, local_shard
from nmtgrid.training.weights import LowPrecisionCopies


def clip_and_scale(
    gradients: list[Tensor],
    tokens: float,
    clip_norm: float,
    over_all: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Divide the summed gradients by `tokens`, clip them by their norm and return that norm.

    The norm is the one before clipping, of the divided gradient. `over_all` sums squares over the
    processes if each has a shard of the gradients.
    """
    # One fused call for all tensors: a loop would launch a kernel, or two, for each.
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if over_all is not None:
        # Squares of shards add up over the processes, norms do not.
        norm = over_all(norm.double().square()).sqrt().to(norm)
    norm = norm / tokens
    # One multiplication for both: one more pass over the gradients, not two.
    factor = torch.full_like(norm, 1.0 / tokens)
    if clip_norm > 0:
        # The small number avoids a division by zero for a gradient of zero.
        factor = factor * torch.clamp(clip_norm / (norm + 1e-6), max=1.0)
    torch._foreach_mul_(gradients, factor)
    return norm


class GradientWatch:
    """Gradient norms at the outputs of a model's stages, measured at intervals.

    Each is the Frobenius norm, over all positions of the update, of the gradient of the loss per
    target token, like the norm of the weights' gradient. Micro-batches contain different positions,
    so their squares add up; padding adds nothing, because no prediction depends on it. A stage that
    the loss does not reach has the norm zero.

    Raises ConfigError for a model without stages.
    """

    def __init__(self, model: TranslationModel, every: int = 1) -> None:
        self.every = every
        self._points = {name: ProbePoint(part) for name, part in model.stages().items()}
        if not self._points:
            raise no_stages(getattr(model, "architecture", type(model).__name__))
        self._squares: dict[str, Tensor] = {}

    def is_due(self, update: int) -> bool:
        """Return whether `update` is measured: the first one, and each multiple of `every`."""
        return update == 1 or update % self.every == 0

    def begin(self) -> None:
        """Discard measurements at the start of an update, or when it is repeated."""
        self._squares = {}

    def hooks(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that hooks the stages' outputs in a micro-batch's forward pass.

        Layers that are computed a second time in the backward pass (activation checkpointing) are
        hooked once: the hooks are gone by then, and the gradient reaches the first output.
        """

        def watch(name: str, output: Tensor) -> None:
            if output.requires_grad:
                output.register_hook(functools.partial(self._add, name))

        return hooked(self._points, watch)

    def _add(self, name: str, gradient: Tensor) -> None:
        # In double precision: the aim is to see vanishing gradients, and squares are smaller still.
        square = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float64).square()
        self._squares[name] = self._squares[name] + square if name in self._squares else square

    def norms(self, tokens: int, processes: Processes) -> dict[str, float]:
        """Return the norm at each stage, in order, for an update of `tokens` target tokens.

        It is that of all `processes` together.
        """
        zero = torch.zeros((), dtype=torch.float64)
        device = next((square.device for square in self._squares.values()), zero.device)
        # Transferred together: a GPU is synchronised once.
        squares = [self._squares.get(name, zero).to(device) for name in self._points]
        norms: list[float] = processes.sum(torch.stack(squares)).sqrt().tolist()
        return {name: norm / tokens for name, norm in zip(self._points, norms, strict=True)}


def gradient_ratio(norms: Mapping[str, float]) -> float | None:
    """Return r = |gradient at h_1| / |gradient at h_N| over the N encoder layers.

    If a network has no encoder, this is the ratio in its first named part. The embeddings, h_0, are
    left out. None if there is no layer or no gradient reaches the last one.
    """
    stages = {name.partition(".")[::2]: norm for name, norm in norms.items()}
    parts = [part for part, _ in stages]
    encoder = "encoder" if "encoder" in parts else parts[0] if parts else ""
    layers = {
        int(number): norm
        for (part, number), norm in stages.items()
        if part == encoder and number.isdigit() and int(number) > 0
    }
    if not layers or not layers[max(layers)]:
        return None
    return layers[min(layers)] / layers[max(layers)]


def no_stages(architecture: str) -> ConfigError:
    """Return the error for watching gradients in an architecture without stages."""
    return ConfigError(
        "`training.watch_gradients` needs named points between layers, which the architecture "
        f"`{architecture}` does not define.",
        "Set it to 0, or choose another architecture.",
    )


@dataclasses.dataclass(frozen=True)
class UpdateResult:
    """The result of an update: sums over its target tokens, and the gradient norm."""

    loss: float
    nll: float
    tokens: int
    pairs: int
    cells: int
    """Grid cells, padding included."""
    gradient_norm: float
    extra: dict[str, float]
    oom_splits: int
    """Micro-batches that had to be halved because memory ran out."""
    gradients: dict[str, float] = dataclasses.field(default_factory=dict)
    """Norms at the stages of the network, if they were watched."""


@dataclasses.dataclass
class _Pending:
    """An update whose loss and gradient norm the host has not read."""

    values: Tensor
    """The gradient norm and the sums of `names`, on their way to the host."""
    arrival: torch.cuda.Event | None
    """Event of their arrival; None if they have arrived."""
    names: list[str]
    counts: list[int]
    """Target tokens, pairs, cells, and micro-batches that were halved."""
    batches: Sequence[Batch]
    learning_rate: float
    watch: GradientWatch | None


class Updater:
    """Applies updates to a model."""

    def __init__(
        self,
        trained: TrainedModel,
        optimiser: torch.optim.Optimizer,
        device: torch.device,
        *,
        bf16: bool,
        clip_norm: float,
        processes: Processes = ALONE,
    ) -> None:
        self.trained, self.model, self.optimiser = trained, trained.model, optimiser
        self.processes = processes
        self.device, self.bf16, self.clip_norm = device, bf16, clip_norm
        if device.type == "cpu":
            keep_memory()
        # The smallest size that did not fit, so that memory does not run out at every update.
        self.too_many_cells = math.inf
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._pending: _Pending | None = None
        self.is_late = device.type == "cuda"
        """Whether results are read with the next update."""
        # Shards are cast by autocast after they have been gathered.
        has_copies = bf16 and device.type == "cuda" and not trained.is_sharded
        self._copies = LowPrecisionCopies(self.model) if has_copies else None

    def apply(
        self, batches: Sequence[Batch], learning_rate: float, watch: GradientWatch | None = None
    ) -> UpdateResult:
        """Do one update on `batches` and wait for its result; see `launch`."""
        *_, result = [*self.launch(batches, learning_rate, watch), *self.finish()]
        return result

    def launch(
        self, batches: Sequence[Batch], learning_rate: float, watch: GradientWatch | None = None
    ) -> list[UpdateResult]:
        """Do one update on `batches`; `watch` measures its gradients between the layers.

        Return the results that have been read, in order: on a GPU that of the previous update,
        unless `finish` has returned it, elsewhere (and after measuring or halving) that of this
        one.

        With several processes `batches` are the share of this one, but results are those of all.
        Raises: DeviceError if a single pair does not fit into memory; NotFiniteError if the loss or
        the gradient of an update whose result is read is not finite; the weights are then as they
        were before it.
        """
        self.model.train()
        oom_splits, microbatches = 0, list(batches)
        index = 0
        while index < len(microbatches):
            part = microbatches[index]
            if len(part) > 1 and count_cells(part) >= self.too_many_cells:
                microbatches[index : index + 1] = split_batch(part)
            else:
                index += 1
        while True:
            # None, not zero: the optimiser then skips parameters that no loss reaches.
            self.optimiser.zero_grad(set_to_none=True)
            failed, sums = self._accumulate(microbatches, watch)
            if failed is None:
                break
            oom_splits += 1
            # Halved in place: the order of the sum, and so its rounding, stays the same.
            microbatch = microbatches[failed]
            self.too_many_cells = min(self.too_many_cells, count_cells(microbatch))
            # Earlier gradients are computed again, because they may include a part of this pass.
            microbatches[failed : failed + 1] = split_batch(microbatch)
        counts = [
            sum(batch.token_count for batch in batches),
            sum(map(len, batches)), sum(map(count_cells, batches)), oom_splits,
        ]  # fmt: skip
        totals = [int(total) for total in self.processes.sum(torch.tensor(counts)).tolist()]
        norm = self._reduce_gradients(totals[0])
        names = ["loss", "nll", *sorted(set(sums) - {"loss", "nll"})]
        # Transferred together, and into pinned memory: no synchronisation yet.
        values = torch.stack([norm.float(), *(sums[name].float() for name in names)])
        on_host, arrival = values.to("cpu", non_blocking=True), None
        if self.device.type == "cuda":
            arrival = torch.cuda.Event()
            arrival.record()
        # Before the weights change, but after launching a whole update for the device to compute.
        results = self.finish()
        self._step(values[:2], learning_rate)
        self._pending = _Pending(on_host, arrival, names, totals, batches, learning_rate, watch)
        if not self.is_late or watch is not None or totals[-1]:
            results += self.finish()
        return results

    def finish(self) -> list[UpdateResult]:
        """Return the result of the update that has not been read, if there is one; see `launch`."""
        pending = self._pending
        if pending is None:
            return []
        if pending.arrival is not None:
            pending.arrival.synchronize()
        gradient_norm, *sums = pending.values.tolist()
        # Each process has the norm of all gradients, but the sums of its own share.
        own = self.processes.sum(torch.tensor(sums, dtype=torch.float64)).tolist()
        extra = dict(zip(pending.names, own, strict=True))
        loss, nll = extra.pop("loss"), extra.pop("nll")
        tokens, pairs, cells, oom_splits = pending.counts
        if not (math.isfinite(gradient_norm) and math.isfinite(loss)):
            raise _not_finite(gradient_norm, loss / tokens, pending.batches, pending.learning_rate)
        for name, value in {"nll": nll, **extra}.items():
            if not math.isfinite(value):
                advice = "Report a finite sum"
                raise TrainingError(
                    f"The objective reports {value} as `{name}`, which cannot be logged.",
                    f"{advice}." if name == "nll" else f"{advice}, or leave it out.",
                )
        watch, self._pending = pending.watch, None
        gradients = {} if watch is None else watch.norms(tokens, self.processes)
        return [
            UpdateResult(
                loss, nll, tokens, pairs, cells, gradient_norm, extra, oom_splits, gradients
            )
        ]

    def _step(self, norm_and_loss: Tensor, learning_rate: float) -> None:
        """Change the weights unless either number is not finite, without synchronisation."""
        # 0, or NaN (true) if not finite: torch's `isfinite` takes several kernels.
        is_broken = (norm_and_loss - norm_and_loss).any()
        # Torch's fused optimisers read this for scaled gradients, and so does Muon.
        self.optimiser.found_inf = is_broken.float()  # type: ignore[attr-defined]
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        self.optimiser.step()

    def _reduce_gradients(self, tokens: int) -> Tensor:
        """Sum the gradients over the processes, divide and clip them; return their norm."""
        if self.trained.is_sharded:
            # Each process has its shards of gradients that already are means over the processes.
            shards = [local_shard(p.grad) for p in self._parameters if p.grad is not None]
            tokens_each = tokens / self.processes.count
            return clip_and_scale(shards, tokens_each, self.clip_norm, self.processes.sum)
        self.processes.sum_gradients(self._parameters)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        return clip_and_scale(gradients, tokens, self.clip_norm)

    def _accumulate(
        self, microbatches: Sequence[Batch], watch: GradientWatch | None
    ) -> tuple[int | None, dict[str, Tensor]]:
        """Sum the gradients; return the first index that did not fit (or None), and sums."""
        sums: dict[str, Tensor] = {}
        copies = self._copies
        if copies is not None:
            copies.update()
        if watch is not None:
            watch.begin()
        for index, microbatch in enumerate(microbatches):
            hooks = contextlib.nullcontext() if watch is None else watch.hooks()
            try:
                with copies.used() if copies else contextlib.nullcontext():
                    with autocast(self.device, self.bf16), hooks:
                        parts = self.trained.loss(microbatch.to(self.device))
                    parts.total.backward()
            except (RuntimeError, MemoryError) as fault:
                if not is_out_of_memory(fault):
                    raise
                # All processes must do equally many passes: with shards none may halve its batch.
                if len(microbatch) == 1 or self.trained.is_sharded:
                    raise _too_large(self.trained.model, microbatch, fault) from fault
                advice = fragmentation_advice(fault)
                if advice and math.isinf(self.too_many_cells):  # the first time
                    console.warn(f"gpu-memory: {advice}")
            else:
                values = {"loss": parts.total.detach(), "nll": parts.nll, **parts.extra}
                for name, value in values.items():
                    sums[name] = sums[name] + value if name in sums else value
                continue
            # Outside the handler: its traceback would keep the failed pass's tensors alive.
            self.optimiser.zero_grad(set_to_none=True)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            return index, sums
        return None, sums


def _too_large(model: TranslationModel, batch: Batch, fault: BaseException) -> DeviceError:
    """Return the error for a batch that does not fit into memory and is not halved."""
    if len(batch) > 1:
        problem = f"A batch of {len(batch):,} pairs does not fit into memory."
        advice = "Set a smaller `batches.max_tokens` or `batches.max_cells`."
    else:
        width, height = batch.source.shape[1], batch.target_input.shape[1]
        problem = (
            f"Training pair {int(batch.indices[0]) + 1} ({width} source and {height} target "
            "tokens) does not fit into memory, even as a batch of its own."
        )
        is_known = hasattr(model.config, "checkpoint_activations")
        more = ", or `--set model.checkpoint_activations=true`" if is_known else ""
        advice = f"In a new run, set a smaller `batches.max_length` or a smaller model{more}."
    return DeviceError(problem, f"{advice} {fragmentation_advice(fault)}".strip())


def has_fast_bf16(device: torch.device) -> bool:
    """Return whether `device` multiplies faster in bfloat16 than in fp32.

    AMD's processors do with AVX512-BF16, Intel's with AMX; on Intel's with AVX512-BF16 only, fp32
    updates take two thirds of the time.
    """
    if device.type == "cuda":
        # From Ampere on; torch also reports support for older GPUs that emulate it.
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if torch.cpu._is_amx_tile_supported():
        return True
    return torch.cpu._is_avx512_bf16_supported() and not is_intel()


def count_cells(batch: Batch) -> int:
    """Return the number of grid cells of `batch`, padding included."""
    return len(batch) * batch.source.shape[1] * batch.target_input.shape[1]


def split_batch(batch: Batch) -> list[Batch]:
    """Return the two halves of `batch`."""
    middle = len(batch) // 2
    rows = torch.arange(len(batch))
    return [batch.select(rows[:middle]), batch.select(rows[middle:])]


class NotFiniteError(TrainingError):
    """The loss or the gradient of an update is not finite; `done` counts the updates before it."""

    done: int | None


def _not_finite(
    norm: float, loss: float, batches: Sequence[Batch], learning_rate: float
) -> NotFiniteError:
    lines = sorted(int(i) + 1 for batch in batches for i in batch.indices)
    fault = NotFiniteError(
        f"The loss is not finite (loss {loss:.4g} per token, gradient norm {norm:.4g}) at "
        f"learning rate {learning_rate:.3g}, on the training pairs (lines) {listed(lines, 20)}.",
        "Try a lower `training.learning_rate`, a longer warm-up or `training.clip_norm`.",
    )
    fault.done = batches[0].update
    return fault
