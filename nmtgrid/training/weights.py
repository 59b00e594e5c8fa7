"""The weights of a model: complete in every process, or sharded over processes.

Models of this field usually fit into one device. `training.shard` is for those that do not:
weights, gradients and optimiser states are spread over the processes by torch's `fully_shard`, and
weights are gathered for an update or a validation. Updates are the same, and checkpoints contain
complete weights, so a run may continue either way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from nmtgrid.data.batches import Batch
from nmtgrid.models.api import TranslationModel
from nmtgrid.training.api import LossParts, Objective, checked
from nmtgrid.training.distributed import Processes


class RunningAverage:
    """An exponential moving average of a model's weights, with a lower decay at the start.

    The step after n others keeps min(decay, 1 - 1/(n + 1)): the first one takes the weights as they
    are, and the next ones are plain means, so that what the weights began with has no part in it.
    Running statistics are averaged as the weights that they belong to; whole numbers are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self._live = live_weights(model)
        self.weights = {name: p.detach().clone() for name, p in self._live.items()}

    @torch.no_grad()
    def step(self) -> None:
        """Take in the weights as they are now."""
        self.steps += 1
        decay = min(self.decay, 1.0 - 1.0 / self.steps)
        names = [name for name, mean in self.weights.items() if mean.is_floating_point()]
        live = [self._live[name].detach() for name in names]
        # In place and fused: the average costs one pass over the weights.
        torch._foreach_lerp_([self.weights[name] for name in names], live, 1.0 - decay)
        for name in self.weights.keys() - set(names):
            self.weights[name].copy_(self._live[name])

    def buffers(self) -> list[Tensor]:
        """Return the averages of all that are not parameters."""
        return [
            mean
            for name, mean in self.weights.items()
            if not isinstance(self._live[name], nn.Parameter)
        ]

    @torch.no_grad()
    def restore(
        self, weights: Mapping[str, Tensor], steps: int, put: Callable[[Tensor, Tensor], object]
    ) -> None:
        """Restore the average of a saved state with `put`; missing entries start as they are.

        Raises ValueError naming a tensor that is not one of this model.
        """
        for name in weights.keys() - self.weights.keys():
            raise ValueError(f"the average has `{name}`, which the model does not")
        for name, mean in self.weights.items():
            if name in weights:
                check_tensor(name, weights[name], mean.shape, mean.dtype)
                put(mean, weights[name])
            else:
                # States of older versions have no averages of buffers.
                mean.copy_(self._live[name])
        self.steps = steps


