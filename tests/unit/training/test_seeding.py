"""Random states: which generators are saved, restored and left alone, on GPUs that are made up."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from nmtgrid.base.devices import random_states, restore_random_states
from nmtgrid.smoothing.vectors import learn_vectors
from nmtgrid.training.distributed import Processes
from nmtgrid.training.trainer import restore_random

FIRST, SECOND, CPU = torch.device("cuda:0"), torch.device("cuda:1"), torch.device("cpu")


def state(number: int) -> Tensor:
    return torch.tensor([number], dtype=torch.uint8)


class Gpus:
    """So many GPUs, whose generators' states are numbers."""

    def __init__(self) -> None:
        self.states: list[Tensor] = []

    def get(self, device: torch.device | int) -> Tensor:
        return self.states[self._index(device)]

    def put(self, value: Tensor, device: torch.device | int) -> None:
        self.states[self._index(device)] = value

    @property
    def numbers(self) -> list[int]:
        return [int(value) for value in self.states]

    @staticmethod
    def _index(device: torch.device | int) -> int:
        return device if isinstance(device, int) else device.index or 0


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    fake, before = Gpus(), torch.get_rng_state()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(fake.states))
    monkeypatch.setattr(torch.cuda, "get_rng_state", fake.get)
    monkeypatch.setattr(torch.cuda, "set_rng_state", fake.put)
    yield fake
    torch.set_rng_state(before)


def test_the_runs_own_gpu_is_saved_and_no_other(gpus: Gpus) -> None:
    gpus.states = [state(5), state(6), state(7)]
    saved = random_states(SECOND)
    assert set(saved) == {"random.cpu", "random.cuda"} and int(saved["random.cuda"]) == 6
    assert set(random_states(CPU)) == {"random.cpu"}


@pytest.mark.parametrize(
    ("before", "saved_on", "after", "device", "expected"),
    [
        ((5, 6, 7), SECOND, (0, 0, 0), SECOND, [0, 6, 0]),
        ((5, 6, 7), SECOND, (0,), FIRST, [6]),
        ((5,), FIRST, (0, 0), SECOND, [0, 5]),
        ((5,), torch.device("cuda"), (0, 0), SECOND, [0, 5]),
        ((5,), CPU, (1, 2), SECOND, [1, 2]),
        ((5,), FIRST, (), CPU, []),
    ],
)
def test_a_run_goes_on_with_its_generator_on_another_gpu(
    gpus: Gpus, before: tuple[int, ...], saved_on: torch.device, after: tuple[int, ...],
    device: torch.device, expected: list[int],
) -> None:  # fmt: skip
    gpus.states = [state(number) for number in before]
    torch.manual_seed(3)
    tensors = {f"state|{name}": states for name, states in random_states(saved_on).items()}
    drawn = torch.rand(3)
    gpus.states = [state(number) for number in after]
    restore_random(tensors, Processes(), device, 1)
    assert gpus.numbers == expected
    assert torch.equal(torch.rand(3), drawn)


@pytest.mark.parametrize(
    ("after", "device", "expected"),
    [((0,), FIRST, [5]), ((0, 0, 0), SECOND, [0, 6, 0]), ((0, 0, 0), torch.device("cuda:2"),
     [0, 0, 5]), ((), CPU, [])],
)  # fmt: skip
def test_states_of_every_gpu_are_older_ones(
    gpus: Gpus, after: tuple[int, ...], device: torch.device, expected: list[int]
) -> None:
    states = {"random.cuda.0": state(5), "random.cuda.1": state(6)}
    gpus.states = [state(number) for number in after]
    restore_random_states({"random.cpu": torch.get_rng_state(), **states}, device)
    assert gpus.numbers == expected


def test_vectors_leave_all_generators_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds differ from one another still after vectors were learnt, on GPUs too."""
    seeded: list[Any] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    tokens = numpy.random.default_rng(1).integers(4, 20, 300)
    split: Any = SimpleNamespace(target_tokens=tokens, target_offsets=numpy.arange(0, 301, 10))
    torch.manual_seed(7)
    assert seeded == [7]  # as torch does it
    first = learn_vectors(split, 20)
    drawn = torch.rand(3)
    assert seeded == [7]
    torch.default_generator.manual_seed(7)
    assert torch.equal(torch.rand(3), drawn)
    assert torch.equal(learn_vectors(split, 20), first)
