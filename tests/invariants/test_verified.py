"""Laws of verified exits: the output is that of the full stack, whatever was drafted."""

import functools
import math

import pytest
import torch
from torch import Tensor

from nmtgrid.adaptive.measure import DecoderSizes, verified_flops
from nmtgrid.adaptive.objectives import Aligned, AlignedSettings
from nmtgrid.data.batches import Batch, collate
from nmtgrid.layers.transformer.blocks import DecoderBlock
from nmtgrid.models.api import ExitModel, Verified
from nmtgrid.models.transformer.exits import TransformerDrafts
from nmtgrid.search import verified as verified_search
from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.search.constraints import ForcedPrefix
from nmtgrid.text.vocabulary import END
from tests.invariants.exit_helpers import build, exits_and_batch
from tests.invariants.helpers import (
    LIMIT,
    Case,
    assert_close,
    batch_for,
    every_exit_case,
    search_batch,
)

SOURCES = (6, 2, 0, 9, 4, 7, 1, 3)
PLAN = SearchPlan(max_length_a=5, max_length_b=0.7)
LEAST = SearchPlan(max_length_a=5, max_length_b=0.7, min_length=3)
TIED = Case("transformer", (("decoder_depth", 4), ("exits", "tied"), ("norm", "pre")))


def assert_same(drafted: list[list[Hypothesis]], full: list[list[Hypothesis]], blocks: int) -> None:
    for (best,), (other,) in zip(drafted, full, strict=True):
        assert best.tokens == other.tokens
        assert best.log_probabilities == pytest.approx(other.log_probabilities, abs=LIMIT)
        assert best.score == pytest.approx(other.score, abs=LIMIT)
        assert best.exits is not None and best.passes is not None and best.num_exits == blocks
        assert len(best.exits) == len(best.tokens) + 1 == sum(ran.written for ran in best.passes)
        assert all(1 <= ran.written <= ran.verified <= ran.fed for ran in best.passes)
        if best.alignment is not None:
            assert other.alignment is not None
            assert_close(best.alignment, other.alignment)


def rows(batch: Batch, *indices: int) -> Batch:
    return batch.select(torch.tensor(indices))


@every_exit_case
def test_what_is_verified_is_the_full_stack(case: Case) -> None:
    model, batch = exits_and_batch(case, SOURCES, (4,) * 8)
    count = model.traits.num_exits
    rules = [InTurns()]
    full = search_batch([model], batch, LEAST, align=True, constraints=rules)
    assert len({token for (best,) in full for token in best.tokens}) > 1
    for exit in range(1, count):
        for drafts in {exit, 6 - exit}:
            halt = Verified(exit, drafts, types=None if exit == 1 else 6)
            drafted = search_batch([model], batch, LEAST, halt=halt, align=True, constraints=rules)
            assert_same(drafted, full, count)
    for group in ((0, 1, 2), (3,)):
        halt = Verified(1, 3)
        some = search_batch([model], rows(batch, *group), LEAST, halt=halt, constraints=rules)
        assert_same(some, [[best] for row in group for best in full[row]], count)


class InTurns:
    """Allows a third of the tokens, others at each step, as random models repeat themselves."""

    def apply(self, values: Tensor, step: int | Tensor, sentence: Tensor) -> Tensor:
        types = torch.arange(values.shape[1])
        column = step[:, None] if isinstance(step, Tensor) else step
        return values.masked_fill(((types + column) % 3 > 0) & (types > END), -math.inf)


@functools.cache
def trained(exits: str) -> ExitModel:
    """Return a tiny model that has partly learnt to copy, so that exits sometimes agree."""
    torch.manual_seed(3)
    settings = (("decoder_depth", 4), ("exits", exits), ("norm", "pre"))
    model = build(Case("transformer", settings)).train()
    types = model.classifier().weight.shape[0]
    objective = Aligned(AlignedSettings())
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        sources = [torch.randint(4, types, (int(n),)).tolist() for n in torch.randint(1, 6, (16,))]
        optimiser.zero_grad()
        (objective.loss(model, collate(sources, sources)).total / 64).backward()
        optimiser.step()
    return model.eval()


