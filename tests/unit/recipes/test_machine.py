"""recipes/machine.py: the machine of a record, and how fast it is."""

import time

import pytest
import torch

from recipes import machine


def test_the_speed_is_that_of_the_best_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock in steps, products take 4, 2, then 1 second: 2 ROWS INPUTS OUTPUTS a second."""
    ticks = iter([0.0, 4.0, 10.0, 12.0, 20.0, 21.0] * len(machine.PRECISIONS))
    monkeypatch.setattr(machine, "ROUNDS", 3)
    monkeypatch.setattr(time, "process_time", lambda: next(ticks))
    billions = round(2 * machine.ROWS * machine.INPUTS * machine.OUTPUTS / 1e9)
    assert machine.speed() == {"fp32": billions, "bf16": billions}


def test_measuring_leaves_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()

    def fail(*_: object) -> float:
        assert torch.get_num_threads() == 1
        raise RuntimeError("no product")

    monkeypatch.setattr(machine, "_product", fail)
    with pytest.raises(RuntimeError):
        machine.speed()
    assert torch.get_num_threads() == before
