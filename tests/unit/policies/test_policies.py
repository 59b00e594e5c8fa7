"""Policies that look at predictions, by hand; policies by name, their settings, and one's own."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtgrid.analysis.latency import read_online_results
from nmtgrid.base import own_code
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import with_checksum, write_json
from nmtgrid.base.own_code import import_files
from nmtgrid.online.evaluate import Decoded, OnlineDecoder, Sentence
from nmtgrid.online.path_warnings import (
    ends_at_limit,
    length_limit_warning,
    reads_whole_source,
)
from nmtgrid.online.policies import (
    AlignAtt,
    Confidence,
    EDAtt,
    Entropy,
    Policy,
    Threshold,
    WaitInfo,
    WaitK,
)
from nmtgrid.online.policy_presets import expand
from nmtgrid.online.settings import (
    KINDS,
    Setting,
    named_policies,
    policy_settings,
    read_policy,
    read_setting,
    read_settings,
)
from nmtgrid.online.stream import StreamTranslator
from nmtgrid.search.api import Agent, Proposal, SearchPlan
from nmtgrid.search.translate import Translator
from nmtgrid.text.vocabulary import END
from tests.unit.helpers.tiny_online import sentences, translator

HALF, CERTAIN = [0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 0.0, 1.0]


def propose(
    probabilities: list[list[float]],
    reads: list[int],
    alignment: list[list[float]] | None = None,
    step: int = 0,
) -> Proposal:
    rows = torch.arange(len(reads))
    shares = None if alignment is None else torch.tensor(alignment)
    return Proposal(step, rows, torch.tensor(reads), torch.tensor(probabilities).log(), shares)


def test_confidence_writes_from_its_threshold_on() -> None:
    proposal = propose([HALF, CERTAIN], [1, 1])
    assert Confidence(0.5).decide(proposal).tolist() == [True, True]
    assert Confidence(0.6).decide(proposal).tolist() == [False, True]


def test_entropy_writes_up_to_its_bound() -> None:
    """H(1/2, 1/4, 1/4) = 3/2 ln 2, and certainty has none."""
    proposal = propose([HALF, CERTAIN], [1, 1])
    assert Entropy(1.5 * math.log(2) + 1e-5).decide(proposal).tolist() == [True, True]
    assert Entropy(1.5 * math.log(2) - 1e-5).decide(proposal).tolist() == [False, True]


def test_alignatt_waits_where_the_last_tokens_attract_most() -> None:
    alignment = [[0.6, 0.3, 0.1, 0.0], [0.1, 0.3, 0.6, 0.0], [0.1, 0.6, 0.3, 0.0]]
    proposal = propose([HALF] * 3, [3, 3, 3], alignment)
    assert AlignAtt(1).decide(proposal).tolist() == [True, False, True]
    assert AlignAtt(2).decide(proposal).tolist() == [True, False, False]
    assert AlignAtt(3).decide(proposal).tolist() == [False, False, False]


def test_edatt_adds_what_the_last_tokens_attract() -> None:
    alignment = [[0.6, 0.3, 0.1, 0.0], [0.1, 0.3, 0.6, 0.0]]
    proposal = propose([HALF] * 2, [3, 3], alignment)
    # The last two of three: 0.4 and 0.9; the last one: 0.1 and 0.6.
    assert EDAtt(0.41, last=2).decide(proposal).tolist() == [True, False]
    assert EDAtt(0.39, last=2).decide(proposal).tolist() == [False, False]
    assert EDAtt(0.5, last=1).decide(proposal).tolist() == [True, False]


def test_a_cap_writes_whatever_the_policy_says() -> None:
    policy = Confidence(0.9, cap=2)
    assert policy.writes(propose([HALF] * 3, [1, 2, 3], step=0)).tolist() == [False, True, True]
    assert policy.writes(propose([HALF] * 3, [1, 2, 3], step=1)).tolist() == [False, False, True]


def test_a_floor_reads_first() -> None:
    arguments = torch.zeros(3, dtype=torch.int64), torch.tensor([1, 4, 1]), torch.tensor([9, 9, 2])
    assert Confidence(0.5, floor=2).next_reads(1, *arguments, None).tolist() == [3, 4, 2]
    assert Confidence(0.5).next_reads(1, *arguments, None).tolist() == [1, 4, 1]


def test_the_reader_has_a_floor_and_a_cap() -> None:
    rho = torch.tensor([[0.9, 0.1, 0.9, 0.9, 0.1]] * 2)
    arguments = torch.zeros(2, dtype=torch.int64), torch.tensor([1, 3]), torch.tensor([5, 5])
    assert Threshold(0.5).next_reads(0, *arguments, rho).tolist() == [2, 5]
    assert Threshold(0.5, floor=3).next_reads(0, *arguments, rho).tolist() == [5, 5]
    # A cap takes nothing back that has been read.
    assert Threshold(0.5, cap=1).next_reads(0, *arguments, rho).tolist() == [1, 3]
    assert Threshold(0.5, floor=2, cap=4).next_reads(0, *arguments, rho).tolist() == [2, 4]


def test_who_must_finish_reading_does_not_write_the_end() -> None:
    ends = [0.0] * (END + 2)
    ends[END] = 1.0
    proposal = propose([ends], [2])
    assert Confidence(0.5).writes(proposal).tolist() == [True]
    assert Confidence(0.5, finish_reading=True).writes(proposal).tolist() == [False]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Confidence(0.0), "`threshold` must be above 0 and below 1, but is 0.0"),
        (lambda: Entropy(math.inf), "`most` must be a number above 0, but is inf"),
        (lambda: AlignAtt(0), "`last` must be at least 1, but is 0"),
        (lambda: EDAtt(1.0), "`mass` must be above 0 and below 1, but is 1.0"),
        (lambda: AlignAtt(floor=-1), "`floor` must be a whole number from 0 on, but is -1"),
        (
            lambda: AlignAtt(floor=1.5),  # type: ignore[arg-type]
            "`floor` must be a whole number from 0 on, but is 1.5",
        ),
        (lambda: AlignAtt(floor=4, cap=3), r"`cap` \(3\) must not be below `floor` \(4\)"),
    ],
)
def test_settings_out_of_range_are_refused(make: type[Policy], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_alignments_that_a_model_does_not_have_are_refused() -> None:
    """In batches and in streams."""
    online = translator("pervasive")
    (model,) = online.models
    model.traits = dataclasses.replace(model.traits, aligns=False)
    for text in "alignatt last=1", "edatt mass=0.5":
        (setting,) = read_policy(text)
        message = "`pervasive` yields no alignments, which the reading policy needs."
        (fault,) = OnlineDecoder(online).faults([setting])
        assert fault.startswith(message)
        with pytest.raises(ConfigError, match=message):
            StreamTranslator(online.models, online.pipeline, setting.make(), online.plan).begin()


def test_a_policy_is_read_with_its_settings() -> None:
    assert read_policy("confidence threshold=0.5,0.7 floor=2") == [
        Setting("confidence", 0.5, (("floor", 2),)), Setting("confidence", 0.7, (("floor", 2),)),
    ]  # fmt: skip
    (first, *_, last) = read_policy("edatt last=1..2 mass=0.2,0.4")
    assert first.make() == EDAtt(0.2, last=1) and last.make(True) == EDAtt(
        0.4, last=2, finish_reading=True
    )
    assert read_policy("wait-k k=3,inf")[1].make() == WaitK(math.inf)
    # Without values the usual sweep.
    assert [setting.value for setting in read_policy("alignatt")] == [1, 2, 3, 4, 6]


def test_what_is_said_of_a_setting() -> None:
    (setting,) = read_policy("confidence threshold=0.5 floor=2")
    assert setting.title == "confidence p = 0.5, floor = 2"
    assert setting.slug == "confidence-threshold-0.5-floor-2"
    assert setting.values() == {
        "policy": "confidence", "threshold": 0.5, "parameter": "threshold", "value": 0.5,
        "options": {"floor": 2},
    }  # fmt: skip
    assert (Setting("wait-k", 3).title, Setting("wait-k", 3).slug) == ("k = 3", "k-3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("confidenc", "(?s)no reading policy `confidenc`.*`confidence`"),
        ("confidence treshold=0.5", "has no setting `treshold`.*`threshold`"),
        ("confidence threshold", "`confidence threshold` has no value"),
        ("confidence threshold=0.5,0.5", "0.5 is listed twice"),
        ("confidence threshold=x", "`x` is not a number"),
        ("confidence threshold=1.5", "`confidence`: `threshold` must be above 0 and below 1"),
        ("alignatt last=0.5", "is not a whole number"),
        ("alignatt last=1..40 floor=0..25", "1,040 combinations of its settings, more than 1,000"),
        ("oracle", "(?s)follows the reference.*`nmtgrid online-eval MODEL --oracle LIST`"),
        ("", "needs a name"),
    ],
)
def test_a_bad_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(None, None, None, [text])


def test_all_are_those_that_decide() -> None:
    assert named_policies("all") == [name for name in KINDS if name != "oracle"]
    assert named_policies(None) == []
    # The same point is decoded once.
    assert len(read_settings("1,3", None, None, ["wait-k k=3,5"])) == 3


OWN = """
import dataclasses
from nmtgrid.online.policies import Policy


