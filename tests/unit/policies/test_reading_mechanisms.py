"""Information transport (ITST) and information of tokens (Wait-info): layers, models, training."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.convert import to_ctranslate2
from nmtgrid.data.batches import Batch, collate
from nmtgrid.layers.attention import attend
from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.layers.transformer.attention import SelfAttention
from nmtgrid.layers.transformer.information import InformationCache, with_information
from nmtgrid.layers.transformer.transport import Transport, TransportCache, reading_path
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites
from nmtgrid.models.transformer.config import TransformerConfig
from nmtgrid.models.transformer.model import Transformer
from nmtgrid.online.evaluate import OnlineDecoder
from nmtgrid.online.objectives.itst import (
    ITSTSettings,
    TransportLikelihood,
    latency_cost,
    norm_cost,
)
from nmtgrid.online.objectives.wait_info import InformationLikelihood, WaitInfoSettings
from nmtgrid.online.policies import ITST, Bounded, Policy, WaitInfo, WaitK
from nmtgrid.online.settings import KINDS, read_policy
from nmtgrid.online.stream import TokenStream
from nmtgrid.search.api import Agent, Hypothesis, Proposal, SearchPlan
from nmtgrid.search.engine import search
from nmtgrid.search.paths import wait_k
from nmtgrid.training.api import Objective
from nmtgrid.training.progress import StopRequest
from tests.invariants.cases import Case
from tests.invariants.helpers import batch_for, random_path
from tests.unit.helpers.tiny_online import translator
from tests.unit.helpers.tiny_run import trainer
from tests.unit.training.test_resume import run_until, same, saved

FORMS: dict[str, dict[str, Any]] = {
    "transport": {"reader": "transport", "encoder": "unidirectional"},
    "transport-marked": {
        "reader": "transport", "encoder": "window", "source_marker": "begin", "transparent": True,
    },
    "information": {"reader": "information", "encoder": "unidirectional"},
    "information-reencoded": {"reader": "information"},
    "information-blind": {
        "reader": "information", "encoder": "unidirectional", "source_marker": "none",
    },
}  # fmt: skip
every_form = pytest.mark.parametrize("form", FORMS)
OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "transport": lambda **changes: TransportLikelihood(ITSTSettings(**changes)),
    "information": lambda **changes: InformationLikelihood(WaitInfoSettings(**changes)),
}
SOURCES, TARGETS = (6, 2, 0, 9), (4, 3, 5, 6)
PLAN = SearchPlan(max_length_a=5, max_length_b=1)


def build(form: str, seed: int = 1, **changes: Any) -> Transformer:
    torch.manual_seed(seed)
    model = Case("transformer", tuple({**FORMS[form], **changes}.items())).build()
    assert isinstance(model, Transformer)
    return model


def policy_of(model: Transformer, value: float, **changes: Any) -> Policy:
    if model.traits.readiness == "transport":
        return ITST(value, **changes)
    return WaitInfo(value, **changes)


# Layers, against written-out references.


def test_a_reading_path_is_the_first_column_with_enough() -> None:
    received = torch.tensor([[[1.0, 2.0, 3.0, 3.0], [0.0, 1.0, 2.0, 2.0], [0.0, 0.0, 0.5, 0.5]]])
    is_source = torch.tensor([[True, True, True, False]])
    assert reading_path(received, 2.0, is_source).tolist() == [[2, 3, 3]]
    # Wait-1 at least, and never back; the source's end at most, padding not counted.
    assert reading_path(received, 0.5, is_source).tolist() == [[1, 2, 3]]
    assert reading_path(received.flip(1), 1.0, is_source).tolist() == [[3, 3, 3]]
    assert reading_path(received, torch.tensor([9.0]), is_source).tolist() == [[3, 3, 3]]
    before = torch.tensor([[3, 3, 3]])
    assert reading_path(received, 0.5, is_source, before).tolist() == [[3, 3, 3]]


def drawn_cache(heads: int = 2, blocks: int = 1) -> tuple[SourceCache, Tensor]:
    torch.manual_seed(4)
    pairs = [tuple(torch.randn(2, heads, 5, 4) for _ in range(blocks)) for _ in range(2)]
    mask = torch.zeros(2, 1, 1, 5)
    mask[1, :, :, 3:] = -math.inf
    return SourceCache(pairs[0], pairs[1], mask), torch.randn(2, heads, 3, 4)


def factored(cache: SourceCache, query: Tensor, factors: Tensor) -> Tensor:
    """Attention is multiplied by factors [B, T, S] and renormalised."""
    assert cache.mask is not None
    scores = query @ cache.keys[0].transpose(-1, -2) / 2.0 + cache.mask
    weights = scores.softmax(-1) * factors[:, None]
    return weights / weights.sum(-1, keepdim=True)


def test_attention_is_multiplied_by_transport_and_renormalised() -> None:
    cache, query = drawn_cache()
    network, states, features = Transport(8, 2, 1, 6), torch.randn(2, 5, 6), torch.randn(2, 3, 8)
    memory = TransportCache.over(network.with_keys(cache, states), network=network)
    memory.select(0, features)
    keys = states @ network.key_weight.T + network.key_bias
    product = network.query_maps[0](features) @ keys.transpose(1, 2) / math.sqrt(8)
    expected = factored(cache, query, product.sigmoid() + 1e-4)
    torch.testing.assert_close(memory.weights_all(0, query), expected)
    torch.testing.assert_close(memory.attend_all(0, query), expected @ cache.values[0])
    seen = torch.tensor([[1.0] * 5, [1.0, 1.0, 1.0, 0.0, 0.0]])[:, None]
    received = ((product.sigmoid() + 1e-4) * seen).sum(-1)
    torch.testing.assert_close(memory.received(), received)


def test_attention_is_consistent_with_information() -> None:
    cache, query = drawn_cache()
    source, target = 2 * torch.rand(2, 5), 2 * torch.rand(2, 3)
    memory = InformationCache.over(with_information(cache, source), target=target)
    memory.select(0, query)
    factors = 2 - (target[:, :, None] - source[:, None]).abs()
    torch.testing.assert_close(memory.weights_all(0, query), factored(cache, query, factors))
    torch.testing.assert_close(memory.read()[1], source[1, :3].sum().expand(3))


@pytest.mark.parametrize("causal", [False, True])
def test_a_token_attends_to_itself_by_its_information(causal: bool) -> None:
    torch.manual_seed(2)
    layer, features, focus = SelfAttention(8, 2, 0.0), torch.randn(2, 4, 8), torch.randn(2, 4)
    query, keys, values = (
        part.unflatten(-1, (2, 4)).transpose(1, 2) for part in layer.input_map(features).chunk(3, 2)
    )
    mask = torch.stack([torch.diag(row) for row in focus])[:, None]
    if causal:
        mask = mask + torch.full((4, 4), -math.inf).triu(1)
    expected = layer.output_map(attend(query, keys, values, mask).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(features, None, causal=causal, focus=focus), expected)


# Models.


@every_form
@pytest.mark.parametrize("is_single", [True, False])
def test_readiness_step_by_step_is_teacher_forced(form: str, is_single: bool) -> None:
    """With proposals before it the readiness is the largest: it does not fall as reads grow."""
    model = build(form)
    batch = batch_for(model, SOURCES, TARGETS)
    path = random_path(batch)
    expected = model.readiness(batch, path)
    state, before = model.begin(batch.source, batch.source_lengths), torch.ones_like(path[:, 0])
    for t in range(path.shape[1]):
        state = model.feed(batch.target_input[:, t], state)
        reads = path[:, t] if is_single else before.clone()
        step = model.propose(state, reads)
        assert step.readiness is not None and step.readiness.dtype is torch.float32
        readiness = step.readiness.clone()
        while len(rows := (reads < path[:, t]).nonzero()[:, 0]):
            reads = reads.index_add(0, rows, torch.ones_like(rows))
            step = model.propose(step.state, reads[rows], rows=rows)
            assert step.readiness is not None and (step.readiness >= readiness[rows]).all()
            readiness[rows] = step.readiness
        state, before, counts = model.accept(step.state), reads, batch.is_target[:, t]
        if is_single or model.traits.readiness == "information":
            torch.testing.assert_close(readiness[counts], expected[counts, t])
        assert (readiness >= expected[:, t] - 1e-5)[counts].all()


@every_form
def test_what_is_ready_does_not_depend_on_what_is_unread(form: str) -> None:
    model = build(form)
    batch = batch_for(model, (9, 9, 9), (5, 5, 5))
    path = (random_path(batch)).clamp(max=6)
    source = batch.source.clone()
    source[:, 6:9] = torch.randint(4, 19, (3, 3))
    other = dataclasses.replace(batch, source=source)
    torch.testing.assert_close(model.readiness(batch, path), model.readiness(other, path))


def searched(model: Transformer, batch: Batch, agent: Agent, beam: int = 1) -> list[Hypothesis]:
    plan = dataclasses.replace(PLAN, beam=beam)
    return [
        best[0] for best in search([model], batch.source, batch.source_lengths, plan, agent=agent)
    ]


@every_form
@pytest.mark.parametrize("beam", [1, 3])
def test_the_ends_of_the_policies(form: str, beam: int) -> None:
    """What needs nothing is its floor, what needs too much reads everything, a cap comes first."""
    model = build(form)
    batch = batch_for(model, SOURCES, TARGETS)
    floor = 1 if model.traits.readiness == "transport" else 9
    for policy, same_as in (
        (policy_of(model, 1e-9, floor=floor), WaitK(floor)),
        (policy_of(model, 1e3), WaitK(math.inf)),
        (policy_of(model, 1e3, cap=2), WaitK(2)),
    ):
        pairs = zip(
            searched(model, batch, policy, beam), searched(model, batch, same_as, beam), strict=True
        )
        for hypothesis, expected in pairs:
            assert (hypothesis.tokens, hypothesis.reads) == (expected.tokens, expected.reads)


@every_form
@pytest.mark.parametrize("value", [None, 0.5, 1.5])
def test_decoding_reads_as_in_training(form: str, value: float | None) -> None:
    """The objective's policy takes the path on which its validation computes the loss."""
    model = build(form)
    batch = batch_for(model, SOURCES, TARGETS)
    name = {"transport": "validate_delta", "information": "validate_k"}[model.traits.readiness]
    objective = OBJECTIVES[model.traits.readiness](**({} if value is None else {name: value}))
    policy = objective.agent()
    assert isinstance(policy, (ITST, WaitInfo))
    hypotheses = searched(model, batch, policy)
    tokens = [hypothesis.tokens for hypothesis in hypotheses]
    written = dataclasses.replace(
        collate(tokens, tokens), source=batch.source, source_lengths=batch.source_lengths
    )
    if isinstance(policy, ITST):
        path = model.features_with_transport(written, policy.delta)[-1]
    else:
        path = model.features_with_information(written, policy.k)[-1]
    for row, hypothesis in enumerate(hypotheses):
        assert hypothesis.reads == path[row, : len(hypothesis.tokens) + 1].tolist()
    # As many tokens are read as are written, if there are as many.
    least = wait_k(1, batch.source_lengths, path.shape[1])
    assert (path >= least)[written.is_target].all()


