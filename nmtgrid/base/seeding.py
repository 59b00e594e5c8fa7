"""Random states: set, saved as tensors and restored, so that training resumes bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor


def seed_everything(seed: int) -> None:
    """Seed torch's generators on every device. Nothing in the library uses another one."""
    torch.manual_seed(seed)


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the generators that a run on `device` draws from, as uint8 tensors."""
    states = {"random.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["random.cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Set the states that `random_states` returned, on whichever GPU that was.

    Older ones are of every GPU by its number: that of `device` is taken, or the first.
    """
    # States loaded onto a GPU are refused by the generators.
    torch.set_rng_state(states["random.cpu"].cpu())
    if device.type == "cuda":
        names = ("random.cuda", f"random.cuda.{device.index or 0}", "random.cuda.0")
        name = next((name for name in names if name in states), None)
        if name is not None:
            torch.cuda.set_rng_state(states[name].cpu(), device)