@pytest.mark.parametrize("exits", ["tied", "separate"])
def test_a_trained_model_writes_the_same_and_its_drafts_stand(exits: str) -> None:
    model = trained(exits)
    types = model.classifier().weight.shape[0]
    sources = [torch.randint(4, types, (length,)).tolist() for length in (5, 1, 4, 2, 3, 5, 4, 2)]
    batch = collate(sources, sources)
    full = search_batch([model], batch, PLAN)
    ends_drafted = accepted = 0
    for exit in range(1, 4):
        for drafts in range(1, 6):
            drafted = search_batch([model], batch, PLAN, halt=Verified(exit, drafts, None))
            assert_same(drafted, full, 4)
            for row in range(0, 8, 3) if drafts == 3 else ():
                alone = search_batch([model], rows(batch, row), PLAN, halt=Verified(exit, drafts))
                assert alone[0][0].tokens == full[row][0].tokens
            every = [best.exits or [] for (best,) in drafted]
            accepted += sum(value == exit for exits in every for value in exits)
            ends_drafted += sum(exits[-1] == exit for exits in every)
    # The test would show little if nothing were drafted, or no end symbol.
    assert accepted > 40 and ends_drafted > 3


def test_long_prefixes_and_sources() -> None:
    """Caches that have grown, with few or many hidden columns after the written tokens."""
    model = trained("tied")
    types = model.classifier().weight.shape[0]
    sources = [torch.randint(4, types, (1 + row % 5,)).tolist() for row in range(12)]
    plan = SearchPlan(min_length=33, max_length_a=34, max_length_b=0)
    for longer, halt in ((0, Verified(1, 2)), (18, Verified(2, 8, None))):
        padded = [[*source, *[5] * longer] for source in sources]
        batch = collate(padded, padded)
        full = search_batch([model], batch, plan, align=True)
        drafted = search_batch([model], batch, plan, halt=halt, align=True)
        assert_same(drafted, full, 4)


def test_constraints_act_alike() -> None:
    """Prefixes of tokens that are never drafted, minimum lengths, and limits of one token."""
    model, batch = exits_and_batch(TIED, SOURCES, (4,) * 8)
    types = model.classifier().weight.shape[0]
    prefixes = [[types - 1] * (row % 4) + [5] * (row % 3) for row in range(8)]
    for plan in (PLAN, SearchPlan(min_length=4), SearchPlan(max_length_a=0, max_length_b=0)):
        for prefix in ([], [ForcedPrefix(prefixes, torch.device("cpu"))]):
            full = search_batch([model], batch, plan, constraints=prefix)
            halt = Verified(2, 4, types=6)
            drafted = search_batch([model], batch, plan, constraints=prefix, halt=halt)
            assert_same(drafted, full, 4)


def test_a_broken_rule_of_acceptance_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """If every draft is accepted, the output is that of the exit, not that of the full stack."""
    model = trained("tied")
    batch = batch_for(model, (5, 4, 5, 3), (1,) * 4)
    full = search_batch([model], batch, PLAN)

    def every_draft(drafts: Tensor, counts: Tensor, tokens: Tensor) -> object:
        tokens[:, : drafts.shape[1]] = drafts[:, : tokens.shape[1]]
        return counts

    monkeypatch.setattr(verified_search, "count_accepted", every_draft)
    monkeypatch.setattr(verified_search.DraftLength, "least", -1e9)
    drafted = search_batch([model], batch, PLAN, halt=Verified(1, 3, None))
    assert [best.tokens for (best,) in drafted] != [best.tokens for (best,) in full]


def test_the_number_of_drafts_follows_what_was_accepted() -> None:
    """A row drafts more tokens while (p_1 .. p_k)^c >= 1/2; c is fitted to recent verifications."""
    length = verified_search.DraftLength()
    for _ in range(200):
        length.add(accepted=8, seen=10, logs=-4.0)
    # 0.8 of the drafts were accepted, with a mean log p of -0.4: c = log 0.8 / -0.4.
    steady = length.least
    assert steady == pytest.approx(math.log(0.5) * -0.4 / math.log(0.8))
    length.add(accepted=0, seen=10, logs=-4.0)
    assert steady < length.least < 0
    for _ in range(200):
        length.add(accepted=1, seen=10, logs=-4.0)
    assert length.least == pytest.approx(math.log(0.5) * -0.4 / math.log(0.1))
    for _ in range(20):
        length.add(accepted=10, seen=10, logs=-4.0)
    # The rejected drafts are nearly forgotten.
    assert length.least < steady
    certain = verified_search.DraftLength()
    for _ in range(2000):
        certain.add(accepted=10, seen=10, logs=0.0)
    assert certain.least == -math.inf


def test_rejected_drafts_make_later_ones_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained("tied")
    batch = batch_for(model, (5, 4, 5, 3), (1,) * 4)
    plan = SearchPlan(min_length=30, max_length_a=31, max_length_b=0)
    rules = [InTurns()]  # which drafts keep too: none of them is an end symbol
    full = search_batch([model], batch, plan, constraints=rules)
    # As if nearly all of many drafts had been accepted before.
    monkeypatch.setattr(verified_search, "_PRIOR", (9.0, 9.01, -20.0))
    monkeypatch.setattr(verified_search, "count_accepted", lambda drafts, *_: drafts[:, 0] * 0)
    halt = Verified(1, 8, None)
    drafted = search_batch([model], batch, plan, constraints=rules, halt=halt)
    assert_same(drafted, full, 4)
    for (best,) in drafted:
        predicted = [ran.predicted for ran in best.passes or ()]
        assert len(predicted) == 31 and predicted[0] == 8 and max(predicted[-5:]) <= 2


