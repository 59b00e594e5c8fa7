"""Halts: who stops where, by hand."""

import contextlib

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
    exits = ExitModel()
    exits.architecture = "transformer"  # type: ignore[misc]
    exits.traits = Traits(num_exits=count, halting=halting)
    return exits


def stops(halt: AnyHalt, exit: int, scores: list[float] | None = None, step: int = 0) -> list[bool]:
    stopped = halt.exits(exit, step, KEYS, None if scores is None else torch.tensor(scores))
    assert stopped.dtype == torch.bool
    return [bool(stop) for stop in stopped]


def taken(halt: AnyHalt, keys: torch.Tensor, step: int, count: int) -> list[int]:
    """Return the exits of rows that are asked in order until they stop."""
    going, exits = keys, dict.fromkeys(keys.tolist(), count)
    for exit in range(1, count):
        is_last = halt.exits(exit, step, going, None)
        exits |= dict.fromkeys(going[is_last].tolist(), exit)
        going = going[~is_last]
    return [exits[key] for key in keys.tolist()]


def test_thresholds_must_be_exceeded() -> None:
    assert [stops(FixedExit(2), exit)[0] for exit in (1, 2, 3)] == [False, True, True]
    halt = Thresholds("confidence", (0.5, 0.25))
    assert stops(halt, 1, [0.5, 0.51, 0.4]) == [False, True, False]
    assert stops(halt, 2, [0.5, 0.25, 0.2]) == [True, False, False]
    assert stops(Thresholds("geometric", (1.0,)), 1, [1.0, 0.9, 0.0]) == [False] * 3
    # A threshold is taken to float32, as scores are: a score is not above itself.
    assert not stops(Thresholds("geometric", (0.1,)), 1, [0.1] * 3)[0]
    chosen = torch.tensor([1, 2, 3])
    predicted = Predicted("multinomial")
    assert predicted.exits(1, 0, KEYS, chosen).tolist() == [True, False, False]
    assert predicted.exits(2, 0, KEYS, chosen).tolist() == [True, True, False]


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
    ("halt", "needs"),
    [(FixedExit(1), "nothing"), (Thresholds("geometric", (0.5,)), "geometric"),
     (Predicted("sequence"), "sequence"), (RandomExit(2), "nothing"),
     (GivenExits(KEYS[:, None]), "nothing")],
)  # fmt: skip
def test_what_a_halt_looks_at(halt: Halt, needs: str) -> None:
    assert halt.needs == needs


@pytest.mark.parametrize(
    ("halt", "count", "halting", "message"),
    [
        (FixedExit(1), 1, "none", "has one exit, after its last block"),
        (FixedExit(5), 4, "none", r"the decoder has 4 blocks\. Give an exit from 1"),
        (RandomExit(3), 4, "none", "from 3 blocks, but this decoder has 4"),
        (Thresholds("confidence", (0.5,)), 4, "none", "1 thresholds are given.*needs 3"),
        (Thresholds("geometric", (0.5,)), 2, "none", "has no exit predictor"),
        (Thresholds("geometric", (0.5,)), 2, "sequence", "predicts exits by `sequence`"),
        (Predicted("multinomial"), 2, "none", "model.halting=multinomial"),
        (FixedExit(4), 4, "none", None),
        (Thresholds("confidence", (0.5, 0.5)), 3, "geometric", None),
        (Predicted("sequence"), 3, "sequence", None),
    ],
)
def test_what_does_not_fit_a_model_is_refused(
    halt: AnyHalt, count: int, halting: Halting, message: str | None
) -> None:
    refusal = pytest.raises(ConfigError, match=message) if message else contextlib.nullcontext()
    with refusal:
        check_halt(halt, model(count, halting))


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_impossible_thresholds_are_refused(value: float) -> None:
    with pytest.raises(ConfigError, match=r"Threshold 2 must be from 0 to 1"):
        Thresholds("confidence", (0.5, value))
    with pytest.raises(ConfigError, match="Exits are numbered from 1"):
        FixedExit(0)
