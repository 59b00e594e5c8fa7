"""Monotonic heads against enumeration, written-out recursions, and searches of each other."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.arrays import save_tensors
from nmtgrid.data.batches import Batch, collate
from nmtgrid.layers.transformer.monotonic import (
    expected_alignment,
    hard_positions,
    lookback_attention,
)
from nmtgrid.metrics.latency import sentence_latency
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites
from nmtgrid.models.directory import load_weights
from nmtgrid.models.transformer.model import Transformer
from nmtgrid.online.objectives.mma import (
    MMASettings,
    MonotonicLikelihood,
    head_variance,
    lagging,
    weighted_delays,
)
from nmtgrid.online.policies import Bounded, Monotonic, WaitK
from nmtgrid.online.stream import TokenStream
from nmtgrid.search.api import Agent, Hypothesis, SearchPlan
from nmtgrid.search.engine import search
from nmtgrid.text.vocabulary import BEGIN, END
from tests.unit.helpers.tiny_transformer import tiny

SIZES = [(1, 1), (1, 4), (4, 1), (2, 3), (3, 4)]
PLAN = SearchPlan(max_length_a=4, max_length_b=1)
SOURCES = [[4, 5, 6, 7, 8, 9], [9, 8], [7], [5, 10, 4, 11, 6, 6, 8, 4]]
BATCH = collate(SOURCES, [[4, 5, 6], [6, 7, 4, 9], [8], [10, 4, 5, 5, 7]])


def drawn(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return scale * torch.randn(shape, dtype=dtype, generator=generator)


def by_enumeration(probabilities: Tensor) -> Tensor:
    """Return alpha [T, S]: every monotone sequence of positions, and how likely it is."""
    rows, columns = probabilities.shape
    alpha = torch.zeros_like(probabilities)
    for length in range(1, rows + 1):
        for path in itertools.combinations_with_replacement(range(columns), length):
            likelihood, before = torch.ones((), dtype=probabilities.dtype), 0
            for row, position in enumerate(path):
                passed = probabilities[row, before:position]
                likelihood = likelihood * (1 - passed).prod() * probabilities[row, position]
                before = position
            alpha[length - 1, path[-1]] += likelihood
    return alpha


def by_recursion(probabilities: Tensor) -> Tensor:
    """Return alpha [T, S] as Raffel et al. (2017) define it, cell by cell."""
    alpha = torch.zeros_like(probabilities)
    for i, row in enumerate(probabilities):
        reached = 0.0
        for j, p in enumerate(row.tolist()):
            came = float(alpha[i - 1, j]) if i else float(j == 0)
            passed = 1 - float(row[j - 1]) if j else 0.0
            reached = passed * reached + came
            alpha[i, j] = p * reached
    return alpha


@pytest.mark.parametrize("size", SIZES)
def test_expected_alignment_is_enumeration(size: tuple[int, int]) -> None:
    probabilities = drawn(2, 2, *size).sigmoid()
    alpha = expected_alignment(probabilities)
    for cell in itertools.product(range(2), range(2)):
        torch.testing.assert_close(
            alpha[cell], by_enumeration(probabilities[cell]), rtol=0, atol=1e-10
        )
    assert bool((alpha.sum(-1) <= 1 + 1e-12).all())


@pytest.mark.parametrize(("scale", "dtype"), [(1.0, torch.float64), (30.0, torch.float32)])
def test_expected_alignment_is_the_recursion(scale: float, dtype: torch.dtype) -> None:
    """In float32 too where most probabilities are 0 or 1, which is where quotients overflow."""
    probabilities = drawn(40, 60, scale=scale, dtype=dtype).sigmoid().requires_grad_()
    alpha = expected_alignment(probabilities)
    expected = by_recursion(probabilities.detach().double()).to(dtype)
    limit = 1e-10 if dtype is torch.float64 else 1e-5
    torch.testing.assert_close(alpha.detach(), expected, rtol=0, atol=limit)
    alpha.square().sum().backward()
    assert probabilities.grad is not None and bool(probabilities.grad.isfinite().all())


def test_a_last_position_that_is_always_selected_keeps_all_mass() -> None:
    probabilities = drawn(5, 7).sigmoid()
    probabilities[:, -1] = 1.0
    torch.testing.assert_close(expected_alignment(probabilities).sum(-1), torch.ones(5).double())


@pytest.mark.parametrize(("scale", "dtype"), [(1.0, torch.float64), (1e4, torch.float32)])
def test_lookback_is_the_mean_of_softmaxes(scale: float, dtype: torch.dtype) -> None:
    """Over where the head stands: of each, the softmax over all columns up to there."""
    alpha = drawn(3, 4, 6, dtype=dtype).softmax(-1)
    energies = drawn(3, 4, 6, scale=scale, dtype=dtype)
    energies[1, :, 4:] = -torch.inf  # not read: nobody stands there
    alpha[1, :, 4:] = 0.0
    expected = torch.zeros_like(alpha)
    for column in range(6):
        shares = energies[..., : column + 1].softmax(-1)
        expected[..., : column + 1] += alpha[..., column, None] * shares
    limit = 1e-10 if dtype is torch.float64 else 1e-3  # float32 has 1e-3 of energies of 1e4
    torch.testing.assert_close(lookback_attention(alpha, energies), expected, rtol=0, atol=limit)


def test_gradients() -> None:
    probabilities, energies = drawn(2, 3, 4).sigmoid(), drawn(2, 3, 4)
    assert torch.autograd.gradcheck(expected_alignment, probabilities.requires_grad_())
    both = probabilities.detach().clone().requires_grad_(), energies.requires_grad_()
    assert torch.autograd.gradcheck(lookback_attention, both)


def test_hard_positions_are_the_first_selected_from_the_last_one_on() -> None:
    selects = drawn(3, 5, 7) > 0.5
    selects[..., -1] = True
    for rows, path in zip(selects, hard_positions(selects), strict=True):
        standing = 0
        for row, position in zip(rows.tolist(), path.tolist(), strict=True):
            standing = next(j for j in range(standing, 7) if row[j])
            assert position == standing


# The Transformer's heads.


def monotonic(**changes: Any) -> Transformer:
    """Return a model whose heads stay, move on and wait for the end: energies of some size."""
    changes = {"encoder": "unidirectional", "selection_noise": 0.0} | changes
    model = sharpened(tiny(reader="monotonic", **changes), 3)
    assert model.monotonic_heads is not None
    with torch.no_grad():
        model.monotonic_heads.bias.uniform_(-2.0, 0.0)
    return model


def sharpened(model: Transformer, factor: float) -> Transformer:
    """Return the model with all energies of selection multiplied."""
    assert model.monotonic_heads is not None
    with torch.no_grad():
        for parameter in model.monotonic_heads.query_maps.parameters():
            parameter.mul_(factor)
        model.monotonic_heads.bias.mul_(factor)
    return model


FORMS: list[dict[str, Any]] = [
    {},
    {"encoder": "window", "window": 3, "norm": "pre"},
    {"source_marker": "begin", "transparent": True},
    {"source_marker": "add-zero", "alignment": "mean", "encoder_size": 12},
]
every_form = pytest.mark.parametrize("form", FORMS, ids=str)


def delays_of(model: Transformer, batch: Batch) -> Tensor:
    return model.features_with_delays(batch, PredictionSites.offline(batch))[1]


@every_form
def test_heads_that_are_certain_expect_what_they_choose(form: dict[str, Any]) -> None:
    """Training by expectations is evaluation by choices where probabilities are 0 and 1."""
    model = sharpened(monotonic(**form, transparent_dropout=0.0), 1e5).double()
    sites = PredictionSites.offline(BATCH)
    chosen, chosen_delays = model.features_with_delays(BATCH, sites)
    expected, expected_delays = model.train().features_with_delays(BATCH, sites)
    torch.testing.assert_close(expected, chosen, rtol=0, atol=1e-8)
    at = sites.sentence, slice(None), sites.position
    assert torch.equal(expected_delays[at].round().float(), chosen_delays[at])
    assert len(chosen_delays[at].unique()) > 3


def test_noise_is_drawn_in_training_alone() -> None:
    model = monotonic(selection_noise=1.0)
    assert torch.equal(delays_of(model, BATCH), delays_of(model, BATCH))
    model.train()
    assert not torch.equal(delays_of(model, BATCH), delays_of(model, BATCH))


def searched(model: Transformer, agent: Agent | None) -> list[Hypothesis]:
    lists = search([model], BATCH.source, BATCH.source_lengths, PLAN, agent=agent)
    return [best for (best,) in lists]


@every_form
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
def test_the_policy_writes_what_offline_decoding_does(
    form: dict[str, Any], threshold: float
) -> None:
    """And no later than its foremost head has gone, so a floor changes reads alone."""
    model = monotonic(**form)
    online = searched(model, Monotonic(threshold))
    offline = searched(model, Monotonic(threshold, floor=99))
    assert [h.tokens for h in online] == [h.tokens for h in offline]
    for first, second in zip(online, offline, strict=True):
        assert first.log_probabilities == pytest.approx(second.log_probabilities, abs=1e-4)
    reads = [count for hypothesis in online for count in hypothesis.reads or []]
    assert len(set(reads)) > 2
    if threshold == 0.5:
        assert [h.tokens for h in searched(model, None)] == [h.tokens for h in online]
        targets = [hypothesis.tokens for hypothesis in online]
        delays = delays_of(model, collate(SOURCES, targets)).amax(1).cummax(1).values
        for row, hypothesis in enumerate(online):
            assert hypothesis.reads == delays[row, : len(hypothesis.tokens) + 1].tolist()


def test_an_ensemble_of_a_model_twice_is_that_model() -> None:
    model, beam = monotonic(), dataclasses.replace(PLAN, beam=3)
    for plan in (PLAN, beam):
        arguments = BATCH.source, BATCH.source_lengths, plan
        (alone, twice) = (search(m, *arguments, agent=Monotonic()) for m in ([model], [model] * 2))
        for (first,), (second,) in zip(alone, twice, strict=True):
            assert (first.tokens, first.reads) == (second.tokens, second.reads)


AGENTS = [
    Monotonic(0.4),
    Monotonic(0.6, floor=2, cap=3),
    Monotonic(0.5, cap=1, finish_reading=True),
    WaitK(2),
]


@every_form
def test_streaming_is_searching(form: dict[str, Any]) -> None:
    model = monotonic(**form)
    for agent in AGENTS:
        for source, expected in zip(SOURCES, searched(model, Bounded(agent, PLAN)), strict=True):
            stream = TokenStream([model], agent, PLAN)
            for token in source:
                stream.read([token])
            stream.end()
            assert (stream.tokens, stream.reads) == (expected.tokens, expected.reads)
            assert stream.log_probabilities == pytest.approx(expected.log_probabilities, abs=1e-4)


def proposals(model: Transformer, threshold: float) -> Iterator[list[float]]:
    """Yield a row's readiness after each READ, for tokens that are written with random reads."""
    generator = torch.Generator().manual_seed(3)
    for source in SOURCES:
        tokens = torch.tensor([[*source, END]])
        state = model.begin(tokens, torch.tensor([tokens.shape[1]]))
        state, reads, token = model.choosing_from(threshold, state), 1, BEGIN
        for _ in range(4):
            state = model.feed(torch.tensor([token]), state)
            seen, before = [], reads
            for reads in range(before, tokens.shape[1] + 1):
                step = model.propose(state, torch.tensor([reads]))
                assert step.readiness is not None
                state, token = step.state, int(step.logits.argmax())
                seen.append(float(step.readiness))
                if float(torch.rand(1, generator=generator)) < 0.2:
                    break
            yield seen
            state = model.accept(state)


