"""The CoNLL paper's model: the counts of its tables, its costs, and faulty settings."""

from __future__ import annotations

import pytest
import torch

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import collate
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites
from tests.unit.densenet_reference import ARCH


@pytest.mark.parametrize(
    "name", [name for name, held in zoo.presets(ARCH).items() if held.parameters]
)
def test_counts_of_tables_1_and_2(name: str) -> None:
    """All rows within a per cent, with |V| as the text prints it (V1)."""
    held = zoo.preset(ARCH, name)
    assert held.vocabulary == (12000, 8800) and held.parameters
    assert _count(name) == pytest.approx(held.parameters, rel=0.01)


def test_every_row_of_the_tables_is_a_preset() -> None:
    held = zoo.presets(ARCH).values()
    counts = sorted(round(p.parameters / 1e6, 2) for p in held if p.parameters)
    first = [7.18, 7.18, 7.24, 9.64, 7.24]
    second = [4.32, 4.92, 3.88, 4.59, 5.37, 6.23, 7.18, 8.21, 5.76, 6.94]
    assert counts == sorted(first + second)


@pytest.mark.parametrize(
    ("name", "millions"),
    [("iwslt14-de-en", 22), ("iwslt14-en-de", 22), ("iwslt14-de-en-v1", 11)],
)
def test_counts_of_table_3(name: str, millions: int) -> None:
    """Published to the million."""
    assert round(_count(name) / 1e6) == millions


def _count(name: str) -> int:
    held = zoo.preset(ARCH, name)
    assert held.vocabulary
    source, target = held.vocabulary
    with torch.device("meta"):
        model = zoo.build(ARCH, name, source_vocab_size=source, target_vocab_size=target)
    return model.count_parameters()


@pytest.mark.parametrize("aggregation", ["max", "gated-max", "attention"])
@pytest.mark.parametrize("gates", ["none", "both"])
def test_reported_cost_is_what_torch_counts(aggregation: str, gates: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    shape = {"depth": 2, "embedding_size": 32, "growth": 16, "kernel": 3}
    choice = {"aggregation": aggregation, "gates": gates}
    model = zoo.build(ARCH, None, {**shape, **choice}, source_vocab_size=12, target_vocab_size=11)
    # In float64, for the counter does not know the library's product of float32 matrices.
    model = model.double().eval()
    batch = collate([[4, 5, 6, 7, 8, 9, 10]], [[5, 6, 7, 8, 9]])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.classify(model.features(batch, PredictionSites.offline(batch)))
    assert model.report(8, 6).flops_per_pair / 3 == pytest.approx(
        counter.get_total_flops(), rel=0.03
    )


def test_receptive_field() -> None:
    """Five columns for each 5 x 3 filter and three rows: 24 layers see 97 by 49 tokens."""
    with torch.device("meta"):
        model = zoo.build(ARCH, None, source_vocab_size=9, target_vocab_size=9)
    assert model.traits.source_receptive_field == 1 + 24 * 4
    assert model.traits.target_receptive_field == 1 + 24 * 2
    assert model.traits.batch_statistics and model.traits.aligns


def test_faulty_settings_are_told_all_at_once() -> None:
    wrong = {"kernel": 4, "depth": 0, "growth": 0, "dropout": 1.0, "embedding_size": 0}
    with pytest.raises(ConfigError) as caught:
        zoo.build(ARCH, None, wrong, source_vocab_size=9, target_vocab_size=9)
    told = str(caught.value.problem)
    assert all(f"model.{name}" in told for name in wrong)
    with pytest.raises(ConfigError, match="depth"):
        zoo.build(ARCH, None, {"depth": 2000}, source_vocab_size=9, target_vocab_size=9)
