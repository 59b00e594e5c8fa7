"""Laws of exits, over every setting that has them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from nmtgrid.adaptive.halting import (
    AnyHalt,
    FixedExit,
    GivenExits,
    Predicted,
    RandomExit,
    Thresholds,
)
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch, collate
from nmtgrid.models import zoo
from nmtgrid.models.api import ExitModel, Sites, with_exits
from nmtgrid.online.agents import AlongPaths, WaitK
from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.search.engine import search
from tests.laws.helpers import (
    LIMIT,
    SOURCE_TYPES,
    Case,
    assert_close,
    basic_cases,
    batch_for,
    exit_cases,
    random_exits,
    random_path,
    stepwise,
    take_rows,
    teacher_forced,
)

every_case = pytest.mark.parametrize("case", exit_cases(), ids=str)

SOURCES = (6, 2, 0, 9)
TARGETS = (4, 4, 4, 4)


def build(case: Case) -> ExitModel:
    return with_exits(case.build())


def sites_at(batch: Batch, depths: Tensor, *, mixed: bool, path: Tensor | None = None) -> Sites:
    """Return all sites of the batch, at the exits `depths` [B, T]."""
    sites = Sites.offline(batch) if path is None else Sites.along(batch, path)
    depth = depths[sites.sentence, sites.position]
    return dataclasses.replace(sites, depth=depth, mixed=mixed)


def predicted(model: ExitModel, batch: Batch, sites: Sites) -> Tensor:
    """Return log-probabilities [B, T, V] of sites by their own exits' classifiers."""
    features = model.features(batch, sites)
    held = [model.classifier(exit) for exit in range(1, model.traits.num_exits + 1)]
    assert sites.depth is not None
    logits = torch.stack(
        [
            feature @ held[exit].weight.t() + (0 if (b := held[exit].bias) is None else b)
            for feature, exit in zip(features, (sites.depth - 1).tolist(), strict=True)
        ]
    )
    found = logits.new_zeros(*batch.target_input.shape, logits.shape[-1])
    return found.index_put((sites.sentence, sites.position), logits.log_softmax(-1))


def halts(model: ExitModel) -> list[AnyHalt]:
    """Return one halt of each kind that the model serves, with thresholds in the middle."""
    count = model.traits.num_exits
    found: list[AnyHalt] = [FixedExit(1), FixedExit(2), FixedExit(count), RandomExit(count, 3)]
    found.append(Thresholds("confidence", (0.3,) * (count - 1)))
    halting = model.traits.halting
    if halting == "geometric":
        found.append(Thresholds("geometric", (0.5,) * (count - 1)))
    elif halting != "none":
        found.append(Predicted(halting))
    return found


def truncated(model: ExitModel, depth: int) -> ExitModel:
    """Return a model of the first `depth` decoder blocks and the classifier behind them."""
    config = dataclasses.replace(
        model.config, decoder_depth=depth, exits="none", halting="none", tie="none"
    )
    types = model.classifier().weight.shape[0]
    source_types = types if model.config.tie == "all" else SOURCE_TYPES
    short = zoo.from_config(model.architecture, config, source_types, types).eval()
    full, held = model.state_dict(), model.classifier(depth)
    mine = {}
    for name, tensor in short.state_dict().items():
        own = f"exit_norms.{depth - 1}." + name.rsplit(".", 1)[-1]
        if name == "output_weight":
            mine[name] = held.weight
        elif name == "output_bias":
            assert held.bias is not None
            mine[name] = held.bias
        elif name.startswith("decoder_norm") and own in full:
            mine[name] = full[own]
        else:
            mine[name] = full[name][: len(tensor)]
    short.load_state_dict(mine)
    assert isinstance(short, ExitModel)
    return short


@every_case
def test_an_exit_is_the_truncated_stack(case: Case) -> None:
    model = build(case)
    batch = batch_for(model)
    for exit in range(1, model.traits.num_exits + 1):
        wanted = teacher_forced(truncated(model, exit), batch)
        depths = torch.full_like(batch.target_input, exit)
        found = predicted(model, batch, sites_at(batch, depths, mixed=False))
        assert_close(found, wanted)
        same = predicted(model, batch, sites_at(batch, depths, mixed=True))
        assert_close(same, wanted)
        steps, _, _ = stepwise(model, batch, halt=FixedExit(exit))
        assert_close(steps[batch.is_target], wanted[batch.is_target])