@dataclasses.dataclass(frozen=True)
class Margin(Policy):
    margin: float = 0.4

    def decide(self, proposal):
        best = proposal.log_probabilities.topk(2).values.exp()
        return best[:, 0] - best[:, 1] >= self.margin


class Mute(Policy):
    pass


@dataclasses.dataclass(frozen=True)
class Even(Policy):
    def decide(self, proposal):
        return proposal.reads % 2 == 0


@dataclasses.dataclass(frozen=True)
class Broken(Policy):
    def decide(self, proposal):
        return proposal.nothing


@dataclasses.dataclass(frozen=True)
class Shapeless(Policy):
    def decide(self, proposal):
        return proposal.log_probabilities > 0


@dataclasses.dataclass(frozen=True)
class Probable(Policy):
    def decide(self, proposal):
        return proposal.log_probabilities.exp().amax(1)


@dataclasses.dataclass(frozen=True)
class Ahead(Policy):
    k: float = 2.5

    def decide(self, proposal):
        return proposal.reads >= self.k


@dataclasses.dataclass(frozen=True)
class Counted(Policy):
    margin: float = 0.5
    n: int = 3

    def decide(self, proposal):
        return proposal.reads >= self.n


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strict(Policy):
    share: float
    least: int = 1

    def decide(self, proposal):
        return proposal.reads > 0


