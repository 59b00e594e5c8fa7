"""The batched beam against a beam of one sentence in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.search.engine import search
from nmtgrid.text.vocabulary import BEGIN, END, PAD
from tests.unit.table_model import TableModel, TableState, batch


def reference_beam(model: TableModel, source: list[int], plan: SearchPlan) -> list[Hypothesis]:
    """The beam of one sentence, in plain Python, without early stopping by bound."""
    rows, lengths = batch(source)
    limit = math.floor(plan.max_length_a + plan.max_length_b * len(source))
    live: list[tuple[float, list[int], TableState]] = [(0.0, [], model.begin(rows, lengths))]
    ended: list[tuple[float, list[int]]] = []
    for step in range(limit + 1):
        candidates: list[tuple[float, list[int], TableState]] = []
        for total, tokens, state in live:
            after = model.step(torch.tensor([tokens[-1] if tokens else BEGIN]), state)
            values = after.logits[0].log_softmax(0).tolist()
            for token, value in enumerate(values):
                may = token == END if step == limit else token not in (PAD, BEGIN)
                if may:
                    candidates.append((total + value, [*tokens, token], after.state))
        candidates.sort(key=lambda c: -c[0])
        for total, tokens, _ in candidates[: plan.beam]:
            if tokens[-1] == END:
                ended.append((total / len(tokens) ** plan.length_penalty, tokens[:-1]))
        live = [c for c in candidates if c[1][-1] != END][: plan.beam]
        ended.sort(key=lambda one: -one[0])
        ahead = max((c[0] for c in live), default=-math.inf) / (step + 1) ** plan.length_penalty
        if len(ended) >= plan.beam and ahead <= ended[plan.nbest - 1][0]:
            break
    return [Hypothesis(t, [], 0.0, s) for s, t in ended[: plan.nbest]]


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("beam", [2, 3, 5])
def test_batched_beam_is_the_beam_of_one_sentence(alpha: float, beam: int) -> None:
    model = TableModel(7, types=15, sharp=1.5)
    plan = SearchPlan(beam=beam, nbest=2, length_penalty=alpha, max_length_a=6)
    sources = [[3 + (5 * i + j) % 11 for j in range(1 + i % 4)] for i in range(12)]
    for source, found in zip(sources, search([model], *batch(*sources), plan), strict=True):
        expected = reference_beam(model, source, plan)
        assert [h.tokens for h in found] == [h.tokens for h in expected]
        assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-5)