@every_form
def test_streaming_is_searching(form: str) -> None:
    """Token for token and delay for delay, for policies that read now much, now little."""
    model = build(form, seed=3)
    batch = batch_for(model, (6, 1, 8), (1, 1, 1))
    paths = set()
    for value in (0.8, 1.5, 2.5):
        policy = policy_of(model, value, cap=7)
        bounded = Bounded(policy, PLAN, model.traits.hides_source_end)
        for row, expected in enumerate(searched(model, batch, bounded)):
            stream = TokenStream([model], policy, PLAN)
            stream.read(batch.source[row, : int(batch.source_lengths[row]) - 1].tolist())
            stream.end()
            hypothesis = stream.hypothesis()
            assert (hypothesis.tokens, hypothesis.reads) == (expected.tokens, expected.reads)
            assert hypothesis.log_probabilities == pytest.approx(
                expected.log_probabilities, abs=1e-5
            )
            paths.add(tuple(hypothesis.reads or ()))
    assert len(paths) > 3


def test_an_ensemble_of_a_model_twice_is_that_model() -> None:
    model = build("information")
    batch = batch_for(model, SOURCES, TARGETS)
    policy = WaitInfo(2.0)
    (twice, *_) = search(
        [model, model], batch.source, batch.source_lengths, PLAN, agent=policy
    )[0]  # fmt: skip
    (expected, *_) = searched(model, batch, policy)
    assert (twice.tokens, twice.reads) == (expected.tokens, expected.reads)