@dataclasses.dataclass(frozen=True)
class Reads(Policy):
    wants_proposals = False
    kind: str = "four"

    def next_reads(self, step, sentence, reads, lengths, rho):
        return {
            "four": lambda: lengths.clamp(max=4),
            "shrinking": lambda: lengths.clamp(max=max(1, 4 - step)),
            "beyond": lambda: lengths + 5,
            "failing": lambda: [][step],
            "shares": lambda: lengths / 2,
            "bools": lambda: lengths > 2,
        }[self.kind]()


class Other:
    pass


class Bare(Policy):
    wants_alignment: bool = False
    margin: float = 0.4
    floor: int = 1

    def decide(self, proposal):
        return proposal.reads > 0


@dataclasses.dataclass(frozen=True)
class Derived(Bare):
    most: int = 3


class Plain(Even):
    pass
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    import_files([path])
    return path


def test_a_policy_of_ones_own(own: Path) -> None:
    settings = read_policy("Margin margin=0.2,0.3 cap=4")
    assert [setting.title for setting in settings] == [
        "Margin margin = 0.2, cap = 4", "Margin margin = 0.3, cap = 4",
    ]  # fmt: skip
    writes = [_made(setting).writes(propose([HALF], [1])).tolist() for setting in settings]
    assert writes == [[True], [False]]  # it leads by a quarter
    assert [setting.value for setting in read_policy("Margin")] == [0.4]
    # One without settings is one point, and no offline one.
    (even,) = read_policy("Even")
    assert (even.title, even.slug, even.is_offline) == ("Even", "Even", False)
    assert even.values() == {"policy": "Even", "parameter": "", "value": 0.0}


