"""Recorded steps find what plain steps find, whatever comes and goes; the recorder is a stand-in.

On a GPU the same searches run from CUDA graphs.
"""

import dataclasses
import math
from typing import Any

import pytest
import torch

from benchmarks.decoding_speed import EndsAt
from nmtgrid.models import zoo
from nmtgrid.models.api import TranslationModel
from nmtgrid.search import beams, engine, select
from nmtgrid.search import cuda_graphs as graphs_module
from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.search.constraints import ForcedPrefix
from nmtgrid.search.cuda_graphs import Graphs, Recorder, _CastWeights, pad_groups
from nmtgrid.search.engine import search
from nmtgrid.text.vocabulary import END, PAD
from tests.unit.search.recording import Recordings

SMALL: dict[str, Any] = {"size": 8, "feed_forward_size": 12, "heads": 2, "output_bias": True}
GRID: dict[str, Any] = {"depth": 2, "size": 8, "feed_forward_size": 12, "target_kernel": 5,
                        "source_kernel": 3}  # fmt: skip
DENSE: dict[str, Any] = {"depth": 3, "embedding_size": 8, "growth": 4, "kernel": 3}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("transformer", {**SMALL, "encoder_depth": 1, "decoder_depth": 2}),
    "learned positions": ("transformer", {**SMALL, "encoder_depth": 1, "decoder_depth": 1,
                                          "positions": "learned", "max_positions": 20}),
    "pre-norm": ("transformer", {**SMALL, "encoder_depth": 1, "decoder_depth": 2, "norm": "pre",
                                 "source_marker": "begin"}),
    "pervasive": ("pervasive", GRID),
    "dense": ("pervasive", {**GRID, "skip": "dense", "aggregation": "max"}),
    "online": ("pervasive", {**GRID, "source_causal": True, "online_features": "cell"}),
    "densenet": ("pervasive-densenet", DENSE),
}  # fmt: skip
PLANS = {
    "greedy": SearchPlan(max_length_a=4.0, max_length_b=3.0),
    "beam": SearchPlan(beam=3, nbest=3, max_length_a=4.0, max_length_b=3.0),
    "samples": SearchPlan(sample=True, nbest=3, seed=5, max_length_a=4.0, max_length_b=3.0),
}


def build(name: str, seed: int = 1) -> TranslationModel:
    """Return a model that writes sentences of very different lengths."""
    torch.manual_seed(seed)
    architecture, settings = MODELS[name]
    model = zoo.build(architecture, None, settings, source_vocab_size=14, target_vocab_size=13)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        bias = model.classifier().bias
        assert bias is not None
        bias[END] += 1.0
    return model.eval()


