"""LocalAgreement, hold-n and re-translation by hand, and against a loop over single prefixes."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.models.api import Classifier, Step, Traits, TranslationModel
from nmtgrid.online.retranslation import (
    CommitPolicy,
    HoldN,
    LocalAgreement,
    PrefixDecoder,
    PrefixStream,
    Retranslation,
)
from nmtgrid.online.settings import read_policy
from nmtgrid.search import engine
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.constraints import ForcedPrefix
from nmtgrid.text.vocabulary import END
from tests.unit.search.table_model import TableModel, batch

Policy = CommitPolicy | Retranslation


@dataclasses.dataclass(frozen=True)
class ScriptState:
    lengths: Tensor
    written: Tensor


class ScriptedModel(TranslationModel):
    """Translates by a script: the t-th token for a source of so many tokens, then the end."""

    architecture = "scripted"

    def __init__(self, script: dict[int, list[int]], prefix_safe: bool = False) -> None:
        super().__init__()
        self.script = script
        self.traits = Traits(prefix_safe=prefix_safe)
        self.batches: list[list[int]] = []
        """The lengths of the sources of each batch, end symbol counted."""
        self.limited: list[list[int]] = []
        """The reads of each step that was limited."""

    def classifier(self) -> Classifier:
        return Classifier(torch.zeros(12, 1), None)

    def begin(self, source: Tensor, source_lengths: Tensor) -> ScriptState:
        self.batches.append(source_lengths.tolist())
        assert source.gather(1, source_lengths[:, None] - 1).eq(END).all()
        return ScriptState(source_lengths, torch.zeros_like(source_lengths))

    def step(
        self, tokens: Tensor, state: ScriptState, *, reads: Tensor | None = None,
        align: bool = False,
    ) -> Step:  # fmt: skip
        if reads is not None:
            self.limited.append(reads.tolist())
        logits = torch.zeros(len(tokens), 12)
        for row, (length, step) in enumerate(
            zip(state.lengths.tolist(), state.written.tolist(), strict=True)
        ):
            line = [*self.script[length - 1], END]
            logits[row, line[min(step, len(line) - 1)]] = 9.0
        return Step(logits, dataclasses.replace(state, written=state.written + 1))


SCRIPT = {0: [], 1: [4, 5], 2: [4, 6, 7], 3: [4, 6, 8, 9]}
SOURCE = [4, 5, 6]
# The policy, and what it writes for a source of three tokens: tokens and reads, the end's last.
BY_HAND: list[tuple[Policy, list[int], list[int]]] = [
    # 4 and 6 are agreed on one prefix later than they first come.
    (LocalAgreement(), [4, 6, 8, 9], [2, 3, 4, 4, 4]),
    (LocalAgreement(3), [4, 6, 8, 9], [3, 4, 4, 4, 4]),
    (LocalAgreement(4), [4, 6, 8, 9], [4, 4, 4, 4, 4]),
    (LocalAgreement(math.inf), [4, 6, 8, 9], [4, 4, 4, 4, 4]),
    # Whole translations: 5 stays where 6 comes later, 7 where 8 does.
    (LocalAgreement(1), [4, 5, 7, 9], [1, 1, 2, 3, 4]),
    (HoldN(0), [4, 5, 7, 9], [1, 1, 2, 3, 4]),
    (HoldN(1), [4, 6, 8, 9], [1, 2, 3, 4, 4]),
    (HoldN(2), [4, 6, 8, 9], [2, 3, 4, 4, 4]),
    (HoldN(9), [4, 6, 8, 9], [4, 4, 4, 4, 4]),
    (HoldN(math.inf), [4, 6, 8, 9], [4, 4, 4, 4, 4]),
    # With t tokens before it, each comes with 1 + t reads, or 2 + t.
    (LocalAgreement(cap=1), [4, 6, 8, 9], [1, 2, 3, 4, 4]),
    (LocalAgreement(9, cap=2), [4, 6, 8, 9], [2, 3, 4, 4, 4]),
    (HoldN(math.inf, cap=2), [4, 6, 8, 9], [2, 3, 4, 4, 4]),
    (LocalAgreement(math.inf, cap=1), [4, 6, 8, 9], [1, 2, 3, 4, 4]),
    # With t tokens before it, none comes before 2 + t reads, or 3 + t.
    (LocalAgreement(floor=3), [4, 6, 8, 9], [3, 4, 4, 4, 4]),
    (HoldN(0, floor=2), [4, 6, 8, 9], [2, 3, 4, 4, 4]),
    (HoldN(0, floor=2, cap=2), [4, 6, 8, 9], [2, 3, 4, 4, 4]),
    (HoldN(1, floor=3), [4, 6, 8, 9], [3, 4, 4, 4, 4]),
    (HoldN(1, floor=4), [4, 6, 8, 9], [4, 4, 4, 4, 4]),
    # One prefix before the whole: nothing to agree with.
    (LocalAgreement(stride=2), [4, 6, 8, 9], [4, 4, 4, 4, 4]),
    (HoldN(1, stride=2), [4, 6, 8, 9], [2, 2, 4, 4, 4]),
    (HoldN(1, stride=2, floor=3), [4, 6, 8, 9], [4, 4, 4, 4, 4]),
    # 4 5 | 4 6 7 | 4 6 8 9: from when on nothing up to the token changes.
    (Retranslation(), [4, 6, 8, 9], [1, 2, 3, 3, 4]),
    (Retranslation(1), [4, 6, 8, 9], [1, 2, 3, 4, 4]),
    (Retranslation(floor=2), [4, 6, 8, 9], [2, 3, 4, 4, 4]),
    (Retranslation(stride=2), [4, 6, 8, 9], [2, 2, 4, 4, 4]),
    (Retranslation(math.inf), [4, 6, 8, 9], [4, 4, 4, 4, 4]),
]


@pytest.mark.parametrize(("policy", "tokens", "reads"), BY_HAND, ids=str)
def test_what_is_written_by_hand(policy: Policy, tokens: list[int], reads: list[int]) -> None:
    plan = SearchPlan()
    (result,) = PrefixDecoder([ScriptedModel(SCRIPT)], plan, policy).decode([SOURCE])
    assert (result.hypothesis.tokens, result.hypothesis.reads) == (tokens, reads)
    # 5 and 7 are erased, unless they are masked or never shown.
    erased: dict[Policy, int] = {
        Retranslation(): 2, Retranslation(stride=2): 1
    }  # fmt: skip
    assert result.erased == erased.get(policy, 0)
    # Every token has the probability e^9 / (e^9 + 11).
    each = -math.log1p(11 * math.exp(-9))
    assert result.hypothesis.log_probabilities == pytest.approx([each] * 5, abs=1e-6)
    assert result.hypothesis.score == pytest.approx(each, abs=1e-6)
    if not isinstance(policy, CommitPolicy):
        return
    stream = PrefixStream(PrefixDecoder([ScriptedModel(SCRIPT)], plan, policy))
    arrived = [count for count, token in enumerate(SOURCE, 1) for _ in stream.read([token])]
    assert stream.reads == arrived == [count for count in reads if count < 4]
    assert stream.tokens == tokens[: len(arrived)]
    was_finished = stream.is_finished
    assert stream.end() == tokens[len(arrived) :] and (was_finished, stream.is_finished) == (0, 1)
    assert stream.hypothesis() == result.hypothesis
    assert stream.read([7]) == stream.end() == [] and stream.tokens == tokens


def test_a_stream_without_words_has_a_score_with_every_length_penalty() -> None:
    """With an offset of 0 the norm of length 0 would be 0."""
    plan = SearchPlan(length_penalty=1.0, length_offset=0.0)
    stream = PrefixStream(PrefixDecoder([ScriptedModel(SCRIPT)], plan, LocalAgreement()))
    assert stream.hypothesis().score == 0.0


def test_a_cap_is_kept_where_translations_do_not_agree_later() -> None:
    """At 2 reads 4 and 5 are due; the third prefix goes on from them, the older do not agree."""
    script = {1: [4], 2: [4, 5], 3: [4, 6, 7], 4: [4, 6, 7, 8]}
    policy = LocalAgreement(3, cap=1)
    (result,) = PrefixDecoder([ScriptedModel(script)], SearchPlan(), policy).decode([[4] * 4])
    assert result.hypothesis.tokens == [4, 5, 7, 8]
    assert result.hypothesis.reads == [1, 2, 3, 4, 5]


def test_sources_of_no_and_of_a_token() -> None:
    script = {0: [7], 1: [4, 5]}
    plan = SearchPlan()
    counts: dict[Policy, int] = {
        LocalAgreement(): 0, HoldN(1): 1, Retranslation(): 2, LocalAgreement(1): 2
    }  # fmt: skip
    for policy, early in counts.items():
        decoder = PrefixDecoder([ScriptedModel(script)], plan, policy)
        empty, single = decoder.decode([[], [4]])
        assert (empty.hypothesis.tokens, empty.hypothesis.reads) == ([7], [1, 1])
        assert single.hypothesis.tokens == [4, 5]
        assert single.hypothesis.reads == [1] * early + [2] * (3 - early)
        assert empty.erased == single.erased == 0
        assert decoder.decode([]) == []


def test_which_prefixes_are_translated() -> None:
    """All sentences' prefixes of one length at once; of re-translation, all there are."""
    plan = SearchPlan()

    def lengths(policy: Policy, sources: tuple[int, ...] = (3, 3, 1)) -> list[list[int]]:
        model = ScriptedModel(SCRIPT)
        PrefixDecoder([model], plan, policy).decode([[4] * count for count in sources])
        # The end symbol counts in a batch, not here.
        return [sorted(length - 1 for length in lengths) for lengths in model.batches]

    assert lengths(HoldN(1)) == [[1, 1, 1], [2, 2], [3, 3], [1, 3, 3]]
    assert lengths(HoldN(1, stride=2)) == [[2, 2], [1, 3, 3]]
    assert lengths(HoldN(1, floor=2)) == [[2, 2], [3, 3], [1, 3, 3]]
    # With the floor two prefixes have to agree: the one before it is needed.
    assert lengths(LocalAgreement(floor=3)) == [[2, 2], [3, 3], [1, 3, 3]]
    assert lengths(HoldN(math.inf)) == lengths(LocalAgreement(math.inf)) == [[1, 3, 3]]
    assert lengths(Retranslation(math.inf)) == [[1, 3, 3]]
    assert lengths(Retranslation(1)) == [[1, 1, 1, 2, 2, 3, 3], [1, 3, 3]]
    assert lengths(Retranslation(floor=3)) == [[3, 3], [1, 3, 3]]
    model = ScriptedModel(SCRIPT)
    PrefixDecoder([model], plan, Retranslation(), batch_tokens=6).decode([[4] * 3])
    # Two sources of up to two tokens and the end are six; beside them there is no room.
    assert model.batches == [[2, 3], [4], [4]]