# Training.


@pytest.mark.parametrize("form", ["transport", "transport-marked"])
def test_a_threshold_limits_what_is_seen(form: str) -> None:
    model = build(form)
    batch = batch_for(model, SOURCES, TARGETS)
    sites = PredictionSites.offline(batch)
    shape = batch.source_lengths, batch.target_input.shape[1]
    # Nothing is needed: wait-1. More than there is: everything.
    for threshold, k in ((1e-9, 1), (1e3, math.inf), (None, math.inf)):
        features, transport, limited = model.features_with_transport(batch, threshold)
        path = wait_k(k, *shape)
        assert torch.equal(limited, path)
        expected = model.features(batch, dataclasses.replace(sites, reads=path[batch.is_target]))
        torch.testing.assert_close(features, expected)
        assert transport.shape[1] == len(model.decoder)
        assert not transport[~batch.is_source[:, None, None].expand_as(transport)].any()
    # In between, the last block's path reaches the threshold and no earlier column does, but
    # where it goes on from a path before it.
    _, transport, path = model.features_with_transport(batch, 1.5)
    received = transport[:, -1].cumsum(-1)
    reached = received.gather(2, path[..., None] - 1)[..., 0]
    is_whole = path == batch.source_lengths[:, None]
    assert ((reached >= 1.5) | is_whole).all() and not is_whole.all()
    # No unread token changes a feature.
    whole = wait_k(math.inf, *shape)
    last = path[3].max()
    if last < whole[3, 0]:
        source = batch.source.clone()
        source[3, int(last)] = 5
        other = dataclasses.replace(batch, source=source)
        rows = sites.sentence == 3
        torch.testing.assert_close(
            model.features_with_transport(other, 1.5)[0][rows],
            model.features_with_transport(batch, 1.5)[0][rows],
        )