def test_readiness_does_not_fall_as_reads_grow() -> None:
    model = sharpened(monotonic(decoder_depth=2, heads=1), 4)
    assert model.monotonic_heads is not None
    with torch.no_grad():
        model.monotonic_heads.bias.fill_(2.0)
    for threshold in (0.3, 0.5, 0.7):
        every = list(proposals(model, threshold))
        for seen in every:
            assert seen == sorted(seen)
        flat = [value for seen in every for value in seen]
        assert 0.0 in flat and any(value >= threshold for value in flat)


@pytest.mark.parametrize("token", range(8))
def test_alignments_show_nothing_beyond_a_head(token: int) -> None:
    """A hard choice at one place: all that is not seen has a share of exactly 0."""
    model = monotonic(heads=1, decoder_depth=1)
    (hypothesis,) = search(
        [model], BATCH.source[3:], BATCH.source_lengths[3:], PLAN, align=True, agent=Monotonic()
    )[0]
    assert hypothesis.alignment is not None and hypothesis.reads is not None
    if token < len(hypothesis.reads):
        shares, read = hypothesis.alignment[token], hypothesis.reads[token]
        assert float(shares[:read].sum()) == pytest.approx(1.0, abs=1e-5)
        assert float(shares[read:].sum()) == 0.0


