"""Law of limited reads: a uni-directional model that has read j tokens knows of no others.

No prediction with a limited read may differ from the one with the source cut there. A model that
reads both ways must break this; two small models here show that the test tells them apart.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from nmtgrid.base.masks import is_token
from nmtgrid.data.batches import Batch, collate
from nmtgrid.models.api import Classifier, Sites, Traits, TranslationModel
from tests.laws.helpers import LIMIT, Case, batch_for, cases, teacher_forced

every_case = pytest.mark.parametrize("case", cases(), ids=str)


class _MeanReader(TranslationModel):
    """Predicts from the mean of the source tokens that it has read, and the last target token.

    With `cheats` the mean is that of the whole source, whatever was read.
    """

    def __init__(self, cheats: bool) -> None:
        super().__init__()
        self.cheats = cheats
        self.traits = Traits(prefix_safe=True)
        self.source, self.target = nn.Embedding(19, 8), nn.Embedding(13, 8)

    def features(self, batch: Batch, sites: Sites) -> Tensor:
        lengths = batch.source_lengths[sites.sentence]
        if sites.reads is not None and not self.cheats:
            lengths = sites.reads
        kept = is_token(lengths, batch.source.shape[1])[..., None]
        mean = (self.source(batch.source)[sites.sentence] * kept).sum(1) / lengths[:, None]
        last: Tensor = self.target(batch.target_input)[sites.sentence, sites.position]
        return torch.tanh(mean + last)

    def classifier(self) -> Classifier:
        return Classifier(self.target.weight, None)


def _largest_difference(model: TranslationModel, batch: Batch) -> float:
    """Compare each limited read with the source cut there; return the largest difference."""
    whole = Sites.offline(batch)
    worst = 0.0
    for reads in range(1, int(batch.source_lengths.max()) + 1):
        limits = batch.source_lengths.clamp(max=reads)
        limited = Sites(whole.sentence, whole.position, limits[whole.sentence])
        cut = Batch(
            batch.source[:, :reads], limits, batch.target_input, batch.target_output,
            batch.target_lengths, batch.indices,
        )  # fmt: skip
        found, wanted = teacher_forced(model, batch, limited), teacher_forced(model, cut)
        worst = max(worst, float((found - wanted).abs().max().detach()))
    return worst


def test_the_law_accepts_a_uni_directional_model() -> None:
    assert _largest_difference(_MeanReader(cheats=False), _batch()) <= LIMIT


def test_the_law_refuses_a_bi_directional_model() -> None:
    assert _largest_difference(_MeanReader(cheats=True), _batch()) > 0.01


@every_case
def test_a_limited_read_is_a_truncated_source(case: Case) -> None:
    """Models that say they are prefix-safe are; the others refuse limited reads or fail the law."""
    model = case.build()
    batch = batch_for(model, (7, 4, 9), (3, 6, 5))
    if model.traits.prefix_safe:
        assert _largest_difference(model, batch) <= LIMIT
        return
    try:
        worst = _largest_difference(model, batch)
    except NotImplementedError:
        return
    assert worst > 100 * LIMIT, "this model obeys the law: `traits.prefix_safe` should be True"


@every_case
def test_the_whole_source_counts(case: Case) -> None:
    """Offline, the first prediction depends on every source token within reach."""
    model = case.build()
    reach = model.traits.source_receptive_field
    count = 5 if reach is None else min(5, reach)
    batch = batch_for(model, (count,), (3,))
    before = teacher_forced(model, batch)
    for place in range(count):
        source = batch.source.clone()
        source[0, place] = 3 + (source[0, place] - 2) % 10
        changed = collate([source[0, :-1].tolist()], [batch.target_output[0, :-1].tolist()])
        assert (teacher_forced(model, changed) - before).abs().max() > 1e-4


def _batch() -> Batch:
    draw = torch.Generator().manual_seed(3)
    sources = [torch.randint(3, 19, (length,), generator=draw).tolist() for length in (6, 2, 8)]
    targets = [torch.randint(3, 13, (length,), generator=draw).tolist() for length in (4, 5, 1)]
    return collate(sources, targets)