@pytest.mark.parametrize("form", [form for form in FORMS if form.startswith("information")])
def test_k_limits_what_is_seen(form: str) -> None:
    model = build(form)
    batch = batch_for(model, SOURCES, TARGETS)
    k = torch.tensor([1.0, 2.0, 3.0, 2.5])
    features, source, target, path = model.features_with_information(batch, k)
    expected = model.features(batch, PredictionSites.along(batch, path))
    torch.testing.assert_close(features, expected)
    for row in range(len(batch)):
        length = int(batch.source_lengths[row])
        for t in range(int(batch.target_lengths[row])):
            written = target[row, 1 : t + 1].sum()
            read = next(
                (n for n in range(1, length) if source[row, :n].sum() - written >= k[row]), length
            )
            assert path[row, t] == min(max(read, t + 1), length)
    whole, *_ = model.features_with_information(batch, None)
    torch.testing.assert_close(whole, model.features(batch, PredictionSites.offline(batch)))


def test_the_prices_of_transport() -> None:
    torch.manual_seed(6)
    transport, lengths = torch.rand(2, 3, 4, 5), (torch.tensor([5, 3]), torch.tensor([2, 4]))
    transport[1, :, :, 3:] = 0.0
    latency, norm = [0.0, 0.0], [0.0, 0.0]
    for b in range(2):
        size, height = int(lengths[0][b]), int(lengths[1][b])
        for block in range(3):
            for t in range(1, height + 1):
                row = transport[b, block, t - 1]
                norm[b] += abs(1 - float(row.sum())) / 3
                for j in range(1, size + 1):
                    cost = max(abs(j - t * size / height) - 1, 0) / (size * height)
                    latency[b] += cost * float(row[j - 1] / row.sum()) / 3
    assert latency_cost(transport, *lengths).tolist() == pytest.approx(latency, rel=1e-5)
    assert norm_cost(transport, lengths[1]).tolist() == pytest.approx(norm, rel=1e-5)


