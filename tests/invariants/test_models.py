"""Laws of the model protocol, for every architecture and every choice it offers."""

import pytest
import torch

from nmtgrid.models import zoo
from tests.invariants.helpers import (
    Case,
    assert_close,
    batch_for,
    cases,
    every_case,
    model_and_batch,
    stepwise,
    take_rows,
    target_embeddings,
    teacher_forced,
    widened,
    with_padding,
)

ELSEWHERE = {
    "checkpoint_activations",  # memory
    "alignment",  # what is reported
    "reader_detached", "gradient_scale",  # gradients
    "exits",  # predictions of earlier blocks
    "output_map",  # the sizes of `TINY` need that map anyway
}  # fmt: skip
"""Choices that change no prediction."""


def test_the_zoo_is_tried() -> None:
    assert {case.arch for case in cases()} == set(zoo.architectures())
    assert len(cases()) > len(set(zoo.architectures()))


@every_case
def test_the_cases_are_not_idle(case: Case) -> None:
    """Predictions depend on the prefix, on the source, and on the position."""
    model = case.build()
    values = teacher_forced(model, batch_for(model, (6, 6, 6), (8, 8, 8)))
    assert (values[0] - values[1]).abs().max() > 0.01
    # At most positions: a maximum over all earlier rows may stay the same for a step.
    assert (values[0, 1:] - values[0, :-1]).abs().amax(-1).median() > 1e-4


@every_case
def test_each_choice_does_something(case: Case) -> None:
    """With it there are other parameters, or other predictions from the same parameters."""
    default = zoo.architectures().get(case.arch).config()
    chosen = [item for item in case.settings if item[1] != getattr(default, item[0])]
    if not chosen or chosen[-1][0] in ELSEWHERE:
        pytest.skip("the default, or a choice that changes no prediction")
    name = chosen[-1][0]
    if name in default.only_with:
        other, values = default.only_with[name]
        if dict(case.settings).get(other, getattr(default, other)) not in values:
            pytest.skip(f"no effect without `{other}`, as users are told")
    models = Case(case.arch, tuple(chosen[:-1])).build(), case.build()
    states = [model.state_dict() for model in models]
    shapes = [{name: tensor.shape for name, tensor in state.items()} for state in states]
    if shapes[0] == shapes[1]:
        models[1].load_state_dict(states[0])
        batch = batch_for(models[0])
        without, changed = (teacher_forced(model, batch) for model in models)
        assert (without - changed).abs().max() > 1e-4


@every_case
def test_stepwise_equals_teacher_forced(case: Case) -> None:
    model, batch = model_and_batch(case)
    result, _, _ = stepwise(model, batch)
    assert_close(result[batch.is_target], teacher_forced(model, batch)[batch.is_target])


@every_case
@pytest.mark.parametrize("source_lengths", [(7, 4, 0, 9), (6, 6, 6, 6)], ids=str)
def test_alignments_are_shares_of_the_real_source(
    case: Case, source_lengths: tuple[int, ...]
) -> None:
    model = case.build()
    if not model.traits.aligns:
        pytest.skip("this architecture yields no alignments")
    batch = batch_for(model, source_lengths)
    steps = stepwise(model, batch, align=True)[1]
    assert steps is not None
    assert_close(steps[batch.is_target], model.alignments(batch)[batch.is_target])
    shares = model.alignments(batch)
    present = batch.is_target[:, :, None] & batch.is_source[:, None, :]
    assert (shares[~present] == 0).all() and (shares >= 0).all()
    assert_close(shares.sum(-1)[batch.is_target], torch.ones(int(batch.is_target.sum())))


@every_case
def test_no_prediction_sees_a_later_target_token(case: Case) -> None:
    """The gradient with respect to later tokens is exactly zero, that to the last one is not."""
    model, batch = model_and_batch(case, (5, 3), (6, 4))
    values, embedded = target_embeddings(model, batch)
    readout = torch.randn(values.shape[-1])
    for position in range(values.shape[1]):
        summed = (values[:, position] * readout)[batch.is_target[:, position]].sum()
        (gradient,) = torch.autograd.grad(summed, embedded, retain_graph=True)
        assert (gradient[:, position + 1 :] == 0).all()
        assert (gradient[batch.is_target[:, position], position].abs().amax(-1) > 0).all()


