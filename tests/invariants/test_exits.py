"""Laws of exits, and of steps in which rows exit early, over every setting that has them."""

import dataclasses

import pytest
import torch

from nmtgrid.adaptive.halting import FixedExit, GivenExits
from nmtgrid.models.api import PredictionSites, with_exits
from tests.invariants.exit_helpers import exits_and_batch, predicted, sites_at, truncated
from tests.invariants.helpers import (
    Case,
    assert_close,
    batch_for,
    every_exit_case,
    random_exits,
    random_path,
    stepwise,
    take_rows,
    teacher_forced,
)


@every_exit_case
def test_an_exit_is_the_truncated_stack(case: Case) -> None:
    model, batch = exits_and_batch(case)
    for exit in range(1, model.traits.num_exits + 1):
        expected = teacher_forced(truncated(model, exit), batch)
        depths = torch.full_like(batch.target_input, exit)
        result = predicted(model, batch, sites_at(batch, depths, mixed=False))
        assert_close(result, expected)
        same = predicted(model, batch, sites_at(batch, depths, mixed=True))
        assert_close(same, expected)
        steps, _, _ = stepwise(model, batch, halt=FixedExit(exit))
        assert_close(steps[batch.is_target], expected[batch.is_target])


@every_exit_case
def test_stepwise_equals_teacher_forced_along_mixed_exits(case: Case) -> None:
    model, batch = exits_and_batch(case)
    for seed in range(2):
        exits = random_exits(batch, model.traits.num_exits, seed)
        result, shares, _ = stepwise(model, batch, align=True, halt=GivenExits(exits))
        expected = predicted(model, batch, sites_at(batch, exits, mixed=True))
        assert_close(result[batch.is_target], expected[batch.is_target])
        assert shares is not None
        assert_close(shares.sum(-1), torch.ones(batch.target_input.shape))


@every_exit_case
def test_stepwise_equals_teacher_forced_with_limited_reads(case: Case) -> None:
    model, batch = exits_and_batch(case)
    path, exits = random_path(batch), random_exits(batch, model.traits.num_exits)
    result, _, _ = stepwise(model, batch, path=path, halt=GivenExits(exits))
    expected = predicted(model, batch, sites_at(batch, exits, mixed=True, path=path))
    assert_close(result[batch.is_target], expected[batch.is_target])


@every_exit_case
def test_features_of_all_exits_are_those_at_each_depth(case: Case) -> None:
    model, batch = exits_and_batch(case)
    sites = PredictionSites.offline(batch)
    count = model.traits.num_exits
    every = model.exit_features(batch, sites, own=True)
    scaled = model.exit_features(batch, sites, scales=[0.5, 2.0, 3.0, 1.0])
    assert len(every) == 2 * count and len(scaled) == count
    for exit in range(1, count + 1):
        at = dataclasses.replace(sites, depth=torch.full_like(sites.sentence, exit))
        expected = model.features(batch, at)
        for result in (every[exit - 1], every[count + exit - 1], scaled[exit - 1]):
            assert_close(result, expected)
    assert_close(every[count - 1], model.features(batch, sites))


@every_exit_case
def test_a_prediction_has_no_gradient_in_blocks_behind_its_exit(case: Case) -> None:
    model, batch = exits_and_batch(case, (5, 3), (6, 4))
    blocks = [name for name in model.stages() if name.startswith("decoder.")][1:]
    stages = model.stages()
    for mixed in (False, True):
        for exit in range(1, model.traits.num_exits + 1):
            model.zero_grad()
            depths = torch.full_like(batch.target_input, exit)
            predicted(model, batch, sites_at(batch, depths, mixed=mixed)).pow(2).sum().backward()
            for position, name in enumerate(blocks, start=1):
                for parameter in stages[name].parameters():
                    idle = parameter.grad is None or bool((parameter.grad == 0).all())
                    assert idle == (position > exit), (name, exit)


@every_exit_case
def test_own_features_teach_their_block_alone(case: Case) -> None:
    """Also in training mode, in which both passes drop the same elements."""
    model = with_exits(case.build(dropout=0.3)).train()
    batch = batch_for(model, (5, 3), (6, 4))
    count = model.traits.num_exits
    blocks = [part for name, part in model.stages().items() if name.startswith("decoder.")][1:]
    every = model.exit_features(batch, PredictionSites.offline(batch), own=True)
    for exit in range(1, count + 1):
        model.zero_grad()
        own = every[count + exit - 1]
        assert_close(own, every[exit - 1])
        own.pow(2).sum().backward(retain_graph=True)
        touched = {
            name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()
        }
        prefix = f"decoder.{exit - 1}."
        assert touched and all(n.startswith((prefix, "source_projection")) for n in touched)
        assert all(p.grad is not None for p in blocks[exit - 1].parameters())


@every_exit_case
@pytest.mark.parametrize("rows", [[3, 1, 0, 2], [2, 2, 0], [1], [0, 0, 2, 2, 3, 3]], ids=str)
def test_taking_rows_commutes_with_leaving(case: Case, rows: list[int]) -> None:
    model, batch = exits_and_batch(case, (7, 4, 0, 5), (9, 9, 9, 9))
    exits = random_exits(batch, model.traits.num_exits)
    expected, _, _ = stepwise(model, batch, halt=GivenExits(exits))
    for done in (0, 1, 4):
        state = stepwise(model, batch, done, halt=GivenExits(exits))[2] if done else None
        state = state or model.begin(batch.source, batch.source_lengths)
        state = take_rows(state, rows)
        for position in range(done, done + 4):
            halt = GivenExits(exits[rows])
            step = model.step(batch.target_input[rows, position], state, halt=halt)
            assert_close(step.logits.log_softmax(-1), expected[rows, position])
            assert step.exits is not None
            assert step.exits.tolist() == exits[rows, position].tolist()
            state = step.state
