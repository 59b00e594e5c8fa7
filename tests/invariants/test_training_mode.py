"""Invariants of models in training mode: with each dropout rate separately, and without dropout.

An architecture that normalises with batch statistics (`traits.batch_statistics`) cannot satisfy two
of them. It must indeed violate them in training mode, and satisfy them once the statistics are
frozen; padding must not matter in either case.
"""

import dataclasses

import pytest
import torch

from nmtgrid.data.batches import Batch
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from tests.invariants.helpers import (
    LIMIT,
    Case,
    assert_close,
    basic_cases,
    batch_for,
    every_case,
    frozen_statistics,
    teacher_forced,
    with_padding,
)


def _with_one_rate() -> list[Case]:
    """Return each architecture with each of its rates of dropout, the others being 0."""
    every = []
    for case in basic_cases():
        config = zoo.architectures().get(case.arch).config
        for name in (field.name for field in dataclasses.fields(config)):
            if name.endswith("dropout"):
                # Settings that a rate needs to have an effect.
                conditions = [config.only_with[name]] if name in config.only_with else []
                needed = [(other, values[0]) for other, values in conditions]
                every.append(Case(case.arch, (*needed, (name, 0.5))))
    return every


@pytest.mark.parametrize("case", _with_one_rate(), ids=str)
def test_each_rate_of_dropout_is_that_of_training_alone(case: Case) -> None:
    """With a single rate above 0, two passes differ in training mode, and only then."""
    model = case.build()
    batch = batch_for(model)
    for is_training in (True, False):
        first, second = (teacher_forced(model.train(is_training), batch) for _ in range(2))
        assert torch.equal(first, second) is not is_training


@every_case
def test_laws_that_statistics_of_the_batch_break(case: Case) -> None:
    """No prediction sees a later target token, and alone equals in a padded batch."""
    model = case.build().train()
    for deviation, limit, least in ((_leak, 1e-6, 1e-4), (_company, LIMIT, 1e-3)):
        if not model.traits.batch_statistics:
            assert deviation(model) <= limit
            continue
        assert deviation(model) > least, "`traits.batch_statistics` should be False"
        with frozen_statistics(model):
            assert deviation(model) <= limit


@every_case
def test_padding_does_not_matter(case: Case) -> None:
    """Nor is it included in any statistics."""
    model = case.build().train()
    batch = batch_for(model)
    before = teacher_forced(model, batch)
    other = with_padding(batch, 5)
    assert_close(teacher_forced(model, other)[batch.is_target], before[batch.is_target])


def _leak(model: TranslationModel) -> float:
    """Return how much predictions change when later target tokens are changed."""
    batch = batch_for(model, (5, 3), (6, 6))
    types = model.classifier().weight.shape[0]
    before, worst = teacher_forced(model, batch), 0.0
    for position in (1, 3, 6):
        changed = batch.target_input.clone()
        changed[:, position] = 3 + (changed[:, position] - 2) % (types - 3)
        other = Batch(
            batch.source, batch.source_lengths, changed, batch.target_output,
            batch.target_lengths, batch.indices,
        )  # fmt: skip
        moved = teacher_forced(model, other)[:, :position] - before[:, :position]
        worst = max(worst, float(moved.detach().abs().max()))
    return worst


def _company(model: TranslationModel) -> float:
    """Return how much predictions change without the other sentences of the batch."""
    batch = batch_for(model)
    together, worst = teacher_forced(model, batch), 0.0
    for row in range(len(batch)):
        alone = batch.select(torch.tensor([row]))
        moved = teacher_forced(model, alone)[0] - together[row, : int(alone.target_lengths)]
        worst = max(worst, float(moved.detach().abs().max()))
    return worst