def test_the_threshold_falls_with_the_updates() -> None:
    settings = ITSTSettings(whole_source_updates=10, threshold_decay=20, least_threshold=0.4)
    assert settings.threshold(9) is None
    assert settings.threshold(20) == pytest.approx(0.4 + 0.6 / math.e)
    assert settings.threshold(10**6) == pytest.approx(0.4)


@pytest.mark.parametrize("reader", OBJECTIVES)
def test_a_loss_is_likelihood_and_prices(reader: str) -> None:
    """In training and validation; the parts of the mechanism learn from each of them."""
    model = build(reader)
    batch = batch_for(model, SOURCES, TARGETS)
    if reader == "transport":
        changes, threshold = {"latency_weight": 0.7, "norm_weight": 0.2, "validate_delta": 0.8}, 0.8
        features, transport, _ = model.features_with_transport(batch, 0.8)
        price = 0.7 * latency_cost(transport, batch.source_lengths, batch.target_lengths).sum()
        price = price + 0.2 * norm_cost(transport, batch.target_lengths).sum()
        prefixes: tuple[str, ...] = ("transport.",)
    else:
        changes, threshold = {"sum_weight": 0.4, "validate_k": 2.0}, 2.0
        features, source, target, _ = model.features_with_information(batch, 2)
        price = torch.zeros(())
        for b, (n, m) in enumerate(zip(SOURCES, TARGETS, strict=True)):
            sums = source[b, :n].sum(), target[b, 1 : m + 1].sum()
            price = price + 0.4 * sum(abs(value - (n + m) / 2) for value in sums)
        prefixes = ("source_information.", "target_information.")
    objective = OBJECTIVES[reader](label_smoothing=0.0, **changes)
    parts, agent = objective.loss(model, batch), objective.agent()
    assert isinstance(agent, ITST | WaitInfo)
    assert (agent.delta if isinstance(agent, ITST) else agent.k) == threshold
    logs = model.classify(features).log_softmax(-1)
    nll = -logs.gather(1, batch.target_output[batch.is_target][:, None]).sum()
    torch.testing.assert_close(parts.nll, nll.detach())
    torch.testing.assert_close(parts.criterion, (nll + price).detach())
    torch.testing.assert_close(parts.total, nll + price)
    for loss in (nll, price):
        parameters = [p for name, p in model.named_parameters() if name.startswith(prefixes)]
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
        assert all(gradient.abs().sum() > 0 for gradient in gradients)
    model.train()
    # Early in a training all of the source is seen, whatever is drawn.
    early, late = (
        OBJECTIVES[reader](whole_source_updates=3).loss(
            model, dataclasses.replace(batch, update=update)
        )
        for update in (2, 3)
    )
    assert early.extra["reads"] == batch.target_lengths.sum() and early.criterion is None
    assert late.extra["reads"] <= early.extra["reads"]


@pytest.mark.parametrize("reader", OBJECTIVES)
def test_a_resumed_training_goes_on_with_its_curriculum(reader: str, tmp_path: Path) -> None:
    """2 + 2 updates are 4, bit for bit, across the end of the whole source."""
    changes = {"whole_source_updates": 1}
    if reader == "transport":
        changes |= {"threshold_decay": 1}

    def begin(folder: str, seed: int, stop: StopRequest | None = None) -> Any:
        run = trainer(
            tmp_path / folder, seed=seed, stop=stop, model=build(reader, seed, dropout=0.2)
        )
        run.trained.objective = OBJECTIVES[reader](**changes)
        return run

    whole = begin("whole", 1)
    list(whole.run())
    stop = StopRequest()
    first = begin("parts", 1, stop)
    run_until(first, stop, 2)
    second = begin("parts", 99)
    assert second.resume()
    list(second.run())
    assert same(saved(whole), saved(second))