def test_a_setting_without_a_default(own: Path) -> None:
    """It is described, and must have a value."""
    shown = [(each.name, each.default) for each in policy_settings("Strict")]
    assert shown == [("share", None), ("least", 1), ("floor", 0), ("cap", 0)]
    assert [setting.value for setting in read_policy("Strict share=0.3")] == [0.3]
    with pytest.raises(ConfigError, match=r"`share` of `Strict` has no default\. Give it a value"):
        read_policy("Strict")


def test_settings_that_may_be_infinite_need_not_be_whole(own: Path) -> None:
    """Those of named policies mostly must."""
    assert [setting.value for setting in read_policy("Ahead")] == [2.5]
    assert [setting.value for setting in read_policy("Ahead k=0.5..1.5:0.5")] == [0.5, 1.0, 1.5]
    assert [setting.value for setting in read_policy("Ahead k=1..2,inf")] == [1, 2, math.inf]
    assert policy_settings("Ahead")[0].kind == "number"
    (information,) = (each for each in policy_settings("wait-info") if each.name == "k")
    assert (information.kind, information.may_be_infinite) == ("number", True)
    assert read_policy("wait-info k=2.5,inf")[0].make() == WaitInfo(2.5)
    for text in "wait-k k=1.5", "hold-n n=1.5":
        with pytest.raises(ConfigError, match=r"`1.5` is not a whole number"):
            read_policy(text)


def test_only_the_swept_setting_may_be_infinite(own: Path) -> None:
    """Results have no infinity but that one's."""
    with pytest.raises(ConfigError, match="`Counted n`: `inf` is not a whole number"):
        read_policy("Counted margin=0.1 n=inf")
    (count,) = (each for each in policy_settings("Counted") if each.name == "n")
    assert (count.kind, count.may_be_infinite) == ("whole", False)
    (setting,) = read_policy("Counted margin=0.1 n=4")
    assert setting.values()["options"] == {"n": 4}


def test_the_file_may_stand_before_the_name(tmp_path: Path) -> None:
    path = tmp_path / "short.py"
    path.write_text(OWN.replace("Margin", "ShortForm"), encoding="utf-8")
    (setting,) = read_policy(f"{path}:ShortForm margin=0.2")
    assert (setting.policy, setting.value) == ("ShortForm", 0.2)
    assert expand([f"{path}:ShortForm margin=0.2"], []) == (["ShortForm margin=0.2"], [])
    with pytest.raises(ConfigError, match=r"does not define `ShortFrom`.*`ShortForm`"):
        read_policy(f"{path}:ShortFrom")
    with pytest.raises(ConfigError, match=r"There is no file .*absent\.py"):
        read_policy(f"{tmp_path / 'absent.py'}:ShortForm")


@pytest.mark.parametrize(
    "read", [lambda texts: expand(texts, []), lambda texts: read_settings(None, None, None, texts)]
)
def test_one_name_of_two_files_is_refused(tmp_path: Path, read: Any) -> None:
    """One after the other each stands for itself."""
    texts = []
    for number in (1, 2):
        path = tmp_path / f"{number}.py"
        path.write_text(OWN.replace("margin: float = 0.4", f"margin: float = 0.{number}"))
        texts.append(f"{path}:Margin")
    with pytest.raises(ConfigError, match=r"`Margin` is defined by two files: .*1\.py and .*2\.py"):
        read([f"{texts[0]} margin=0.2", f"{texts[1]} margin=0.2"])
    read([f"{texts[0]} margin=0.2", f"{texts[0]} margin=0.3"])
    for text, value in zip([*texts, texts[0]], (0.1, 0.2, 0.1), strict=True):
        assert [setting.value for setting in read_policy(text)] == [value]


def test_a_policy_with_the_name_of_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "named.py"
    path.write_text(OWN.replace("class Margin", "class edatt"), encoding="utf-8")
    try:
        for text in (f"{path}:edatt", "edatt"):
            with pytest.raises(ConfigError, match=r"named\.py:\d+: there are two .* `edatt`"):
                read_policy(text)
    finally:
        own_code._modules.pop(path)
    assert read_policy("edatt mass=0.5")