@every_case
def test_never_halting_is_plain_decoding(case: Case) -> None:
    model = build(case)
    batch = batch_for(model, SOURCES, TARGETS)
    never = FixedExit(model.traits.num_exits)
    found, shares, _ = stepwise(model, batch, align=True, halt=never)
    wanted, plain, _ = stepwise(model, batch, align=True)
    assert shares is not None and plain is not None
    assert_close(found, wanted)
    assert_close(shares, plain)
    for beam in (1, 3):
        plan = SearchPlan(beam=beam, max_length_a=6, max_length_b=1)
        kept = search([model], batch.source, batch.source_lengths, plan, halt=never)
        for (one, *_), (two, *_) in zip(
            kept, search([model], batch.source, batch.source_lengths, plan), strict=True
        ):
            assert one.tokens == two.tokens
            assert one.exits == [model.traits.num_exits] * (len(one.tokens) + 1)
            assert two.exits is None


@every_case
def test_stepwise_equals_teacher_forced_along_mixed_exits(case: Case) -> None:
    model = build(case)
    batch = batch_for(model)
    for seed in range(2):
        exits = random_exits(batch, model.traits.num_exits, seed)
        found, shares, _ = stepwise(model, batch, align=True, halt=GivenExits(exits))
        wanted = predicted(model, batch, sites_at(batch, exits, mixed=True))
        assert_close(found[batch.is_target], wanted[batch.is_target])
        assert shares is not None
        assert_close(shares.sum(-1), torch.ones(batch.target_input.shape))


@every_case
def test_stepwise_equals_teacher_forced_with_limited_reads(case: Case) -> None:
    model = build(case)
    batch = batch_for(model)
    path, exits = random_path(batch), random_exits(batch, model.traits.num_exits)
    found, _, _ = stepwise(model, batch, path=path, halt=GivenExits(exits))
    wanted = predicted(model, batch, sites_at(batch, exits, mixed=True, path=path))
    assert_close(found[batch.is_target], wanted[batch.is_target])


@every_case
def test_features_of_all_exits_are_those_at_each_depth(case: Case) -> None:
    model = build(case)
    batch = batch_for(model)
    sites = Sites.offline(batch)
    count = model.traits.num_exits
    every = model.exit_features(batch, sites, own=True)
    scaled = model.exit_features(batch, sites, scales=[0.5, 2.0, 3.0, 1.0])
    assert len(every) == 2 * count and len(scaled) == count
    for exit in range(1, count + 1):
        at = dataclasses.replace(sites, depth=torch.full_like(sites.sentence, exit))
        wanted = model.features(batch, at)
        for found in (every[exit - 1], every[count + exit - 1], scaled[exit - 1]):
            assert_close(found, wanted)
    assert_close(every[count - 1], model.features(batch, sites))


@every_case
def test_a_prediction_has_no_gradient_in_blocks_behind_its_exit(case: Case) -> None:
    model = build(case)
    batch = batch_for(model, (5, 3), (6, 4))
    blocks = [name for name in model.stages() if name.startswith("decoder.")][1:]
    held = model.stages()
    for mixed in (False, True):
        for exit in range(1, model.traits.num_exits + 1):
            model.zero_grad()
            depths = torch.full_like(batch.target_input, exit)
            predicted(model, batch, sites_at(batch, depths, mixed=mixed)).pow(2).sum().backward()
            for place, name in enumerate(blocks, start=1):
                for parameter in held[name].parameters():
                    idle = parameter.grad is None or bool((parameter.grad == 0).all())
                    assert idle == (place > exit), (name, exit)


@every_case
def test_own_features_teach_their_block_alone(case: Case) -> None:
    """In training mode too, where both passes drop the same elements."""
    model = with_exits(case.build(dropout=0.3)).train()
    batch = batch_for(model, (5, 3), (6, 4))
    count = model.traits.num_exits
    blocks = [part for name, part in model.stages().items() if name.startswith("decoder.")][1:]
    every = model.exit_features(batch, Sites.offline(batch), own=True)
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


