"""A model's weights: their moving average, others in their place, and copies in bfloat16."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn


class ExponentialMovingAverage:
    """An exponential moving average of a model's weights, with a lower decay at the start.

    The step after n others keeps min(decay, 1 - 1/(n + 1)): the first one takes the weights as they
    are, and the next ones are plain means, so that the initial weights have no part in it. Running
    statistics are averaged like the weights that they belong to; integers are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self._live = live_weights(model)
        self.weights = {name: p.detach().clone() for name, p in self._live.items()}

    @torch.no_grad()
    def step(self) -> None:
        """Update the average with the current weights."""
        self.steps += 1
        decay = min(self.decay, 1.0 - 1.0 / self.steps)
        names = [name for name, mean in self.weights.items() if mean.is_floating_point()]
        live = [self._live[name].detach() for name in names]
        # In place and fused: the average costs one pass over the weights.
        torch._foreach_lerp_([self.weights[name] for name in names], live, 1.0 - decay)
        for name in self.weights.keys() - set(names):
            self.weights[name].copy_(self._live[name])

    def buffers(self) -> list[Tensor]:
        """Return the averages of all buffers."""
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

    Not from the state dict, because FSDP would shard gathered weights again for it.
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
    # Via `data`: for the optimiser and the graph the parameters stay the same tensors.
    own = {name: tensor.data for name, tensor in live.items()}
    try:
        for name, tensor in live.items():
            tensor.data = weights[name].to(tensor.device)
        yield
    finally:
        for name, tensor in live.items():
            tensor.data = own[name]


class LowPrecisionCopies:
    """Copies in bfloat16 of the weights and biases of a model's linear layers, all cast together.

    Autocast casts them layer by layer, and their gradients one by one: most kernels of a small
    model's update on a GPU are such casts. Results are the same. Weights that another layer shares,
    such as tied embeddings, are left to autocast.
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
        """Cast the current weights."""
        if self._copies:
            torch._foreach_copy_(self._copies, self._parameters)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Let the layers use the copies within the context, for a forward and a backward pass.

        The gradients are added to those of the weights, unless an error leaves the context.
        """
        for module, name, _, copy in self._uses:
            # Bypasses the check that a parameter is an `nn.Parameter`.
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