@every_case
def test_a_changed_token_changes_nothing_before_it(case: Case) -> None:
    model, batch = model_and_batch(case, (5, 3), (6, 6))
    before = teacher_forced(model, batch)
    for position in range(1, 7):
        changed = batch.target_input.clone()
        changed[:, position] = 3 + (changed[:, position] - 2) % (
            model.classifier().weight.shape[0] - 3
        )
        other = type(batch)(
            batch.source, batch.source_lengths, changed, batch.target_output,
            batch.target_lengths, batch.indices,
        )  # fmt: skip
        after = teacher_forced(model, other)
        assert_close(after[:, :position], before[:, :position], 1e-6)
        assert (after[:, position] - before[:, position]).abs().amax(-1).min() > 1e-6


@every_case
def test_alone_equals_in_a_padded_batch(case: Case) -> None:
    model, batch = model_and_batch(case)
    together = teacher_forced(model, batch)
    steps, _, _ = stepwise(model, batch, 3)
    for row in range(len(batch)):
        alone = batch.select(torch.tensor([row]))
        length = int(alone.target_lengths)
        assert_close(teacher_forced(model, alone)[0], together[row, :length])
        kept = min(length, 3)
        assert_close(stepwise(model, alone, kept)[0][0], steps[row, :kept])


@every_case
def test_what_stands_on_padding_does_not_matter(case: Case) -> None:
    model, batch = model_and_batch(case)
    before = teacher_forced(model, batch)
    other = with_padding(batch, 5)
    assert_close(teacher_forced(model, other)[batch.is_target], before[batch.is_target])


@every_case
def test_a_source_may_be_wider_than_its_longest_row(case: Case) -> None:
    """As when steps are recorded for recurring widths."""
    model, batch = model_and_batch(case)
    wide = widened(batch, 5)
    assert_close(stepwise(model, wide, 4)[0], stepwise(model, batch, 4)[0])
    if model.traits.aligns:
        _, shares, _ = stepwise(model, wide, 4, align=True)
        _, expected, _ = stepwise(model, batch, 4, align=True)
        assert shares is not None and expected is not None
        assert_close(shares[..., :-5], expected)
        assert (shares[..., -5:] == 0).all()


@every_case
@pytest.mark.parametrize("rows", [[3, 1, 0, 2], [2, 2, 0], [1]], ids=str)
def test_taking_rows_commutes_with_steps(case: Case, rows: list[int]) -> None:
    """Reordered, repeated and dropped rows continue as without it, at once and later."""
    model, batch = model_and_batch(case, (7, 4, 0, 5), (9, 9, 9, 9))
    expected, _, _ = stepwise(model, batch)
    for done in (0, 1, 4):
        state = stepwise(model, batch, done)[2] if done else None
        state = state or model.begin(batch.source, batch.source_lengths)
        state = take_rows(state, rows)
        for position in range(done, done + 4):
            step = model.step(batch.target_input[rows, position], state)
            assert_close(step.logits.log_softmax(-1), expected[rows, position])
            state = step.state


@every_case
@torch.no_grad()  # as in decoding, which reuses memory
def test_a_state_can_be_taken_twice(case: Case) -> None:
    """Tokens written in one half of the rows do not affect the other half."""
    model, batch = model_and_batch(case, (7, 4, 0, 5), (9, 9, 9, 9))
    expected, _, _ = stepwise(model, batch)
    state = stepwise(model, batch, 3)[2]
    first, second = take_rows(state, [0, 1]), take_rows(state, [2, 3])
    for position in (3, 4):
        for half, rows in ((0, [0, 1]), (1, [2, 3])):
            chosen = second if half else first
            step = model.step(batch.target_input[rows, position], chosen)
            assert_close(step.logits.log_softmax(-1), expected[rows, position])
            first, second = (first, step.state) if half else (step.state, second)


@every_case
@torch.no_grad()
def test_states_taken_twice_can_be_taken_again(case: Case) -> None:
    """Two copies of a discarded state continue independently, as do their copies."""
    model, batch = model_and_batch(case, (7, 4, 0, 5), (9, 9, 9, 9))
    expected, _, _ = stepwise(model, batch)
    every, turned = [0, 1, 2, 3], [3, 2, 1, 0]
    state = take_rows(stepwise(model, batch, 3)[2], every)
    states = [take_rows(state, every), take_rows(state, turned)]
    del state
    for position in (3, 4, 5):
        steps = []
        states = [take_rows(each, every) for each in states]
        for each, rows in zip(states, (every, turned), strict=True):
            steps.append(model.step(batch.target_input[rows, position], each))
            assert_close(steps[-1].logits.log_softmax(-1), expected[rows, position])
        states = [step.state for step in steps]