@every_case
@pytest.mark.parametrize("beam", [1, 3])
def test_alone_equals_in_a_batch(case: Case, beam: int) -> None:
    model = build(case)
    batch = batch_for(model, SOURCES, TARGETS)
    keys = torch.tensor([11, 12, 13, 14])
    plan = SearchPlan(beam=beam, max_length_a=5, max_length_b=1)
    for halt in halts(model):
        together = search(
            [model], batch.source, batch.source_lengths, plan, keys=keys, halt=halt, align=True
        )
        for row in range(len(batch)):
            one = batch.select(torch.tensor([row]))
            alone = search(
                [model], one.source, one.source_lengths, plan, keys=keys[row : row + 1], halt=halt
            )
            _assert_same(alone[0][0], together[row][0])


def _assert_same(found: Hypothesis, wanted: Hypothesis) -> None:
    assert (found.tokens, found.exits) == (wanted.tokens, wanted.exits)
    assert found.score == pytest.approx(wanted.score, abs=LIMIT)
    assert (found.exit_scores is None) == (wanted.exit_scores is None)
    if found.exit_scores is not None and wanted.exit_scores is not None:
        assert torch.allclose(found.exit_scores, wanted.exit_scores, atol=LIMIT, equal_nan=True)


@every_case
def test_a_hypothesis_has_the_score_of_its_exits(case: Case) -> None:
    model = build(case)
    batch = batch_for(model, SOURCES, TARGETS)
    plan = SearchPlan(beam=3, nbest=3, max_length_a=5, max_length_b=1)
    for halt in halts(model):
        keys = torch.arange(4) + 20
        found = search([model], batch.source, batch.source_lengths, plan, keys=keys, halt=halt)
        for row, group in enumerate(found):
            for one in group:
                _assert_forced(model, batch.source[row, : SOURCES[row]].tolist(), one)


def _assert_forced(model: ExitModel, source: list[int], one: Hypothesis) -> None:
    batch = collate([source], [one.tokens])
    path = None if one.reads is None else torch.tensor([one.reads])
    sites = sites_at(batch, torch.tensor([one.exits]), mixed=True, path=path)
    values = predicted(model, batch, sites)[0]
    wanted = values.gather(1, batch.target_output[0, :, None])[:, 0].tolist()
    assert one.log_probabilities == pytest.approx(wanted, abs=LIMIT * len(wanted))


@every_case
def test_waiting_and_leaving_early_go_together(case: Case) -> None:
    model = build(case)
    batch = batch_for(model, SOURCES, TARGETS)
    plan = SearchPlan(beam=2, max_length_a=5, max_length_b=1)
    for halt in halts(model):
        if halt.needs == "sequence":
            with pytest.raises(ConfigError, match="whole source"):
                search([model], batch.source, batch.source_lengths, plan, agent=WaitK(2), halt=halt)
            continue
        for agent in (WaitK(2), AlongPaths(random_path(batch), batch.target_lengths)):
            found = search(
                [model], batch.source, batch.source_lengths, plan, agent=agent, halt=halt
            )
            for row, (one, *_) in enumerate(found):
                _assert_forced(model, batch.source[row, : SOURCES[row]].tolist(), one)


@every_case
@pytest.mark.parametrize("rows", [[3, 1, 0, 2], [2, 2, 0], [1], [0, 0, 2, 2, 3, 3]], ids=str)
def test_taking_rows_commutes_with_leaving(case: Case, rows: list[int]) -> None:
    model = build(case)
    batch = batch_for(model, (7, 4, 0, 5), (9, 9, 9, 9))
    exits = random_exits(batch, model.traits.num_exits)
    wanted, _, _ = stepwise(model, batch, halt=GivenExits(exits))
    for done in (0, 1, 4):
        state = stepwise(model, batch, done, halt=GivenExits(exits))[2] if done else None
        state = state or model.begin(batch.source, batch.source_lengths)
        state = take_rows(state, rows)
        for place in range(done, done + 4):
            halt = GivenExits(exits[rows])
            step = model.step(batch.target_input[rows, place], state, halt=halt)
            assert_close(step.logits.log_softmax(-1), wanted[rows, place])
            assert step.exits is not None
            assert step.exits.tolist() == exits[rows, place].tolist()
            state = step.state


@pytest.mark.parametrize("case", basic_cases(), ids=str)
def test_models_of_one_exit_refuse(case: Case) -> None:
    model = case.build()
    batch = batch_for(model, SOURCES, TARGETS)
    with pytest.raises(ConfigError, match="one exit"):
        search([model], batch.source, batch.source_lengths, SearchPlan(), halt=FixedExit(1))
    with pytest.raises(ConfigError, match="one exit"):
        with_exits(model)
