"""The Bi-LSTM against its equations, its published sizes and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import collate
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites
from nmtgrid.models.bilstm import BiLSTM
from tests.unit.test_recurrent import lstm_by_hand, sigmoid

Array = NDArray[Any]
SMALL: dict[str, Any] = {
    "size": 4, "embedding_size": 3, "decoder_size": 5,
    "dropout": 0.0, "embedding_dropout": 0.0, "output_dropout": 0.0,
}  # fmt: skip


def tiny(**changes: Any) -> BiLSTM:
    torch.manual_seed(3)
    model = zoo.build(
        "bilstm", None, {**SMALL, **changes}, source_vocab_size=12, target_vocab_size=11
    )
    assert isinstance(model, BiLSTM)
    return model.double().eval()


def count(name: str, source: int, target: int) -> int:
    with torch.device("meta"):
        model = zoo.build("bilstm", name, source_vocab_size=source, target_vocab_size=target)
    return model.count_parameters()


def test_published_count_of_the_thesis() -> None:
    """8.50M (table 3.7), part by part, d = 256."""
    d = 256
    embeddings = (8848 + 6632) * d
    encoder = 2 * (4 * d * (d + d) + 8 * d) + 2 * (4 * d * (2 * d + d) + 8 * d)
    decoder = 4 * d * ((d + d) + d) + 8 * d + 4 * d * (d + d) + 8 * d
    attention = d * 2 * d + (2 * d + d) * d
    first_states = 2 * (2 * d * d + d)
    found = count("iwslt14-de-en", 8848, 6632)
    assert found == embeddings + encoder + decoder + attention + first_states
    assert found == pytest.approx(8.50e6, rel=0.005)


@pytest.mark.parametrize(("source", "target", "published"), [(12000, 9000, 6), (9000, 12000, 7)])
def test_published_counts_of_the_conll_paper(source: int, target: int, published: int) -> None:
    """Table 3, first version, in whole millions: German to English and back."""
    assert round(count("iwslt14-de-en-conll", source, target) / 1e6) == published


def source_by_hand(
    held: dict[str, Array], tokens: Array
) -> tuple[Array, list[tuple[Array, Array]]]:
    """Return the memory [S, 2 D] and each layer's last states [2 D]."""
    states = held["source_embedding.weight"][tokens]
    lasts: list[tuple[Array, Array]] = []
    for n in range(2):
        found = []
        for end in ("", "_reverse"):
            name = f"encoder.{n}.lstm."
            weights = [held[f"{name}{kind}_l0{end}"] for kind in ("weight_ih", "weight_hh")]
            bias = held[f"{name}bias_ih_l0{end}"] + held[f"{name}bias_hh_l0{end}"]
            given = states @ weights[0].T + bias
            order = slice(None, None, -1) if end else slice(None)
            zero = np.zeros(weights[1].shape[1])
            out, cell = lstm_by_hand(given[order], weights[1], zero, zero)
            found.append((out[order], out[-1], cell))
        states, hidden, cell = (np.concatenate(parts, -1) for parts in zip(*found, strict=True))
        lasts.append((hidden, cell))
    return states, lasts


def outputs_by_hand(model: BiLSTM, source: list[int], target: list[int]) -> tuple[Array, Array]:
    """Return outputs [T, O] and attention [T, S], equation by equation, position by position."""
    held = {name: value.numpy() for name, value in model.state_dict().items()}
    memory, lasts = source_by_hand(held, np.array(source))
    layers = [
        [held[f"initial_{kind}.weight"] @ last + held[f"initial_{kind}.bias"] for kind, last in
         zip(("hidden", "cell"), pair, strict=True)]
        for pair in lasts
    ]  # fmt: skip
    output, found, shares = np.zeros(3), [], []
    for token in target:
        above = held["target_embedding.weight"][token]
        if model.config.input_feeding:
            above = np.concatenate([above, output])
        for n, (hidden, cell) in enumerate(layers):
            name = f"decoder.{n}."
            gates = held[name + "weight_ih"] @ above + held[name + "bias_ih"]
            gates = gates + held[name + "weight_hh"] @ hidden + held[name + "bias_hh"]
            i, f, g, o = np.split(gates, 4)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            layers[n] = [sigmoid(o) * np.tanh(cell), cell]
            above = layers[n][0]
        scores = memory @ (held["query_map.weight"] @ above)
        share = np.exp(scores) / np.exp(scores).sum()
        output = np.tanh(held["output_map.weight"] @ np.concatenate([share @ memory, above]))
        found.append(output)
        shares.append(share)
    return np.array(found), np.array(shares)


