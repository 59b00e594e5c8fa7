"""Halts: who stops where, by hand."""

from __future__ import annotations

import pytest
import torch

from nmtgrid.adaptive.halting import (
    AnyHalt,
    FixedExit,
    GivenExits,
    Predicted,
    RandomExit,
    Thresholds,
    check_halt,
)
from nmtgrid.base.errors import ConfigError
from nmtgrid.models.api import ExitModel, Halt, Halting, Traits

KEYS = torch.tensor([4, 0, 9])


def model(count: int, halting: Halting) -> ExitModel:
    """Return a model that says what it can and does nothing."""
    found = ExitModel()
    found.architecture = "transformer"  # type: ignore[misc]
    found.traits = Traits(num_exits=count, halting=halting)
    return found


def stops(halt: AnyHalt, exit: int, scores: list[float] | None = None, step: int = 0) -> list[bool]:
    held = None if scores is None else torch.tensor(scores)
    found = halt.exits(exit, step, KEYS, held)
    assert found.dtype == torch.bool
    return [bool(stop) for stop in found]


def taken(halt: AnyHalt, keys: torch.Tensor, step: int, count: int) -> list[int]:
    """Return the exits of rows that are asked in order until they stop."""
    going, found = keys, dict.fromkeys(keys.tolist(), count)
    for exit in range(1, count):
        is_last = halt.exits(exit, step, going, None)
        found |= dict.fromkeys(going[is_last].tolist(), exit)
        going = going[~is_last]
    return [found[key] for key in keys.tolist()]


def test_a_fixed_exit() -> None:
    assert [stops(FixedExit(2), exit)[0] for exit in (1, 2, 3)] == [False, True, True]


def test_thresholds_must_be_exceeded() -> None:
    halt = Thresholds("confidence", (0.5, 0.25))
    assert stops(halt, 1, [0.5, 0.51, 0.4]) == [False, True, False]
    assert stops(halt, 2, [0.5, 0.25, 0.2]) == [True, False, False]
    assert stops(Thresholds("geometric", (1.0,)), 1, [1.0, 0.9, 0.0]) == [False] * 3
    # A threshold is taken to float32, as scores are: a score is not above itself.
    assert not stops(Thresholds("geometric", (0.1,)), 1, [0.1] * 3)[0]


def test_predicted_exits_are_kept() -> None:
    chosen = torch.tensor([1, 2, 3])
    halt = Predicted("multinomial")
    assert halt.exits(1, 0, KEYS, chosen).tolist() == [True, False, False]
    assert halt.exits(2, 0, KEYS, chosen).tolist() == [True, True, False]


def test_random_exits_depend_on_key_and_step_alone() -> None:
    halt = RandomExit(4, seed=7)
    keys = torch.arange(3000)
    first = taken(halt, keys, 5, 4)
    assert taken(halt, keys[100:130], 5, 4) == first[100:130]
    assert taken(halt, keys, 6, 4) != first
    assert taken(RandomExit(4, seed=8), keys, 5, 4) != first
    for exit in range(1, 5):
        # Of 3,000 draws 750 are expected, with a deviation of 24.
        assert abs(first.count(exit) - 750) < 120


def test_given_exits_by_row_and_by_key() -> None:
    table = torch.tensor([[1, 3], [2, 2], [3, 1]])
    rows = torch.tensor([2, 0, 1])
    assert taken(GivenExits(table), rows, 0, 3) == [3, 1, 2]
    assert taken(GivenExits(table), rows, 1, 3) == [1, 3, 2]
    assert taken(GivenExits(table), rows, 2, 3) == [3, 3, 3]
    by_key = GivenExits(table, torch.tensor([9, 4, 0]))
    assert taken(by_key, KEYS, 0, 3) == [2, 3, 1]


@pytest.mark.parametrize(
    "halt",
    [FixedExit(1), Thresholds("geometric", (0.5,)), Predicted("sequence"), RandomExit(2),
     GivenExits(KEYS[:, None])],
)  # fmt: skip
def test_all_are_halts(halt: Halt) -> None:
    assert halt.needs in ("nothing", "geometric", "sequence")


@pytest.mark.parametrize(
    ("halt", "count", "halting", "message"),
    [
        (FixedExit(1), 1, "none", "has one exit, behind its last block"),
        (FixedExit(5), 4, "none", r"Exit 5 is beyond the decoder's 4 blocks\. Name an exit from 1"),
        (RandomExit(3), 4, "none", "from 3 blocks, but this decoder has 4"),
        (Thresholds("confidence", (0.5,)), 4, "none", "1 thresholds are given.*needs 3"),
        (Thresholds("geometric", (0.5,)), 2, "none", "has no exit predictor"),
        (Thresholds("geometric", (0.5,)), 2, "sequence", "predicts exits by `sequence`"),
        (Predicted("multinomial"), 2, "none", "model.halting=multinomial"),
    ],
)
def test_what_does_not_fit_a_model_is_refused(
    halt: AnyHalt, count: int, halting: Halting, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_halt(halt, model(count, halting))


def test_what_fits_is_let_through() -> None:
    check_halt(FixedExit(4), model(4, "none"))
    check_halt(Thresholds("confidence", (0.5, 0.5)), model(3, "geometric"))
    check_halt(Predicted("sequence"), model(3, "sequence"))


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_impossible_thresholds_are_refused(value: float) -> None:
    with pytest.raises(ConfigError, match=r"Threshold 2 must be from 0 to 1"):
        Thresholds("confidence", (0.5, value))
    with pytest.raises(ConfigError, match="Exits count from 1"):
        FixedExit(0)
