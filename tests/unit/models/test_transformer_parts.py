"""The Transformer's presets, counts, costs, stages, initial values and types."""

import math

import pytest
import torch
from torch import Tensor

from nmtgrid.base.config import override
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import collate
from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites
from nmtgrid.models.transformer.config import TransformerConfig
from nmtgrid.models.transformer.source import TransparentAttention
from nmtgrid.training.likelihood import LikelihoodSettings
from nmtgrid.training.settings import settings_type
from tests.unit.helpers.tiny_transformer import SMALL, tiny


@pytest.mark.parametrize("name", sorted(zoo.presets("transformer")))
def test_presets_name_settings_that_there_are(name: str) -> None:
    preset = zoo.preset("transformer", name)
    kind = settings_type(TransformerConfig, LikelihoodSettings)
    chosen = override(kind("transformer"), preset.settings)
    for name, value in preset.settings.items():
        group, _, field = name.partition(".")
        assert getattr(getattr(chosen, group), field) == value


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("tie", ["none", "target", "all"])
def test_stages_are_called_once_each_and_yield_the_states(norm: str, tie: str) -> None:
    torch.manual_seed(1)
    changes = {**SMALL, "norm": norm, "tie": tie}
    model = zoo.build("transformer", None, changes, source_vocab_size=12, target_vocab_size=12)
    stages = model.stages()
    assert list(stages) == [
        "encoder.0", "encoder.1", "encoder.2", "decoder.0", "decoder.1", "decoder.2", "decoder.3",
    ]  # fmt: skip
    caught: dict[str, list[Tensor]] = {name: [] for name in stages}
    for name, stage in stages.items():
        stage.register_forward_hook(lambda _, __, out, name=name: caught[name].append(out))
    batch = collate([[4, 5, 6], [7]], [[5, 6], [8, 9, 5]])
    features = model.features(batch, PredictionSites.offline(batch))
    assert all(len(outputs) == 1 for outputs in caught.values())
    assert all(outputs[0].shape == (2, 4, 8) for outputs in caught.values())
    if norm == "post":
        assert torch.equal(features, caught["decoder.3"][0][batch.is_target])
        last = caught["encoder.2"][0]
        torch.testing.assert_close(last.mean(-1), torch.zeros(2, 4), atol=1e-5, rtol=0)


@pytest.mark.parametrize("transparent", [False, True])
def test_reported_cost_is_what_torch_counts(transparent: bool) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    shape = {"encoder_depth": 3, "decoder_depth": 2, "size": 32, "feed_forward_size": 64}
    model = zoo.build(
        "transformer", None, {**shape, "transparent": transparent, "heads": 4},
        source_vocab_size=12, target_vocab_size=11,
    )  # fmt: skip
    model = model.double().eval()  # products of float64 are all the counter's own
    batch = collate([[4, 5, 6, 7, 8, 9, 10]], [[5, 6, 7, 8, 9]])
    plain = sdpa_kernel(SDPBackend.MATH)  # the counter does not know the CPU's fused attention
    with FlopCounterMode(display=False) as counter, torch.no_grad(), plain:
        model.classify(model.features(batch, PredictionSites.offline(batch)))
    assert model.report(8, 6).flops_per_pair / 3 == pytest.approx(
        counter.get_total_flops(), rel=0.03
    )


def test_initial_values_are_those_of_the_published_systems() -> None:
    torch.manual_seed(1)
    model = zoo.build(
        "transformer", None, {"size": 64, "encoder_depth": 1, "decoder_depth": 1, "heads": 4},
        source_vocab_size=500, target_vocab_size=400,
    )  # fmt: skip
    parameters = dict(model.named_parameters())
    inward, outward = math.sqrt(6 / (4 * 64)), math.sqrt(6 / (2 * 64))
    for name in ("encoder.0.attention.input_map", "decoder.0.source_attention.query_map"):
        assert 0.9 * inward < float(parameters[name + ".weight"].detach().abs().max()) <= inward
    assert (
        0.9 * inward < float(parameters["source_projection.weight"].detach().abs().max()) <= inward
    )
    largest = float(parameters["encoder.0.attention.output_map.weight"].detach().abs().max())
    assert 0.9 * outward < largest <= outward
    assert float(parameters["target_embedding.weight"].detach().std()) == pytest.approx(
        1 / 8, rel=0.05
    )
    biases = [value for name, value in parameters.items() if name.endswith("bias")]
    assert biases and all(bool((bias == 0).all()) for bias in biases)