def test_limits_of_length() -> None:
    """At most |x| + 1 tokens, of the prefix; at least 6 of the whole source alone."""
    long = [4, 5, 6, 7, 8, 9, 4, 5]
    model = ScriptedModel(dict.fromkeys(range(4), long))
    plan = SearchPlan(max_length_a=1, max_length_b=1)
    (result,) = PrefixDecoder([model], plan, HoldN(0)).decode([SOURCE])
    assert (result.hypothesis.tokens, result.hypothesis.reads) == (long[:4], [1, 1, 2, 3, 4])
    plan = SearchPlan(min_length=6)
    (result,) = PrefixDecoder([ScriptedModel(SCRIPT)], plan, HoldN(0)).decode([SOURCE])
    assert result.hypothesis.tokens[:4] == [4, 5, 7, 9] and len(result.hypothesis.tokens) == 6
    assert result.hypothesis.reads == [1, 1, 2, 3, 4, 4, 4]


def test_prefixes_without_the_end_symbol() -> None:
    """What is not the whole source is searched with all of its tokens read but the end symbol."""
    model = ScriptedModel(SCRIPT, prefix_safe=True)
    policy = HoldN(1, end_of_prefix=False)
    (result,) = PrefixDecoder([model], SearchPlan(), policy).decode([SOURCE])
    assert result.hypothesis.reads == [1, 2, 3, 4, 4]
    # A step for each token of the translation and the end; the last search is not limited.
    assert model.limited == [[1]] * 3 + [[2]] * 4 + [[3]] * 5
    with pytest.raises(ConfigError, match="cannot translate a prefix without the source's end"):
        PrefixDecoder([ScriptedModel(SCRIPT)], SearchPlan(), policy)