# The objective.


def test_lagging_is_the_metric() -> None:
    """Of delays that never fall the metric's DAL, with end symbols as tokens like others."""
    lengths = torch.tensor([6, 3]), torch.tensor([4, 5])
    delays = torch.tensor([[1, 1, 4, 6, 0], [2, 2, 3, 3, 3]]).double()
    rows = [[1, 1, 4, 6], [2, 2, 3, 3, 3]]
    expected = sentence_latency(rows, [6, 3])
    assert lagging(delays, *lengths).tolist() == pytest.approx(list(expected.dal))
    assert torch.autograd.gradcheck(lambda d: lagging(d, *lengths), drawn(2, 5).requires_grad_())


def test_delays_of_heads() -> None:
    delays = torch.tensor([[[1.0, 2.0], [3.0, 2.0]]])
    share = torch.tensor([1.0, 3.0]).softmax(0)
    expected = float(share[0] + 3 * share[1])
    assert weighted_delays(delays)[0].tolist() == pytest.approx([expected, 2.0])
    assert float(head_variance(delays, torch.tensor([2]))) == pytest.approx(0.5)
    assert float(head_variance(delays, torch.tensor([1]))) == pytest.approx(1.0)


@pytest.mark.parametrize("training", [False, True])
def test_the_loss_is_likelihood_and_delay(training: bool) -> None:
    model = monotonic().train(training)
    objective = MonotonicLikelihood(MMASettings(0.3, 0.2, label_smoothing=0.0))
    parts = objective.loss(model, BATCH)
    sites = PredictionSites.offline(BATCH)
    features, delays = model.features_with_delays(BATCH, sites)
    logs = model.classify(features).log_softmax(1)
    nll = -logs.gather(1, BATCH.target_output[sites.sentence, sites.position][:, None]).sum()
    lags = lagging(weighted_delays(delays), BATCH.source_lengths, BATCH.target_lengths)
    price = 0.3 * lags.sum() + 0.2 * head_variance(delays, BATCH.target_lengths).sum()
    nll, price = nll.detach(), price.detach()
    assert float(parts.nll) == pytest.approx(nll.item(), rel=1e-5)
    assert parts.total.item() == pytest.approx((nll + price).item(), rel=1e-5)
    assert (parts.criterion is None) is training
    if parts.criterion is not None:
        assert float(parts.criterion) == pytest.approx((nll + price).item(), rel=1e-5)