def draw(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sources of these lengths, the end symbol counted, and the lengths."""
    source = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in enumerate(lengths):
        source[row, : length - 1] = torch.randint(3, 14, (length - 1,))
        source[row, length - 1] = END
    return source, torch.tensor(lengths)


def assert_same(actual: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        assert [mine.tokens for mine in ours] == [other.tokens for other in theirs]
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.score == pytest.approx(other.score, abs=1e-5)
            assert (mine.alignment is None) == (other.alignment is None)
            if mine.alignment is not None and other.alignment is not None:
                torch.testing.assert_close(mine.alignment, other.alignment, rtol=1e-4, atol=1e-5)


SOURCES = [[3, 7, 2, 9, 12, 5, 1], [1], [5, 3, 3, 7, 10, 2, 12]]


@pytest.fixture(autouse=True)
def _record_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "_EAGER_STEPS", 0)
    # Searches move to smaller slots even where that saves no time.
    monkeypatch.setattr(graphs_module, "_FREE_CELLS", 0)
    # What is recorded must not look at tensors, as the CPU does otherwise.
    for module in (beams, engine, select):
        monkeypatch.setattr(module, "is_on_cpu", lambda tensor: False)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("name", MODELS)
def test_the_same_translations(name: str, plan: SearchPlan) -> None:
    model, recordings = build(name), Recordings()
    graphs = Graphs(recordings)
    for lengths in SOURCES:
        source, sizes = draw(lengths)
        expected = search([model], source, sizes, plan)
        assert_same(search([model], source, sizes, plan, graphs=graphs), expected)
    assert recordings.replayed > recordings.count > 0


@pytest.mark.parametrize("name", ["transformer", "pervasive"])
def test_alignments_and_several_models(name: str) -> None:
    model, other = build(name), build(name, seed=2)
    source, sizes = draw([3, 7, 2, 9, 12])
    graphs = Graphs(Recordings())
    plan = SearchPlan(beam=2, coverage_penalty=0.2)
    for models in ([model, other], [model, model]):
        expected = search(models, source, sizes, plan, align=True)
        assert_same(search(models, source, sizes, plan, align=True, graphs=graphs), expected)


class _Odd:
    """Rules even tokens out in rows of even length."""

    def apply(
        self, log_probabilities: torch.Tensor, step: int | torch.Tensor, sentence: torch.Tensor
    ) -> torch.Tensor:
        if step % 2 == 0:
            log_probabilities[:, END + 2 :: 2] = -math.inf
        return log_probabilities


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_constraints_are_recorded_or_nothing_is(plan: SearchPlan) -> None:
    model, recordings = build("transformer"), Recordings()
    graphs, plan = Graphs(recordings), dataclasses.replace(plan, min_length=3)
    # The second prefixes are longer, yet of the same padded width: the same recording serves both.
    for prefixes in ([[5, 7, 4, 8], [], [9], []], [[], [6, 6, 5, 4, 9], [], [3]]):
        source, sizes = draw([3, 7, 2, 9])
        rules = [ForcedPrefix(prefixes, torch.device("cpu"))]
        expected = search([model], source, sizes, plan, constraints=rules)
        recorded = search([model], source, sizes, plan, constraints=rules, graphs=graphs)
        assert_same(recorded, expected)
        for prefix, hypotheses in zip(prefixes, recorded, strict=True):
            assert hypotheses[0].tokens[: len(prefix)] == prefix
    assert recordings.replayed > recordings.count > 0
    replayed = recordings.replayed
    expected = search([model], source, sizes, plan, constraints=[_Odd()])
    assert_same(search([model], source, sizes, plan, constraints=[_Odd()], graphs=graphs), expected)
    assert recordings.replayed == replayed


@pytest.mark.parametrize("name", ["transformer", "pervasive"])
def test_another_batch_of_the_same_shape_records_nothing(name: str) -> None:
    model, recordings = build(name), Recordings()
    graphs = Graphs(recordings)
    plan = SearchPlan(beam=2, min_length=8, max_length_a=8.0, max_length_b=0.0)
    search([model], *draw([3, 7, 5, 6, 2]), plan, graphs=graphs)
    assert recordings.count == 1
    for lengths in ([8, 2, 6, 6, 6, 7], [4, 5, 8, 8, 8, 8, 8, 2]):
        source, sizes = draw(lengths)
        recorded = search([model], source, sizes, plan, graphs=graphs)
        assert_same(recorded, search([model], source, sizes, plan))
    assert recordings.count == 1


@pytest.mark.parametrize(
    ("free", "width", "rows"),
    # Nine sentences of up to 8 tokens are padded to 16 groups, and one goes on after four steps.
    [(0, 1, 4), (8 * 8 - 1, 1, 4), (8 * 8, 1, 8), (16 * 8 - 1, 1, 8), (16 * 8, 1, 16),
     (10_000, 1, 16), (0, 2, 8), (8 * 2 * 8, 2, 16), (16 * 2 * 8, 2, 32)],
)  # fmt: skip
def test_few_rows_are_not_made_fewer(
    free: int, width: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs_module, "_FREE_CELLS", free)
    model, counts = build("pervasive"), []
    step = model.step

    def count(tokens: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        counts.append(len(tokens))
        return step(tokens, *arguments, **named)

    monkeypatch.setattr(model, "step", count)
    source, sizes = draw([3, 7, 5, 6, 2, 4, 4, 4, 4])
    ends = EndsAt(torch.tensor([11] + [3] * 8))
    plan = SearchPlan(beam=width, max_length_a=20.0)
    # Nothing is replayed, so that each step calls the model.
    graphs = Graphs(lambda fn, prepare: fn)
    search([model], source, sizes, plan, constraints=[ends], graphs=graphs)
    # The first step is not recorded, and a beam begins as one row.
    assert counts == [9] + [16 * width] * 3 + [rows] * 8


@pytest.mark.parametrize("name", ["transformer", "pervasive"])
def test_a_shape_is_recorded_once_it_has_come_often(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs_module, "_EAGER_STEPS", 8)
    model, recordings = build(name), Recordings()
    graphs = Graphs(recordings)
    plan = SearchPlan(min_length=5, max_length_a=5.0, max_length_b=0.0)
    counts = []
    for lengths in ([3, 7], [8, 2], [4, 4]):
        source, sizes = draw(lengths)
        recorded = search([model], source, sizes, plan, graphs=graphs)
        assert_same(recorded, search([model], source, sizes, plan))
        counts.append((recordings.count, recordings.replayed))
    # Six steps each, the first before there are caches: the ninth of the others is the fourth of
    # the second search's five.
    assert counts == [(0, 0), (1, 2), (1, 7)]


class _RunsOut:
    """A recorder whose memory runs out once."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, fn: Any, prepare: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return fn


def test_memory_that_runs_out_costs_the_other_shapes(messages: list[str]) -> None:
    model, recorder = build("transformer"), _RunsOut()
    source, sizes = draw([3, 7])
    graphs = Graphs(recorder)
    search([model], source, sizes, PLANS["greedy"], graphs=graphs)
    assert recorder.calls >= 2 and not messages


def test_buffers_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "_MOST_BYTES", 1)
    model, recordings = build("transformer"), Recordings()
    graphs = Graphs(recordings)
    for lengths in ([3, 7], [12, 2], [3, 7]):
        source, sizes = draw(lengths)
        search([model], source, sizes, PLANS["greedy"], graphs=graphs)
        assert len(graphs._slots) == 1


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", ["transformer", "pervasive"])
def test_long_translations_and_few_slots(
    name: str, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Past the 32 tokens that a cache first has room for, a ring turning many times.
    monkeypatch.setattr(graphs_module, "_MOST_SLOTS", 1)
    model, recordings = build(name), Recordings()
    plan = SearchPlan(min_length=35, max_length_a=40.0, max_length_b=0.0)
    source, sizes = draw([3, 7])
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        (plain, *_), (recorded, *_) = (
            search([model], source, sizes, plan, graphs=graphs)[0]
            for graphs in (None, Graphs(recordings))
        )
    assert len(recorded.tokens) >= 35
    assert recordings.count == (2 if name == "transformer" else 1)
    if not bf16:  # in bfloat16 two ways of adding may choose between near ties
        assert recorded.tokens == plain.tokens


def test_what_cannot_be_recorded_is_computed(messages: list[str]) -> None:
    def refuse(fn: Any, prepare: Any) -> Any:
        prepare()
        fn()
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    model, graphs = build("transformer"), Graphs(refuse)
    for lengths in SOURCES[:2]:
        source, sizes = draw(lengths)
        expected = search([model], source, sizes, PLANS["beam"])
        assert_same(search([model], source, sizes, PLANS["beam"], graphs=graphs), expected)
    assert messages == [
        "cuda-graphs: steps of decoding are not recorded "
        "(operation not permitted when stream is capturing)."
    ]


UNRECORDED = {
    "convs2s": {"encoder_depth": 1, "decoder_depth": 1, "size": 8},
    "bilstm": {"encoder_depth": 1, "decoder_depth": 1, "size": 8},
    "convrnn": {},
}


def build_unrecorded(name: str) -> TranslationModel:
    """Return a model of an architecture whose states have no fixed form."""
    torch.manual_seed(1)
    preset = None if UNRECORDED[name] else "toy"
    model = zoo.build(name, preset, UNRECORDED[name], source_vocab_size=14, target_vocab_size=13)
    return model.eval()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", UNRECORDED)
def test_states_without_a_fixed_form_step_as_ever(name: str, device: str) -> None:
    model, recordings = build_unrecorded(name), Recordings()
    source, lengths = draw([3, 6])
    expected = search([model], source, lengths, PLANS["beam"])
    model, source, lengths = model.to(device), source.to(device), lengths.to(device)
    graphs = Graphs(recordings) if device == "cpu" else Graphs(Recorder(torch.device(device)))
    actual = search([model], source, lengths, PLANS["beam"], graphs=graphs)
    for mine, theirs in zip(actual, expected, strict=True):
        assert [hypothesis.tokens for hypothesis in mine] == [other.tokens for other in theirs]
    if device == "cpu":
        assert_same(actual, expected)
        assert recordings.count == 0


@torch.no_grad()
def test_weights_are_cast_once() -> None:
    weight, other = (torch.nn.Parameter(torch.randn(4, 6)) for _ in range(2))
    views = [weight, weight.t(), weight[:2], weight[2:], other]
    casts = _CastWeights()
    with casts:
        first = [view.to(torch.bfloat16) for view in views]
        again = [view.to(torch.bfloat16) for view in views]
        half = weight.to(torch.float16)
    assert [cast.data_ptr() for cast in again] == [cast.data_ptr() for cast in first]
    assert len({cast.data_ptr() for cast in [*first, half]}) == len(views) + 1
    for view, cast in zip(views, again, strict=True):
        assert torch.equal(cast, view.to(torch.bfloat16))


@torch.no_grad()
def test_what_is_no_weight_is_cast_anew() -> None:
    states = torch.zeros(3)
    with _CastWeights():
        assert states.to(torch.bfloat16).tolist() == [0.0] * 3
        states += 1
        assert states.to(torch.bfloat16).tolist() == [1.0] * 3


@torch.no_grad()
def test_casts_in_the_memory_of_a_recording_are_not_kept() -> None:
    before, inside = (torch.nn.Parameter(torch.randn(4)) for _ in range(2))
    casts = _CastWeights()
    with casts:
        kept = before.to(torch.bfloat16)
        casts.is_recording = True
        assert before.to(torch.bfloat16).data_ptr() == kept.data_ptr()
        recorded = inside.to(torch.bfloat16)
        casts.is_recording = False
        later = inside.to(torch.bfloat16)
        assert later.data_ptr() != recorded.data_ptr()
        assert inside.to(torch.bfloat16).data_ptr() == later.data_ptr()


def test_groups_are_made_up_to_powers_of_two() -> None:
    assert pad_groups(torch.arange(3), 1).tolist() == [0, 1, 2, 0]
    assert pad_groups(torch.arange(4), 1).tolist() == [0, 1, 2, 3]
    assert pad_groups(torch.arange(10), 2).tolist() == [*range(10), 0, 0, 0, 0, 0, 0]
    assert len(pad_groups(torch.arange(17), 1)) == 32


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU alone")
def test_on_a_gpu_that_is_not_the_current_one() -> None:
    device = torch.device("cuda:1")
    model, (source, sizes) = build("transformer").to(device), draw([3, 7, 5])
    source, sizes = source.to(device), sizes.to(device)
    recorded = search([model], source, sizes, PLANS["beam"], graphs=Graphs(Recorder(device)))
    assert_same(recorded, search([model], source, sizes, PLANS["beam"]))


@pytest.mark.gpu
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("name", MODELS)
def test_on_a_gpu(name: str, plan: SearchPlan, bf16: bool) -> None:
    model, graphs = build(name).cuda(), Graphs(Recorder(torch.device("cuda")))
    for lengths in SOURCES:
        source, sizes = (tensor.cuda() for tensor in draw(lengths))
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            expected = search([model], source, sizes, plan)
            actual = search([model], source, sizes, plan, graphs=graphs)
        if not bf16:
            assert_same(actual, expected)
        assert [len(group) for group in actual] == [len(group) for group in expected]