def test_weights_without_a_mechanism_begin_one(tmp_path: Path) -> None:
    for form, parts in (("transport", "transport."), ("information", "_information.")):
        lacking = build(form).counterparts()
        names = {name for name in build(form).state_dict() if parts in name}
        assert names and lacking == dict.fromkeys(names)


# Policies and refusals.


def propose(readiness: list[float]) -> Proposal:
    rows = torch.arange(len(readiness))
    logs = torch.zeros(len(readiness), 3)
    return Proposal(0, rows, rows + 1, logs, readiness=torch.tensor(readiness))


def test_policies_write_from_their_threshold_on() -> None:
    proposal = propose([0.4, 0.5, 2.0])
    assert ITST(0.5).writes(proposal).tolist() == [False, True, True]
    assert WaitInfo(2).writes(proposal).tolist() == [False, False, True]
    assert WaitInfo(2, cap=2).writes(proposal).tolist() == [False, True, True]
    # With two tokens written three are read, or all of a shorter source.
    reads, lengths = torch.tensor([1, 1, 4]), torch.tensor([9, 2, 9])
    for policy, least in (
        (ITST(), [3, 2, 4]), (WaitInfo(), [3, 2, 4]),
        (ITST(floor=0), [1, 1, 4]), (WaitInfo(floor=0), [1, 1, 4]),
    ):  # fmt: skip
        assert policy.next_reads(2, reads, reads, lengths, None).tolist() == least
    assert [setting.make() for setting in read_policy("itst delta=0.3 floor=2 cap=5")] == [
        ITST(0.3, floor=2, cap=5)
    ]
    assert read_policy("wait-info k=4")[0].make() == WaitInfo(4)


@pytest.mark.parametrize("make", [lambda: ITST(0.0), lambda: ITST(math.nan), lambda: WaitInfo(-1)])
def test_policies_refuse_what_needs_nothing(make: Callable[[], Policy]) -> None:
    with pytest.raises(ConfigError, match="must be a number above 0"):
        make()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reader": "transport"}, "each READ changes the encoding of earlier tokens"),
        ({"reader": "transport", "encoder": "window", "exits": "tied"}, "exit before the last one"),
        ({"reader": "information", "exits": "separate"}, "exit before the last one"),
    ],
)
def test_models_that_have_no_meaning(changes: dict[str, Any], message: str) -> None:
    (fault,) = TransformerConfig(**changes).faults()
    assert message in fault


def test_models_without_a_mechanism_refuse() -> None:
    torch.manual_seed(1)
    plain = zoo.build("transformer", "toy", source_vocab_size=9, target_vocab_size=9)
    batch = batch_for(plain, (3,), (2,))
    for refused in (
        lambda: OBJECTIVES["transport"]().check(build("information")),
        lambda: OBJECTIVES["information"]().check(plain),
        lambda: plain.features_with_transport(batch, None),
        lambda: plain.features_with_information(batch, None),
        lambda: plain.readiness(batch, batch.target_lengths[:, None]),
        lambda: TokenStream([build("information")], ITST(0.5), PLAN),
        lambda: searched(build("transport"), batch, WaitInfo(2)),
    ):
        with pytest.raises(ConfigError, match="does not have the reading mechanism"):
            refused()
    with pytest.raises(ConfigError, match="cannot be exported"):
        to_ctranslate2.check(build("information-reencoded"))


@pytest.mark.parametrize("reader", ["none", *OBJECTIVES])
def test_policies_of_other_mechanisms_are_left_out(reader: str) -> None:
    decoder = OnlineDecoder(translator("transformer", reader=reader))
    possible = {"transport": "itst", "information": "wait-info"}
    for name in possible.values():
        (setting, *_) = read_policy(name)
        faults = decoder.faults([setting])
        assert faults == [] if possible.get(reader) == name else "mechanism" in faults[0]
        assert KINDS[name].label == name


def test_settings_out_of_range() -> None:
    for settings in (
        ITSTSettings(threshold_decay=0), ITSTSettings(least_threshold=1.5),
        ITSTSettings(norm_weight=-1), WaitInfoSettings(validate_k=0),
        WaitInfoSettings(sum_weight=math.inf),
    ):  # fmt: skip
        assert len(settings.faults()) == 1
