"""Laws of policies that translate prefixes, for every architecture that translates text.

The output while the source arrives is that of batched simulation; each token has its probability
given the source read by then; waiting for the end is offline search.
"""

import math

import pytest
import torch

from nmtgrid.adaptive.halting import RandomExit
from nmtgrid.base.errors import ConfigError
from nmtgrid.models.api import Halt, TranslationModel
from nmtgrid.online.policies import WaitK
from nmtgrid.online.retranslation import (
    CommitPolicy,
    HoldN,
    LocalAgreement,
    PrefixDecoder,
    PrefixStream,
    Retranslation,
)
from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.search.constraints import ForcedPrefix
from nmtgrid.search.engine import search
from nmtgrid.text.vocabulary import END
from tests.invariants.exit_helpers import build, halts
from tests.invariants.helpers import (
    LIMIT,
    SOURCE_TYPES,
    Case,
    basic_cases,
    batch_for,
    exit_cases,
    next_log_probabilities,
    online_cases,
    search_batch,
)

LENGTHS = (3, 0, 1, 4)
GREEDY = SearchPlan(max_length_a=2, max_length_b=1)
BEAM = SearchPlan(beam=4, max_length_a=1, max_length_b=1)
every_plan = pytest.mark.parametrize("plan", [GREEDY, BEAM], ids=["greedy", "beam"])
POLICIES: list[CommitPolicy] = [LocalAgreement(2), HoldN(2, stride=2, cap=4)]


def _blind(case: Case) -> bool:
    """Return whether the model does not see the end of the source."""
    return case.traits.hides_source_end


def _text_cases() -> list[Case]:
    """Return one case of each architecture that translates text, and one that is blind."""
    plain = [case for case in basic_cases() if not case.traits.source_features]
    return plain + [case for case in online_cases() if _blind(case)][:1]


every_text_case = pytest.mark.parametrize("case", _text_cases(), ids=str)


def _sources(model: TranslationModel) -> list[list[int]]:
    batch = batch_for(model, LENGTHS, (1, 1, 1, 1))
    return [batch.source[row, :length].tolist() for row, length in enumerate(LENGTHS)]


def _streamed(
    model: TranslationModel,
    source: list[int],
    policy: CommitPolicy,
    plan: SearchPlan,
    halt: Halt | None = None,
) -> Hypothesis:
    """Return the translation, after checking when each of its tokens was written."""
    stream = PrefixStream(PrefixDecoder([model], plan, policy, halt=halt))
    arrived: list[int] = []
    for count, token in enumerate(source, start=1):
        arrived += [count] * len(stream.read([token]))
        assert len(stream.reads) == len(stream.tokens) == len(stream.log_probabilities)
    arrived += [len(source) + 1] * len(stream.end())
    assert stream.is_finished and stream.reads == [*arrived, len(source) + 1]
    return stream.hypothesis()


def _check_same(hypothesis: Hypothesis, expected: Hypothesis) -> None:
    assert (hypothesis.tokens, hypothesis.reads) == (expected.tokens, expected.reads)
    assert hypothesis.log_probabilities == pytest.approx(expected.log_probabilities, abs=LIMIT)
    assert hypothesis.score == pytest.approx(expected.score, abs=LIMIT)


@every_text_case
@every_plan
def test_streaming_is_decoding_in_batches(case: Case, plan: SearchPlan) -> None:
    model = case.build()
    sources = _sources(model)
    for policy in POLICIES:
        results = PrefixDecoder([model], plan, policy, batch_tokens=30).decode(sources)
        for source, result in zip(sources, results, strict=True):
            _check_same(_streamed(model, source, policy, plan), result.hypothesis)
            assert result.erased == 0


@every_text_case
def test_each_token_has_the_probability_that_it_has_after_its_reads(case: Case) -> None:
    """By teacher forcing, given the source prefix read, which does not include the end symbol."""
    model = case.build()
    source = _sources(model)[0]
    hypothesis = PrefixDecoder([model], GREEDY, HoldN(1)).decode([source])[0].hypothesis
    assert hypothesis.reads is not None
    for step, reads in enumerate(hypothesis.reads):
        values = next_log_probabilities(model, source[:reads], hypothesis.tokens[:step])[-1]
        expected = values[[*hypothesis.tokens, END][step]].item()
        assert hypothesis.log_probabilities[step] == pytest.approx(expected, abs=LIMIT * 10)