@pytest.mark.parametrize("input_feeding", [True, False])
def test_outputs_follow_the_equations(input_feeding: bool) -> None:
    model = tiny(input_feeding=input_feeding)
    batch = collate([[4, 5, 6, 7], [8, 3]], [[5, 6, 7], [9, 4, 3, 8]])
    features = model.features(batch, PredictionSites.offline(batch)).detach().numpy()
    attention = model.alignments(batch).numpy()
    done = 0
    for row in range(2):
        length = int(batch.source_lengths[row])
        source = batch.source[row, :length].tolist()
        target = batch.target_input[row, : int(batch.target_lengths[row])].tolist()
        outputs, shares = outputs_by_hand(model, source, target)
        np.testing.assert_allclose(features[done : done + len(target)], outputs, atol=1e-10)
        np.testing.assert_allclose(attention[row, : len(target), :length], shares, atol=1e-6)
        done += len(target)


def test_layers_may_differ_in_number() -> None:
    """The top layers stand beside each other; a decoder layer below all reads the first."""
    for depths in ((1, 3), (3, 1)):
        model = tiny(encoder_depth=depths[0], decoder_depth=depths[1])
        batch = collate([[4, 5, 6]], [[5, 6]])
        assert model.features(batch, PredictionSites.offline(batch)).shape == (3, 3)


def test_dropout_falls_on_the_inputs_and_on_each_layer() -> None:
    batch = collate([[4, 5, 6, 7]], [[5, 6, 7]])
    sites = PredictionSites.offline(batch)
    for name in ("dropout", "embedding_dropout", "output_dropout"):
        for feeding in (True, False):
            model = tiny(**{name: 0.5, "input_feeding": feeding})
            assert torch.equal(model.features(batch, sites), model.features(batch, sites))
            model.train()
            assert not torch.equal(model.features(batch, sites), model.features(batch, sites))
    plain = tiny()
    before = plain.features(batch, sites)
    assert torch.equal(plain.train().features(batch, sites), before)


def test_reported_cost_is_what_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = tiny(size=32, embedding_size=24, decoder_size=40)
    batch = collate([[4, 5, 6, 7, 8, 9, 10]], [[5, 6, 7, 8, 9]])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.classify(model.features(batch, PredictionSites.offline(batch)))
    assert model.report(8, 6).flops_per_pair / 3 == pytest.approx(
        counter.get_total_flops(), rel=0.03
    )


def test_stages_are_passed_once_each_and_hold_features_last() -> None:
    model = tiny()
    seen: dict[str, tuple[int, ...]] = {}
    for name, part in model.stages().items():
        part.register_forward_hook(
            lambda _, __, out, name=name: seen.update({name: tuple(out.shape)})
        )
    batch = collate([[4, 5]], [[5, 6, 7]])
    model.features(batch, PredictionSites.offline(batch))
    assert list(model.stages()) == ["encoder.0", "encoder.1", "encoder.2", "decoder.0", "decoder.1"]
    assert [shape[-1] for shape in (seen[name] for name in model.stages())] == [3, 8, 8, 3, 3]


def test_what_cannot_be_asked_is_said() -> None:
    model = tiny()
    batch = collate([[4, 5]], [[5]])
    sites = PredictionSites.offline(batch)
    with pytest.raises(ConfigError, match="both directions"):
        model.features(batch, PredictionSites(sites.sentence, sites.position, torch.tensor([1, 1])))
    with pytest.raises(ConfigError, match="no energies"):
        model.alignments(batch, "energies")
    wrong = {"encoder_depth": 0, "decoder_depth": 1000, "size": 0, "decoder_size": 0,
             "dropout": 1.0}  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        zoo.configure("bilstm", None, wrong)
    for name in wrong:
        assert f"`model.{name}`" in str(caught.value)