def check_tensor(name: str, value: Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Raise ValueError unless `value` has that shape and type, and finite numbers."""
    if value.shape != torch.Size(shape) or value.dtype != dtype:
        expected, actual = (
            f"{str(kind).removeprefix('torch.')} {list(size)}"
            for kind, size in ((dtype, shape), (value.dtype, value.shape))
        )
        raise ValueError(f"`{name}` is {actual} where {expected} belongs")
    if not value.isfinite().all():
        raise ValueError(f"`{name}` has numbers that are not finite")


def live_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters, and the buffers that are saved, by name; shared ones once.

    Not from the state dict, for which FSDP would shard gathered weights again.
    """
    unsaved = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    buffers = {name: buffer for name, buffer in model.named_buffers() if name not in unsaved}
    return {**dict(model.named_parameters()), **buffers}


@contextlib.contextmanager
def swapped_weights(model: nn.Module, weights: Mapping[str, Tensor] | None) -> Iterator[None]:
    """Swap `weights` (by name; None: its own) into the model within the context."""
    if weights is None:
        yield
        return
    live = live_weights(model)
    # By `data`: for the optimiser and the graph the parameters stay the same tensors.
    own = {name: tensor.data for name, tensor in live.items()}
    try:
        for name, tensor in live.items():
            tensor.data = weights[name].to(tensor.device)
        yield
    finally:
        for name, tensor in live.items():
            tensor.data = own[name]


class Weights:
    """The weights of a model, whole in this process."""

    is_sharded = False

    def __init__(self, model: TranslationModel, objective: Objective) -> None:
        self.model, self.objective = model, objective

    def loss(self, batch: Batch) -> LossParts:
        """Return the objective's loss."""
        return checked(self.objective.loss(self.model, batch))

    def gathered(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the model can be validated."""
        return contextlib.nullcontext()

    def unsharded(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return whole tensors of those that are sharded as weights are (moments, averages)."""
        return dict(tensors)

    def copy(self, others: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return a copy of the whole state, on the CPU, with `others` (by name) instead."""
        state = self.model.state_dict(keep_vars=True)
        # A matrix that two layers share has two names in the state, and one among the others.
        names = {id(tensor): name for name, tensor in reversed(state.items())}
        names |= {id(tensor): name for name, tensor in self.model.named_parameters()}
        copies = {}
        for name, tensor in state.items():
            other = None if others is None else others.get(names[id(tensor)])
            whole = _whole_tensor(tensor if other is None else other)
            copies[name] = whole.detach().to("cpu", copy=True)
        return copies

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Put back a whole state dict. Raises RuntimeError for that of another model."""
        self.model.load_state_dict(state)

    def put(self, tensor: Tensor, value: Tensor) -> None:
        """Write a whole tensor, or this process' shard of it, into one like the weights."""
        tensor.copy_(self.like(tensor, value))

    def like(self, parameter: Tensor, value: Tensor) -> Tensor:
        """Return a whole tensor on the device of `parameter`."""
        return value.to(parameter.device)


def disable_flattening(model: nn.Module) -> None:
    """Keep torch's recurrent layers from copying their weights into one buffer.

    On a GPU such a layer does so when it first sees new weights. With gathered shards it would read
    that buffer ever after, and not what has been learnt since.
    """
    for part in model.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters = lambda: None  # type: ignore[method-assign]


class ShardedWeights(Weights):
    """The weights of a model, sharded over all processes, which must call it together."""

    is_sharded = True

    def __init__(
        self,
        model: TranslationModel,
        objective: Objective,
        processes: Processes,
        device: torch.device,
    ) -> None:
        super().__init__(model, objective)
        disable_flattening(model)
        mesh = init_device_mesh(device.type, (processes.count,))
        # Gathered from the forward pass to the end of the backward pass: exits, grids and tied
        # matrices are used in any order.
        loss = _LossModule(model, objective)
        self._sharded: Any = fully_shard(loss, mesh=mesh, reshard_after_forward=False)
        assert isinstance(self._sharded, FSDPModule)

    def loss(self, batch: Batch) -> LossParts:
        return LossParts(**self._sharded(batch))

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Gather the weights within the context."""
        self._sharded.unshard()
        try:
            yield
        finally:
            self._sharded.reshard()

    def unsharded(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the whole tensors; all processes gather them in the order of their names."""
        # Sorted: a dict's order may differ between processes, and they would wait for each other.
        return {name: _whole_tensor(tensors[name]) for name in sorted(tensors)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Put back whole tensors. Raises RuntimeError for those of another model."""
        own = self.model.state_dict(keep_vars=True)
        # Checked before anything is written: a model is changed as a whole or not at all.
        unlike = [
            name
            for name, tensor in own.items()
            if name not in state or tensor.shape != state[name].shape
        ]
        if unlike or len(own) != len(state):
            raise RuntimeError(f"unlike weights: {', '.join(unlike) or 'more than the model has'}")
        with torch.no_grad():
            for name, tensor in own.items():
                self.put(tensor, state[name])

    def like(self, parameter: Tensor, value: Tensor) -> Tensor:
        """Return this process' shard of a whole tensor, if it is as large as `parameter`."""
        value = value.to(parameter.device)
        if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
            return value
        # All have read the whole: each takes its shard of it, and nothing is sent.
        mesh, placements = parameter.device_mesh, parameter.placements
        shard: Tensor = distribute_tensor(value, mesh, placements, src_data_rank=None)
        return shard


class _LossModule(nn.Module):
    """The model with its loss as one forward pass, around which weights are gathered."""

    def __init__(self, model: TranslationModel, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self._objective = objective

    def forward(self, batch: Batch) -> dict[str, Any]:
        parts = checked(self._objective.loss(self.model, batch))
        # A dict, not LossParts: FSDP looks for the tensors that the backward pass begins at.
        return {
            "total": parts.total, "tokens": parts.tokens, "nll": parts.nll, "extra": parts.extra,
        }  # fmt: skip


class LowPrecisionCopies:
    """Copies in bfloat16 of the weights and biases of a model's linear layers, all cast together.

    Autocast casts them layer by layer, and their gradients one by one: most kernels of a small
    model's update on a GPU are such casts. What is computed is the same. Weights that another layer
    has too, as tied embeddings, are left to autocast.
    """

    def __init__(self, model: nn.Module) -> None:
        others = {
            id(parameter)
            for module in model.modules()
            if not isinstance(module, nn.Linear)
            for parameter in module.parameters(recurse=False)
        }
        self._uses: list[tuple[nn.Module, str, nn.Parameter, Tensor]] = []
        copies: dict[nn.Parameter, Tensor] = {}
        for module in model.modules():
            if not isinstance(module, nn.Linear):
                continue
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) in others or not parameter.requires_grad:
                    continue
                if parameter.dtype is torch.float32:
                    copy = torch.empty_like(parameter, dtype=torch.bfloat16).requires_grad_()
                    copy = copies.setdefault(parameter, copy)
                    self._uses.append((module, name, parameter, copy))
        self._parameters: list[Tensor] = list(copies)
        self._copies = list(copies.values())

    @torch.no_grad()
    def update(self) -> None:
        """Cast the weights as they are now."""
        if self._copies:
            torch._foreach_copy_(self._copies, self._parameters)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Let the layers use the copies within the context, for a forward and a backward pass.

        The gradients are added to those of the weights, unless an error leaves the context.
        """
        for module, name, _, copy in self._uses:
            # Past the check that a parameter is an `nn.Parameter`.
            module._parameters[name] = copy  # type: ignore[assignment]
        try:
            yield
            self._add_gradients()
        finally:
            for module, name, parameter, copy in self._uses:
                module._parameters[name], copy.grad = parameter, None

    @torch.no_grad()
    def _add_gradients(self) -> None:
        low, high, sums = [], [], []
        for parameter, copy in zip(self._parameters, self._copies, strict=True):
            if copy.grad is not None:
                low.append(copy.grad)
                high.append(torch.empty_like(parameter))
                if parameter.grad is None:
                    parameter.grad = high[-1]
                else:
                    sums.append((parameter.grad, high[-1]))
        if low:
            torch._foreach_copy_(high, low)
        if sums:
            torch._foreach_add_(*map(list, zip(*sums, strict=True)))


def local_shard(tensor: Tensor) -> Tensor:
    """Return this process' shard of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _whole_tensor(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
