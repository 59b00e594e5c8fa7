"""Optimisers by hand, schedules by their formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from nmtgrid.training.optimiser import (
    LearningRate,
    clip_and_scale,
    make_optimiser,
    optimiser_tensors,
    restore_optimiser,
)
from nmtgrid.training.settings import TrainingSettings


def settings(**changes: Any) -> TrainingSettings:
    made = TrainingSettings(**changes)
    assert made.faults() == []
    return made


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.full((1, 1), 2.0))
        self.bias = nn.Parameter(torch.full((1,), 2.0))


def one_step(**changes: Any) -> tuple[float, float]:
    """The weights after one step with gradient 0.5, from 2.0, at rate 0.1."""
    model = Pair()
    optimiser = make_optimiser(model, settings(**changes))
    for group in optimiser.param_groups:
        group["lr"] = 0.1
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    optimiser.step()
    return model.matrix.item(), model.bias.item()


def test_adamw_decays_matrices_apart_from_the_gradient_and_no_biases() -> None:
    # Adam's first step is the rate, whatever the gradient's size; decay takes 0.1 * 0.2 * 2 more.
    matrix, bias = one_step(optimiser="adamw", weight_decay=0.2)
    assert matrix == pytest.approx(2.0 * (1 - 0.1 * 0.2) - 0.1, abs=1e-6)
    assert bias == pytest.approx(1.9, abs=1e-6)


def test_adam_takes_decay_into_the_gradient() -> None:
    # The gradient 0.5 - 0.2 * 2 would be 0.9; the first step's length is the rate again.
    matrix, bias = one_step(optimiser="adam", weight_decay=0.2)
    assert [matrix, bias] == pytest.approx([1.9, 1.9], abs=1e-6)


def test_nesterov_steps_along_the_gradient_and_its_momentum() -> None:
    # buffer = g; step = g + 0.9 g
    matrix, bias = one_step(optimiser="nesterov", momentum=0.9, weight_decay=0.0)
    assert matrix == pytest.approx(2.0 - 0.1 * 1.9 * 0.5, abs=1e-6)
    assert bias == matrix


@pytest.mark.parametrize("kind", ["adamw", "adam", "nesterov"])
def test_moments_come_back_under_their_parameters_names(kind: Any) -> None:
    torch.manual_seed(3)
    straight, broken = Pair(), Pair()
    first, second = (make_optimiser(m, settings(optimiser=kind)) for m in (straight, broken))
    for step in range(4):
        if step == 2:
            fresh = make_optimiser(broken, settings(optimiser=kind))
            held = {name: t.clone() for name, t in optimiser_tensors(second, broken).items()}
            assert all(name.split("|")[0] in ("matrix", "bias") for name in held)
            restore_optimiser(fresh, broken, held, lambda parameter, value: value)
            second = fresh
        for model, optimiser in ((straight, first), (broken, second)):
            for group in optimiser.param_groups:
                group["lr"] = 0.1
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 0.5 - 0.3 * step)
            optimiser.step()
    assert torch.equal(straight.matrix, broken.matrix)
    assert torch.equal(straight.bias, broken.bias)


def test_gradients_are_divided_by_tokens_then_clipped() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([30.0, 40.0])
    norm = clip_and_scale([parameter.grad], 10, 0.0)
    assert norm.item() == pytest.approx(5.0)
    torch.testing.assert_close(parameter.grad, torch.tensor([3.0, 4.0]))
    parameter.grad = torch.tensor([30.0, 40.0])
    assert clip_and_scale([parameter.grad], 10, 2.0).item() == pytest.approx(5.0)
    torch.testing.assert_close(parameter.grad, torch.tensor([1.2, 1.6]), rtol=1e-5, atol=0)
    parameter.grad = torch.tensor([30.0, 40.0])
    clip_and_scale([parameter.grad], 10, 6.0)
    torch.testing.assert_close(parameter.grad, torch.tensor([3.0, 4.0]))


def rates(made: TrainingSettings, *clocks: tuple[int, float]) -> list[float]:
    schedule = LearningRate(made)
    return [schedule.at(*clock) for clock in clocks]


def test_inverse_square_root_climbs_then_falls() -> None:
    made = settings(learning_rate=1.0, initial_learning_rate=0.2, warmup_updates=4)
    # Updates 1 to 4 climb by 0.2 from 0.2; update n > 4 has sqrt(4 / n).
    found = rates(made, (0, 0), (1, 0), (2, 0), (3, 0), (15, 0), (99, 0))
    assert found == pytest.approx([0.4, 0.6, 0.8, 1.0, 0.5, 0.2])


def test_cosine_by_updates_ends_at_its_floor() -> None:
    made = settings(
        schedule="cosine", learning_rate=1.0, final_learning_rate=0.1, warmup_updates=10,
        initial_learning_rate=0.0, max_updates=110,
    )  # fmt: skip
    found = rates(made, (4, 0), (9, 0), (59, 0), (109, 0), (500, 0))
    assert found == pytest.approx([0.5, 1.0, 0.55, 0.1, 0.1])


def test_cosine_by_time_looks_at_the_minutes_alone() -> None:
    made = settings(
        schedule="cosine-time", learning_rate=1.0, final_learning_rate=0.0, warmup_fraction=0.1,
        initial_learning_rate=0.0, max_minutes=10.0, max_updates=0,
    )  # fmt: skip
    found = rates(made, (700, 0.5), (3, 1.0), (3, 5.5), (3, 7.75), (3, 10.0), (3, 11.0))
    assert found == pytest.approx(
        [0.5, 1.0, 0.5, 0.5 * (1 + math.cos(math.pi * 0.75)), 0.0, 0.0], abs=1e-9
    )


def test_step_decay_multiplies_every_so_many_updates() -> None:
    made = settings(
        schedule="step", learning_rate=1.0, warmup_updates=0, decay_updates=10, decay_factor=0.5
    )
    assert rates(made, (0, 0), (8, 0), (9, 0), (29, 0)) == pytest.approx([1.0, 1.0, 0.5, 0.125])


def test_constant_after_the_warm_up() -> None:
    made = settings(schedule="constant", learning_rate=0.3, warmup_updates=2)
    assert rates(made, (1, 0), (500, 0)) == [0.3, 0.3]


def test_plateau_decays_after_three_evaluations_without_improvement() -> None:
    made = settings(schedule="plateau", learning_rate=1.0, warmup_updates=0, decay_patience=3)
    schedule = LearningRate(made)
    seen = []
    for loss in (2.0, 1.5, 1.6, 1.5, 1.7, 1.4, 1.5, 1.5, 1.5):
        schedule.evaluated(loss)
        seen.append(round(schedule.at(10, 0), 6))
    assert seen == [1.0, 1.0, 1.0, 1.0, 0.8, 0.8, 0.8, 0.8, 0.64]


def test_a_plateau_is_left_by_more_than_the_threshold() -> None:
    """The best loss is the last one that was better by so much: small steps add up to a large."""
    made = settings(
        schedule="plateau", learning_rate=1.0, warmup_updates=0, decay_patience=2,
        decay_threshold=0.5, decay_factor=0.5,
    )  # fmt: skip
    schedule = LearningRate(made)
    seen = []
    # 3.5 is just 0.5 below 4 and not more; 3.25 is, and 2.5 again; 2.25 and 2.0 are not.
    for loss in (4.0, 3.5, 3.25, 3.0, 2.5, 2.25, 2.0):
        schedule.evaluated(loss)
        seen.append(schedule.at(10, 0))
    assert seen == [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5]
    assert schedule.best == 2.5
    # As torch's own scheduler has it, which decays once there were more than `patience`.
    weight = nn.Parameter(torch.zeros(1))
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        torch.optim.SGD([weight], lr=1.0), factor=0.5, patience=1, threshold=0.5,
        threshold_mode="abs",
    )  # fmt: skip
    ours = LearningRate(made)
    for loss in (4.0, 3.5, 3.5, 3.25, 3.5, 1.0, 0.5, 0.25, 0.0, -0.5):
        ours.evaluated(loss)
        theirs.step(loss)
        assert ours.at(10, 0) == theirs.get_last_lr()[0]
    assert "training.decay_threshold" in TrainingSettings(decay_threshold=-0.1).faults()[0]


def test_a_schedules_state_comes_back() -> None:
    made = settings(schedule="plateau", learning_rate=1.0, warmup_updates=0)
    one, other = LearningRate(made), LearningRate(made)
    other.restore(one.state())
    assert math.isinf(other.best)
    for loss in (2.0, 2.0, 2.0):
        one.evaluated(loss)
    other.restore(one.state())
    one.evaluated(2.0)
    other.evaluated(2.0)
    assert one.at(5, 0) == other.at(5, 0) == pytest.approx(0.8)