def test_drafts_are_accepted_up_to_the_first_that_differs() -> None:
    drafts = torch.tensor([[4, 5, 6], [4, 5, 6], [4, 5, 6], [4, END, 9]])
    tokens = torch.tensor([[4, 5, 6, 7], [4, 9, 6, 7], [4, 5, 6, 7], [4, END, 9, 0]])
    counts = torch.tensor([3, 3, 1, 2])
    assert verified_search.count_accepted(drafts, counts, tokens).tolist() == [3, 1, 1, 2]


def counting(monkeypatch: pytest.MonkeyPatch, model: ExitModel) -> dict[str, int]:
    """Return counts of the work: positions in blocks and both classifiers, attended prefixes."""
    ran = {"blocks": 0, "predicted": 0, "classified": 0, "attended": 0}
    step, several = DecoderBlock.step, DecoderBlock.step_several
    feed, classify = TransformerDrafts.feed, type(model).classify

    def counted_step(self, features, cache, *rest):  # type: ignore[no-untyped-def]
        ran["blocks"] += len(features)
        ran["attended"] += len(features) * (cache.filled + 1)
        return step(self, features, cache, *rest)

    def counted_several(self, features, cache, *rest):  # type: ignore[no-untyped-def]
        ran["blocks"] += len(features)
        last = cache.filled - len(features)
        ran["attended"] += sum(last + 1 + index for index in range(len(features)))
        return several(self, features, cache, *rest)

    def counted_feed(self, *rest, predict):  # type: ignore[no-untyped-def]
        ran["predicted"] += len(rest[0]) * predict
        return feed(self, *rest, predict=predict)

    def counted_classify(self, features, *rest):  # type: ignore[no-untyped-def]
        ran["classified"] += len(features)
        return classify(self, features, *rest)

    monkeypatch.setattr(DecoderBlock, "step", counted_step)
    monkeypatch.setattr(DecoderBlock, "step_several", counted_several)
    monkeypatch.setattr(TransformerDrafts, "feed", counted_feed)
    monkeypatch.setattr(type(model), "classify", counted_classify)
    return ran


@pytest.mark.parametrize("exit", [1, 3])
def test_what_ran_is_what_is_counted(monkeypatch: pytest.MonkeyPatch, exit: int) -> None:
    model, batch = exits_and_batch(TIED, (5,), (1,))
    ran = counting(monkeypatch, model)
    halt = Verified(exit, 3, types=7)
    ((best,),) = search_batch([model], batch, SearchPlan(max_length_a=12), halt=halt)
    assert best.passes is not None and len(best.passes) > 2
    assert ran["blocks"] == best.blocks_run[0]
    sizes, source = DecoderSizes.of(model), 6
    size = sizes.size
    by_hand = ran["blocks"] * (12 * size**2 + 4 * sizes.feed_forward_size * size)
    by_hand += 4 * size * (ran["attended"] + ran["blocks"] * source)
    by_hand += 4 * 4 * source * size * sizes.encoder_size
    by_hand += 2 * size * (7 * ran["predicted"] + sizes.types * ran["classified"])
    assert verified_flops(sizes, source, halt, best.passes) == by_hand


@pytest.mark.parametrize("exit", [2, 3])
def test_what_ran_in_a_batch_is_what_is_counted(monkeypatch: pytest.MonkeyPatch, exit: int) -> None:
    """Rows with fewer positions to verify than others do not run the rest of them."""
    model = trained("tied")
    types, drawn = model.classifier().weight.shape[0], torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 6, (64,), generator=drawn).tolist()
    sources = [torch.randint(4, types, (n,), generator=drawn).tolist() for n in lengths]
    ran = counting(monkeypatch, model)
    monkeypatch.setattr(verified_search.DraftLength, "least", -2.0)
    halt = Verified(exit, 5, None)
    hypotheses = search_batch([model], collate(sources, sources), PLAN, halt=halt)
    passes = [best.passes or [] for (best,) in hypotheses]
    every = [part for row in passes for part in row]
    assert any(part.verified < part.fed for part in every)
    assert ran["blocks"] == sum(part.blocks for part in every)
    assert ran["predicted"] == sum(part.predicted for part in every)
    assert ran["classified"] == sum(part.verified for part in every)