# Against a loop over single prefixes.


def _loop(
    models: list[TranslationModel], source: list[int], plan: SearchPlan, policy: Policy
) -> tuple[list[int], list[int], int]:
    """Return tokens, reads and erased tokens, by the definitions alone."""
    written: list[int] = []
    reads: list[int] = []
    shown: list[list[int]] = []
    erased = 0
    before: list[list[int]] = []
    for count in [*range(1, len(source) + 1), len(source) + 1]:
        forced = [] if isinstance(policy, Retranslation) else written
        inputs = batch(source[:count])
        constraints = [ForcedPrefix([forced], torch.device("cpu"))]
        tokens = engine.search(models, *inputs, plan, constraints=constraints)[0][0].tokens
        before.append(tokens)
        is_last = count > len(source)
        if isinstance(policy, Retranslation):
            kept = tokens if is_last or not policy.mask else tokens[: -int(policy.mask)]
            last = shown[-1] if shown else []
            same = next((t for t, pair in enumerate(zip(last, kept, strict=False))
                         if pair[0] != pair[1]), min(len(last), len(kept)))  # fmt: skip
            erased += len(last) - same
            reads = [*reads[:same], *[count] * (len(kept) - same)]
            shown.append(kept)
            written = kept
            continue
        if is_last:
            agreed = tokens
        elif isinstance(policy, HoldN):
            agreed = tokens[: max(0, len(tokens) - int(policy.n))]
        else:
            assert isinstance(policy, LocalAgreement)
            latest = before[-int(policy.n) :]
            agreed = []
            for column in zip(*latest, strict=False) if len(latest) == policy.n else ():
                if len(set(column)) > 1:
                    break
                agreed.append(column[0])
        if len(agreed) > len(written):
            reads += [count] * (len(agreed) - len(written))
            written = tokens[: len(agreed)]
    return written, [*reads, len(source) + 1], erased