def test_the_gradient_of_the_loss_is_its_slope() -> None:
    """Along a random direction of all parameters, heads included, in float64."""
    model = monotonic().double().train()
    objective = MonotonicLikelihood(MMASettings(0.3, 0.2))
    objective.loss(model, BATCH).total.backward()
    parameters = list(model.parameters())
    directions = [torch.randn_like(parameter) for parameter in parameters]
    slope = 0.0
    for parameter, direction in zip(parameters, directions, strict=True):
        assert parameter.grad is not None
        slope += float((parameter.grad * direction).sum())

    def moved(step: float) -> float:
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(step * direction)
            return float(objective.loss(model, BATCH).total)

    size = 1e-6
    difference = moved(size) - moved(-2 * size)
    assert difference / (2 * size) == pytest.approx(slope, rel=1e-5)


def test_the_objective_decodes_with_its_policy() -> None:
    assert MonotonicLikelihood(MMASettings()).agent() == Monotonic(0.5)


# What is refused.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "`model.encoder` bidirectional each READ changes"),
        ({"encoder": "window", "exits": "tied"}, "`model.exits` tied tokens exit"),
        ({"encoder": "window", "selection_noise": -1.0}, "selection_noise"),
        ({"encoder": "window", "selection_bias": float("nan")}, "selection_bias"),
    ],
)
def test_models_that_have_no_meaning(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny(reader="monotonic", **changes)


def test_models_without_monotonic_heads_refuse() -> None:
    plain = tiny(encoder="unidirectional")
    for refused in (
        lambda: MonotonicLikelihood(MMASettings()).check(plain),
        lambda: plain.features_with_delays(BATCH, PredictionSites.offline(BATCH)),
        lambda: searched(plain, Monotonic()),
        lambda: TokenStream([plain], Monotonic(), PLAN),
    ):
        with pytest.raises(ConfigError, match="does not have the reading mechanism `monotonic`"):
            refused()


@pytest.mark.parametrize("wrong", [{"delay_weight": -1.0}, {"variance_weight": float("inf")}])
def test_settings_out_of_range(wrong: dict[str, float]) -> None:
    assert len(MMASettings(**wrong).faults()) == 1
    with pytest.raises(ConfigError, match="threshold"):
        Monotonic(1.0)


def test_heads_begin_as_drawn_beside_the_weights_of_another_model(tmp_path: Path) -> None:
    """`--init` from a Transformer without them, such as one trained for wait-k."""
    plain, model = tiny(encoder="unidirectional"), monotonic()
    own = {k: v.clone() for k, v in model.state_dict().items() if k.startswith("monotonic")}
    save_tensors(tmp_path / "model.safetensors", plain.state_dict())
    load_weights(model, tmp_path / "model.safetensors", begin=True)
    state = model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in plain.state_dict().items())
    assert own and all(torch.equal(state[name], tensor) for name, tensor in own.items())


def test_models_without_a_reader_are_as_they_were() -> None:
    """No parameter is added, and the keys of the source are those of the blocks alone."""
    plain = tiny(encoder="unidirectional")
    assert not any("monotonic" in name for name in plain.state_dict())
    assert plain.traits.readiness == "none"
    assert dataclasses.asdict(plain.config)["reader"] == "none"
    assert zoo.architectures().get("transformer").config().reader == "none"