def test_a_setting_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="`confidence threshold` is given twice: write its val"):
        read_policy("confidence threshold=0.4 threshold=0.8")
    with pytest.raises(ConfigError, match=r"`confidence threshold` is given twice: name one value"):
        read_setting("confidence threshold=0.4 threshold=0.8")


def test_settings_after_a_colon_are_shown_as_they_are_written() -> None:
    with pytest.raises(ConfigError, match=r"follow the name after a space: `wait-k k=3`"):
        read_policy("wait-k:k=3")
    with pytest.raises(ConfigError, match=r"`nothing:k=3`\. Known: ") as caught:
        read_policy("nothing:k=3")
    assert "space" not in str(caught.value)


def test_an_infinite_setting_of_ones_own_is_not_offline(own: Path) -> None:
    """What it means is the policy's to say, in a batch as in a stream."""
    (setting,) = read_policy("Ahead k=inf")
    assert not setting.is_offline and read_policy("wait-k k=inf")[0].is_offline


def _check_streams(
    online: Translator, setting: Setting, pairs: Sequence[Sentence], batched: Decoded
) -> None:
    """Streams write the tokens of a batched decoding, after the same reads."""
    streams = StreamTranslator(online.models, online.pipeline, setting.make(), online.plan)
    for pair, outcome in zip(pairs, batched.outcomes, strict=True):
        line = streams.begin()
        for word in pair.words:
            line.read(word)
        line.end()
        assert line.target == outcome.units
        assert not pair.source or line.hypothesis().reads == outcome.reads