@every_text_case
def test_waiting_for_the_end_is_offline_search(case: Case) -> None:
    model = case.build()
    batch = batch_for(model, LENGTHS, (1, 1, 1, 1))
    sources = [batch.source[row, :length].tolist() for row, length in enumerate(LENGTHS)]
    offline = search_batch([model], batch, BEAM)
    for policy in (LocalAgreement(6), HoldN(math.inf), Retranslation(1)):
        results = PrefixDecoder([model], BEAM, policy).decode(sources)
        for source, result, (expected,) in zip(sources, results, offline, strict=True):
            assert result.hypothesis.tokens == expected.tokens
            assert result.hypothesis.score == pytest.approx(expected.score, abs=LIMIT)
            assert result.hypothesis.reads is not None
            assert result.hypothesis.reads[-1] == len(source) + 1
            if isinstance(policy, CommitPolicy):
                assert set(result.hypothesis.reads) == {len(source) + 1} and result.erased == 0


@every_text_case
def test_the_rest_is_an_offline_search_that_goes_on_from_what_is_written(case: Case) -> None:
    model = case.build()
    source = _sources(model)[3]
    stream = PrefixStream(PrefixDecoder([model], BEAM, HoldN(1)))
    stream.read(source)
    written = [*stream.tokens]
    stream.end()
    batch = torch.tensor([[*source, END]]), torch.tensor([len(source) + 1])
    prefix = ForcedPrefix([written], torch.device("cpu"))
    expected = search([model], *batch, BEAM, constraints=[prefix])[0][0]
    assert stream.tokens == expected.tokens and stream.tokens[: len(written)] == written
    assert len(stream.tokens) <= BEAM.max_length_a + len(source)


@pytest.mark.parametrize("case", online_cases()[::6], ids=str)
def test_a_prefix_without_the_source_end_is_a_limited_read(case: Case) -> None:
    """The first prediction from two source tokens is the first of wait-2 on the whole source."""
    model = case.build()
    batch = batch_for(model, (4,), (1,))
    source = batch.source[0, :4].tolist()
    policy = HoldN(0, end_of_prefix=False)
    decoder = PrefixDecoder([model], GREEDY, policy)
    (translation,) = decoder.translate([source[:2]])
    ((expected,),) = search_batch([model], batch, GREEDY, agent=WaitK(2))
    assert [*translation.tokens, END][0] == [*expected.tokens, END][0]
    first = pytest.approx(expected.log_probabilities[0], abs=LIMIT)
    assert translation.log_probabilities[0] == first
    (result,) = decoder.decode([source])
    _check_same(_streamed(model, source, policy, GREEDY), result.hypothesis)


@every_text_case
def test_a_model_that_must_see_the_end_is_refused_without_it(case: Case) -> None:
    model = case.build()
    if model.traits.prefix_safe:
        pytest.skip("this one can")
    with pytest.raises(ConfigError, match="without the source's end symbol"):
        PrefixDecoder([model], GREEDY, HoldN(1, end_of_prefix=False))


@pytest.mark.parametrize("case", exit_cases()[::10], ids=str)
def test_exits_are_those_of_the_search_that_wrote_each_token(case: Case) -> None:
    """Not for random exits, which depend on a key that a stream does not have."""
    model, policy = build(case), HoldN(1, stride=2)
    sources = _sources(model)[2:]
    for halt in halts(model)[1::3]:
        assert not isinstance(halt, RandomExit)
        results = PrefixDecoder([model], GREEDY, policy, halt=halt).decode(sources)
        for source, result in zip(sources, results, strict=True):
            expected = result.hypothesis
            hypothesis = _streamed(model, source, policy, GREEDY, halt)
            _check_same(hypothesis, expected)
            assert hypothesis.exits == expected.exits and hypothesis.exits is not None
            assert len(hypothesis.exits) == len(hypothesis.tokens) + 1
            assert hypothesis.num_exits == expected.num_exits == model.traits.num_exits
            assert (hypothesis.exit_scores is None) == (expected.exit_scores is None)
            if hypothesis.exit_scores is not None and expected.exit_scores is not None:
                pairs = hypothesis.exit_scores, expected.exit_scores
                torch.testing.assert_close(*pairs, rtol=0, atol=LIMIT, equal_nan=True)


def test_a_blind_model_writes_as_many_tokens_as_it_has_read() -> None:
    """Without the source's end, it translates j tokens into j: hold-n is wait-n, a token later."""
    case = next(case for case in online_cases() if _blind(case))
    model = case.build()
    source = torch.randint(3, SOURCE_TYPES, (6,)).tolist()
    (result,) = PrefixDecoder([model], GREEDY, HoldN(2)).decode([source])
    assert result.hypothesis.reads == [3, 4, 5, 6, 7, 7, 7]