@pytest.mark.parametrize(
    ("policy", "beam"),
    [
        (LocalAgreement(2), 1), (LocalAgreement(2), 4), (LocalAgreement(3), 1), (HoldN(1), 4),
        (HoldN(2), 1), (Retranslation(), 4), (Retranslation(2), 1),
    ],
    ids=str,
)  # fmt: skip
def test_batches_are_the_loop(policy: Policy, beam: int) -> None:
    """Of sentences of all lengths, with one model and two; what is read differs among them."""
    plan = SearchPlan(beam=beam, max_length_a=2, max_length_b=1, length_penalty=0.7)
    sources = [[5, 3, 4, 3, 5], [], [4], [3, 5, 5, 4, 3, 3, 4]]
    seen = set()
    for models in ([TableModel(1, sharp=0.6)], [TableModel(2), TableModel(3)]):
        decoder = PrefixDecoder(models, plan, policy, batch_tokens=40)
        for source, result in zip(sources, decoder.decode(sources), strict=True):
            expected = _loop([*models], source, plan, policy)
            hypothesis = result.hypothesis
            assert (hypothesis.tokens, hypothesis.reads, result.erased) == expected
            seen.add(tuple(expected[1]))
    assert len(seen) > 4


# What is refused.


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (LocalAgreement, {"n": 0}, "`n` must be a whole number from 1 on, or infinite, but is 0."),
        (LocalAgreement, {"n": 1.5},
         "`n` must be a whole number from 1 on, or infinite, but is 1.5."),
        (HoldN, {"n": -1}, "`n` must be a whole number from 0 on, or infinite, but is -1."),
        (HoldN, {"n": math.nan}, "`n` must be a whole number from 0 on, or infinite, but is nan."),
        (HoldN, {"n": -math.inf},
         "`n` must be a whole number from 0 on, or infinite, but is -inf."),
        (Retranslation, {"mask": -1},
         "`mask` must be a whole number from 0 on, or infinite, but is -1."),
        (Retranslation, {"stride": 0}, "`stride` must be a whole number from 1 on, but is 0."),
        (HoldN, {"floor": -1}, "`floor` must be a whole number from 0 on, but is -1."),
        (HoldN, {"cap": math.inf}, "`cap` must be a whole number from 0 on, but is inf."),
        (LocalAgreement, {"cap": 2, "floor": 3}, "`cap` (2) must not be below `floor` (3)."),
        (LocalAgreement, {"n": 0, "stride": 0, "floor": 2, "cap": 1},
         "`n` must be a whole number from 1 on, or infinite, but is 0.\n"
         "`stride` must be a whole number from 1 on, but is 0.\n"
         "`cap` (1) must not be below `floor` (2)."),
    ],
)  # fmt: skip
def test_settings_out_of_range(kind: type[Policy], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**settings)
    assert str(caught.value) == message


def test_settings_at_the_border() -> None:
    for policy in (LocalAgreement(1), HoldN(0, floor=3, cap=3), Retranslation(0, stride=1)):
        assert policy.faults() == []


def test_what_cannot_be_done_is_refused() -> None:
    model: Any = ScriptedModel(SCRIPT)
    with pytest.raises(ConfigError, match="which a stream cannot"):
        PrefixStream(PrefixDecoder([model], SearchPlan(), Retranslation()))
    with pytest.raises(ConfigError, match="cannot be sampled"):
        PrefixDecoder([model], SearchPlan(sample=True), HoldN(1))
    with pytest.raises(ConfigError, match="beam"):
        PrefixStream(PrefixDecoder([model], SearchPlan(beam=0), HoldN(1)))
    model.traits = Traits(source_features=3)
    with pytest.raises(ConfigError, match="captions pictures"):
        PrefixDecoder([model], SearchPlan(), HoldN(1))


@pytest.mark.parametrize(
    ("text", "is_offline"),
    [
        ("local-agreement n=inf", True), ("hold-n n=inf", True), ("re-translation mask=inf", True),
        # A cap writes before the source has ended, whatever else the policy waits for.
        ("local-agreement n=inf cap=3", False), ("hold-n n=inf cap=3", False),
        ("local-agreement n=2", False), ("hold-n n=2 cap=3", False),
    ],
)  # fmt: skip
def test_a_setting_is_offline_where_its_policy_is(text: str, is_offline: bool) -> None:
    (setting,) = read_policy(text)
    policy: Any = setting.make()
    assert setting.is_offline is policy.is_offline is is_offline
    assert (setting.values()["value"] is None) == (setting.number == "∞") == ("inf" in text)