def test_the_policy_of_the_docs(project: Path, tmp_path: Path) -> None:
    page = (project / "docs" / "reading-policies.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) <= 40
    path = tmp_path / "margin.py"
    path.write_text(code, encoding="utf-8")
    import_files([path])
    setting = Setting("Margin", 0.2, (), "margin")
    online, pairs = translator("pervasive"), sentences()
    (decoded,) = OnlineDecoder(online).run(pairs, [setting])
    _check_streams(online, setting, pairs, decoded)
    with pytest.raises(ConfigError, match="`margin` must be from 0 to below 1"):
        read_policy("Margin margin=1.5")


def _made(setting: Setting) -> Agent:
    policy = setting.make()
    assert isinstance(policy, Agent)
    return policy


def _decide(name: str) -> Tensor:
    return _made(read_policy(name)[0]).writes(propose([HALF, HALF], [1, 1]))


def test_what_is_wrong_with_ones_own_policy_is_told(own: Path) -> None:
    for text, message in (
        ("Margn", "no reading policy `Margn`.*`Margin`.*--import FILE"),
        ("Other", r"own\.py:\d+: `Other` is not a reading policy: it must be a subclass"),
        (f"{own}:Other", "Write `class Other\\(Policy\\)`"),
        (
            "Bare",
            r"own\.py:\d+: the .* `Bare` is not a dataclass: `margin`, `floor` would be ignored",
        ),
        ("Bare margin=0.3", r"Write `@dataclasses.dataclass\(frozen=True\)` above `class Bare`"),
        ("Derived", "`Bare` is not a dataclass: `margin`, `floor` would be ignored"),
        ("Mute", "has no method `decide`"),
        (f"{own}:Margn", "own.py does not define `Margn`. Did you mean `Margin`"),
        (f"{own}", "names only a file. Name what it defines: `.*own.py:NAME`"),
        (f"{own}:", "names only a file"),
    ):
        with pytest.raises(ConfigError, match=f"(?s){message}"):
            read_policy(text)
    assert read_policy("Plain")[0].values()["policy"] == "Plain"  # nothing would be ignored
    with pytest.raises(ConfigError, match="`Broken` failed at target token 1: AttributeError"):
        _decide("Broken")
    with pytest.raises(ConfigError, match=r"tensor of bools \[2\].*returned \[2, 4\]"):
        _decide("Shapeless")
    with pytest.raises(ConfigError, match=r"tensor of bools \[2\].*returned \[2\] of float32"):
        _decide("Probable")


def test_several_unknown_names_are_all_told(own: Path) -> None:
    """Each with the nearest name; what to do is said once, if it is the same for all."""
    for read in (
        lambda texts: read_settings(None, None, None, texts),
        lambda texts: expand(texts, []),
    ):
        with pytest.raises(ConfigError) as caught:
            read(["confidnce", "Margn margin=0.2"])
        assert ["`confidence`" in fault for fault in caught.value.faults] == [True, False]
        assert ["`Margin`" in fault for fault in caught.value.faults] == [False, True]
        assert str(caught.value).count("--import FILE") == 1
        with pytest.raises(ConfigError) as caught:
            read(["confidnce", "Other"])
        assert "Did you mean `confidence`?" in caught.value.faults[0]
        assert "`Other` is not a reading policy" in caught.value.faults[1]
        assert not caught.value.advice


def test_settings_that_translate_offline() -> None:
    """More than half of the sentences read whole, unless the setting says so itself."""
    for text, late, expected in (
        ("confidence threshold=0.9", 10, True),
        ("confidence threshold=0.9", 6, True),
        ("confidence threshold=0.9", 5, False),
        ("hold-n n=8", 10, True),
        ("hold-n n=inf", 10, False),
        ("wait-k k=9", 10, False),
    ):
        assert reads_whole_source(read_policy(text)[0], late, 10) == expected
    assert not reads_whole_source(Setting("oracle", 0.0), 10, 10)
    assert not reads_whole_source(read_policy("confidence")[0], 0, 0)


def test_translations_that_end_at_the_limit() -> None:
    """4 + 1.5 |x| tokens, of each piece."""
    plan = SearchPlan(max_length_a=4, max_length_b=1.5)
    assert [ends_at_limit(length, [4], plan) for length in (9, 10, 11)] == [False, True, True]
    assert [ends_at_limit(length, [4, 2], plan) for length in (16, 17)] == [False, True]
    warning = length_limit_warning({"a": (10, 10), "b": (1200, 2000), "c": (5, 10), "d": (0, 0)})
    assert "model ends them: a in 10 of 10 sentences, b in 1,200 of 2,000 sentences. " in warning
    assert length_limit_warning({"c": (5, 10)}) == ""


def test_results_are_read_back(tmp_path: Path) -> None:
    """Also those of version 0.1.0, which had the parameter's own key alone."""
    setting = Setting("own.py:Margin", 0.3, (("cap", 4),), "margin")
    row = {"system": "a", "bleu_tokenized": 20.0, "latencies": []}
    old = {"policy": "wait-k", "k": None}
    rows = [row | setting.values(), row | Setting("wait-k", math.inf).values(), row | old]
    write_json(tmp_path / "results.json", with_checksum({"settings": rows}))
    read = [result.setting for result in read_online_results(tmp_path / "results.json")[0]]
    assert read == [setting, Setting("wait-k", math.inf), Setting("wait-k", math.inf)]
    assert read[0].label == "Margin"


@pytest.mark.parametrize(
    ("text", "same"),
    [("Reads kind=shrinking", "Reads kind=four"), ("Reads kind=beyond", "wait-k k=inf")],
)
def test_own_reads_never_shrink_nor_pass_the_end(own: Path, text: str, same: str) -> None:
    """In a batch, whose other sentences are longer, and in a stream."""
    online, pairs = translator("pervasive"), sentences()
    settings = [setting for each in (text, same) for setting in read_policy(each)]
    results, expected = OnlineDecoder(online).run(pairs, settings)
    assert [outcome.reads for outcome in results.outcomes] == [
        outcome.reads for outcome in expected.outcomes
    ]
    _check_streams(online, settings[0], pairs, results)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("failing", "`Reads` failed at target token 1: IndexError"),
        ("shares", r"`next_reads` of .* whole numbers \[\d\], .* of float32"),
        ("bools", r"`next_reads` of .* whole numbers \[\d\], .* of bool"),
    ],
)
def test_what_is_wrong_with_own_reads_is_told(own: Path, kind: str, message: str) -> None:
    (setting,), online = read_policy(f"Reads kind={kind}"), translator("pervasive")
    with pytest.raises(ConfigError, match=message):
        list(OnlineDecoder(online).run(sentences(), [setting]))
    line = StreamTranslator(online.models, online.pipeline, setting.make(), online.plan).begin()
    with pytest.raises(ConfigError, match=message):
        line.read("ab")