def test_mixtures_and_learned_positions() -> None:
    mixtures = TransparentAttention(2, 4, dropout_rate=0.5).eval()
    states = [torch.full((1, 3, 2), float(n)) for n in range(4)]
    for mixed in mixtures(states):
        torch.testing.assert_close(mixed, torch.full((1, 3, 2), 1.5))
    torch.manual_seed(4)
    shares = mixtures.train().shares()
    # W = 0: a dropped score is 0, a kept one 2 x 1/4, so shares have two values at most.
    ratios = (shares / shares.amin(1, keepdim=True)).detach().flatten()
    assert {round(float(r), 4) for r in ratios} == {1.0, round(math.exp(0.5), 4)}
    model = tiny(positions="learned", max_positions=3)
    embedding = model.source_embedding
    vectors = embedding(torch.tensor([[4, 4, 4, 4, 4]]))[0]
    assert torch.equal(vectors[2], vectors[4]) and not torch.equal(vectors[1], vectors[2])
    assert embedding.position_weight is not None and len(embedding.position_weight) == 3
    more = tiny(transparent=True).count_parameters() - tiny().count_parameters()
    assert more == 3 * (2 + 1)


def test_bf16_keeps_states_narrow_and_values_near() -> None:
    model = tiny(size=16)
    batch = collate([[4, 5, 6, 7], [8, 9]], [[5, 6, 7], [8]])
    expected = model.classify(model.features(batch, PredictionSites.offline(batch))).log_softmax(-1)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        narrow = model.classify(model.features(batch, PredictionSites.offline(batch)))
        state = model.begin(batch.source, batch.source_lengths)
        step = model.step(batch.target_input[:, 0], state)
    assert narrow.dtype is torch.bfloat16 and step.state.cache.buffer.dtype is torch.bfloat16
    first = torch.stack([narrow[0], narrow[4]]).float().log_softmax(-1)
    assert (narrow.float().log_softmax(-1) - expected).abs().mean() < 0.15
    torch.testing.assert_close(step.logits.float().log_softmax(-1), first, atol=0.2, rtol=0.05)


def test_faults_are_told_all_at_once() -> None:
    wrong = {"size": 10, "heads": 4, "encoder_depth": 0, "dropout": 1.0, "decoder_depth": 2000}
    with pytest.raises(ConfigError) as caught:
        zoo.build("transformer", None, wrong, source_vocab_size=9, target_vocab_size=9)
    text = str(caught.value)
    for name in ("heads", "encoder_depth", "dropout", "decoder_depth"):
        assert f"`model.{name}`" in text


@pytest.mark.parametrize("length", [5, 8, 11])
def test_columns_of_padding_change_nothing(length: int) -> None:
    """Of a step's attention to the source, and of its weights."""
    torch.manual_seed(1)
    keys, values = torch.randn(2, 2, 2, 2, length, 4).unbind()
    hidden = torch.zeros(2, 1, 1, length)
    hidden[1, ..., -2:] = -math.inf
    for mask in (None, hidden):
        plain = SourceCache(tuple(keys), tuple(values), mask)
        padded = plain.padded()
        assert padded.keys[0].shape[2] == (8 if length < 9 else 16)
        query, reads = torch.randn(2, 2, 4), torch.tensor([[2], [length]])
        rows = torch.tensor([1])
        for memory, other in (
            (plain, padded),
            (plain.limited(reads), padded.limited(reads)),
            (plain.of_rows(0, rows), padded.of_rows(0, rows)),
            (plain.take_rows(rows), padded.take_rows(rows)),
        ):
            some = query[: memory.count]
            torch.testing.assert_close(memory.attend(0, some), other.attend(0, some))
            torch.testing.assert_close(memory.weights(0, some), other.weights(0, some))
