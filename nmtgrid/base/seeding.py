"""Random states: set, saved as tensors and restored, so that training resumes bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor


def seed_everything(seed: int) -> None:
    """Seed torch's generators on every device. Nothing in the library uses another one."""
    torch.manual_seed(seed)


def random_states(device: torch.device | None = None) -> dict[str, Tensor]:
    """Return torch's random states as uint8 tensors: of every GPU, or of `device` alone."""
    states = {"random.cpu": torch.get_rng_state()}
    if device is not None:
        if device.type == "cuda":
            states["random.cuda"] = torch.cuda.get_rng_state(device)
    elif torch.cuda.is_available() and torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            states[f"random.cuda.{index}"] = torch.cuda.get_rng_state(index)
    return states


def restore_random_states(states: dict[str, Tensor], device: torch.device | None = None) -> None:
    """Set the random states that `random_states` returned."""
    torch.set_rng_state(states["random.cpu"].cpu())
    if device is not None and "random.cuda" in states:
        torch.cuda.set_rng_state(states["random.cuda"].cpu(), device)
    for name, state in states.items():
        if name.startswith("random.cuda.") and torch.cuda.is_available():
            torch.cuda.set_rng_state(state.cpu(), int(name.rsplit(".", 1)[1]))
