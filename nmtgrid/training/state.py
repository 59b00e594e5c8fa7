"""What a saved state holds beside the weights, as tensors, and how it is put back."""

from __future__ import annotations

import torch
from torch import Tensor

from nmtgrid.base.seeding import random_states, restore_random_states, seed_everything
from nmtgrid.training.averaging import RunningAverage
from nmtgrid.training.distributed import Processes, pack_states, unpack_states
from nmtgrid.training.optimiser import optimiser_tensors, restore_optimiser
from nmtgrid.training.weights import Weights

_OPTIMISER, _RANDOM, _AVERAGE = "optimiser|", "state|", "ema|"


def saved_tensors(
    weights: Weights,
    optimiser: torch.optim.Optimizer,
    average: RunningAverage | None,
    processes: Processes,
    device: torch.device,
) -> dict[str, Tensor]:
    """Return moments, running average, and the random states of all processes."""
    held = weights.full(optimiser_tensors(optimiser, weights.model))
    found = {f"{_OPTIMISER}{name}": value for name, value in held.items()}
    if average is not None:
        averaged = weights.full(average.weights)
        found |= {f"{_AVERAGE}{name}": value for name, value in averaged.items()}
    if processes.count == 1:
        return found | {f"{_RANDOM}{name}": held for name, held in random_states(device).items()}
    for rank, packed in enumerate(processes.gather(pack_states(random_states(device)))):
        states = unpack_states(packed)
        found |= {f"{_RANDOM}{rank}.{name}": value for name, value in states.items()}
    return found


def restore_tensors(
    tensors: dict[str, Tensor],
    weights: Weights,
    optimiser: torch.optim.Optimizer,
    average: RunningAverage | None,
    average_steps: int,
) -> None:
    """Put back moments and running average; one that there was not begins with the weights."""
    restore_optimiser(optimiser, weights.model, _below(tensors, _OPTIMISER), weights.like)
    if average is not None:
        average.restore(_below(tensors, _AVERAGE), average_steps, weights.put)


def restore_random(
    tensors: dict[str, Tensor], processes: Processes, device: torch.device, seed: int
) -> None:
    """Put back this process' random states, or begin others by `seed` where it had none.

    So a run that goes on with another number of processes draws other dropout masks.
    """
    own = "" if processes.count == 1 else f"{processes.rank}."
    states = _below(tensors, f"{_RANDOM}{own}")
    if "random.cpu" in states:
        restore_random_states(states, device)
    else:
        seed_process(seed, processes)


def seed_process(seed: int, processes: Processes) -> None:
    """Begin each process' random numbers at another place; one alone keeps those of `seed`."""
    seed_everything((seed + 1_000_003 * processes.rank) % 2**63)


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with `prefix`, without it."""
    held = tensors.items()
    return {name[len(prefix) :]: value for name, value in held if name.startswith(prefix)}
