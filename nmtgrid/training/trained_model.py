"""The model that is trained: its objective's loss, and its weights, complete or sharded.

Translation models usually fit into one device. `training.shard` is for those that do not:
weights, gradients and optimiser states are spread over the processes by torch's `fully_shard`, and
weights are gathered for an update or a validation. Updates are the same, and checkpoints contain
complete weights, so a run may continue either way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
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


class TrainedModel:
    """A model that is trained, with its objective; its weights are complete in this process."""

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
        """Return complete tensors of those that are sharded like weights (moments, averages)."""
        return dict(tensors)

    def copy(self, others: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return a copy of the complete state on the CPU; `others` replace weights by name."""
        state = self.model.state_dict(keep_vars=True)
        # A matrix that two layers share has two names in the state, but one in `others`.
        names = {id(tensor): name for name, tensor in reversed(state.items())}
        names |= {id(tensor): name for name, tensor in self.model.named_parameters()}
        copies = {}
        for name, tensor in state.items():
            other = None if others is None else others.get(names[id(tensor)])
            whole = _whole_tensor(tensor if other is None else other)
            copies[name] = whole.detach().to("cpu", copy=True)
        return copies

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load a complete state dict. Raises RuntimeError if it is that of another model."""
        self.model.load_state_dict(state)

    def put(self, tensor: Tensor, value: Tensor) -> None:
        """Write a complete `value`, or this process' shard of it, into `tensor`."""
        tensor.copy_(self.like(tensor, value))

    def like(self, parameter: Tensor, value: Tensor) -> Tensor:
        """Return a complete tensor on the device of `parameter`."""
        return value.to(parameter.device)


def disable_flattening(model: nn.Module) -> None:
    """Keep torch's recurrent layers from copying their weights into one buffer.

    On a GPU such a layer does so when it first sees new weights. With gathered shards it would keep
    reading that buffer instead of the weights learnt since.
    """
    for part in model.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters = lambda: None  # type: ignore[method-assign]


class ShardedModel(TrainedModel):
    """A model with weights sharded over all processes, which must call its methods together."""

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
        """Return the complete tensors; all processes gather them in the order of their names."""
        # Sorted: a dict's order may differ between processes, and they would wait for each other.
        return {name: _whole_tensor(tensors[name]) for name in sorted(tensors)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load complete tensors. Raises RuntimeError for those of another model."""
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
        """Return this process' shard of a complete tensor, if it is as large as `parameter`."""
        value = value.to(parameter.device)
        if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
            return value
        # All have read the complete tensor: each takes its shard, and nothing is sent.
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


def local_shard(tensor: Tensor) -> Tensor:
    """Return this process' shard of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _whole_tensor(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
