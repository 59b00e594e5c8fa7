"""The zoo: published parameter counts, costs, and what is said of faulty settings."""

import dataclasses
from typing import Annotated, Any

import pytest
import torch

from nmtgrid.base.config import BELOW_1, FROM_1, between, check
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import collate
from nmtgrid.layers.kernels import linear
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites
from nmtgrid.models.config_checks import KERNEL, ModelConfig
from nmtgrid.models.cost_report import TABLE
from nmtgrid.models.pervasive.model import OwnReader, PervasiveAttention

SKIPS = ["residual", "residual-norm", "residual-cumulative", "residual-gated", "dense"]
AGGREGATIONS = ["max", "average", "attention", "gated-max", "max-attention"]


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        (arch, name)
        for arch in zoo.architectures()
        for name, preset in zoo.presets(arch).items()
        if preset.parameters
    ],
)
def test_published_parameter_counts(arch: str, name: str) -> None:
    preset = zoo.preset(arch, name)
    assert preset.vocabulary and preset.parameters
    source, target = preset.vocabulary
    with torch.device("meta"):
        model = zoo.build(arch, name, source_vocab_size=source, target_vocab_size=target)
    assert model.count_parameters() == pytest.approx(preset.parameters, rel=0.01)


@pytest.mark.parametrize(
    ("arch", "size", "types"),
    [
        ("transformer", 2**31, 50), ("transformer", 2**63, 50), ("bilstm", 10**40, 50),
        ("transformer", 8, 2**63), ("caption-lstm", 8, 10**400),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be_counted(arch: str, size: int, types: int) -> None:
    with (
        torch.device("meta"),
        pytest.raises(ConfigError, match=r"too large for any machine|whole number"),
    ):
        zoo.build(arch, None, {"size": size}, source_vocab_size=types, target_vocab_size=types)


@pytest.mark.parametrize("skip", SKIPS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_reported_cost_is_what_torch_counts(
    skip: str, aggregation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    # The counter does not know oneDNN's operator.
    monkeypatch.setitem(linear._IS_FASTER, torch.float32, False)
    shape = {"depth": 2, "size": 32, "feed_forward_size": 64, "growth": 4}
    shape |= {"target_kernel": 3, "source_kernel": 5}
    choice = {"skip": skip, "aggregation": aggregation}
    model = zoo.build(
        "pervasive", None, {**shape, **choice}, source_vocab_size=12, target_vocab_size=11
    ).eval()
    batch = collate([[4, 5, 6, 7, 8, 9, 10]], [[5, 6, 7, 8, 9]])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.classify(model.features(batch, PredictionSites.offline(batch)))
    # The counter sees products only; sums over the source are a per cent or two.
    assert model.report(8, 6).flops_per_pair / 3 == pytest.approx(
        counter.get_total_flops(), rel=0.03
    )


def test_the_cost_counts_a_reader_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    # The counter does not know oneDNN's operator.
    monkeypatch.setitem(linear._IS_FASTER, torch.float32, False)
    shape = {"depth": 2, "size": 32, "feed_forward_size": 64, "source_causal": True}
    shape |= {"target_kernel": 3, "source_kernel": 5}
    alone, with_reader = (
        zoo.build(
            "pervasive", None, {**shape, **more}, source_vocab_size=12, target_vocab_size=11
        ).eval()
        for more in ({}, {"reader": "own", "reader_depth": 3})
    )
    batch = collate([[4, 5, 6, 7, 8, 9, 10]], [[5, 6, 7, 8, 9]])
    assert isinstance(with_reader, PervasiveAttention) and isinstance(with_reader.reader, OwnReader)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        with_reader.reader.run(batch)
    costs = [model.report(8, 6).flops_per_pair for model in (alone, with_reader)]
    assert (costs[1] - costs[0]) / 3 == pytest.approx(counter.get_total_flops(), rel=0.03)


def test_tables_and_ties() -> None:
    row = next(row for row in TABLE if row.model == "Transformer")
    assert "N d² (|x| + |y|)" in row.computation
    assert len(TABLE) == 7
    with pytest.raises(ConfigError, match="--joint-vocabulary"):
        zoo.build("pervasive", None, {"tie": "all"}, source_vocab_size=9, target_vocab_size=10)


def test_faulty_settings_are_told_all_at_once() -> None:
    wrong = {"target_kernel": 4, "source_kernel": 0, "depth": 0, "dropout": 1.0}
    with pytest.raises(ConfigError) as caught:
        zoo.build("pervasive", None, wrong, source_vocab_size=9, target_vocab_size=9)
    text = str(caught.value)
    assert len(caught.value.faults) == 4
    assert "`model.target_kernel` must be odd" in text and "take 3 or 5" in text


@pytest.mark.parametrize(("value", "advice"), [(4, "3 or 5"), (0, "1 or 3"), (999, "253 or 255")])
def test_the_nearest_odd_kernels_are_named(value: int, advice: str) -> None:
    with pytest.raises(ConfigError, match=f"but is {value}: take {advice}"):
        zoo.build(
            "pervasive", None, {"source_kernel": value}, source_vocab_size=9, target_vocab_size=9
        )


@dataclasses.dataclass(frozen=True)
class OwnConfig(ModelConfig):
    """As architectures of users have it, with a check of their own."""

    size: Annotated[int, FROM_1] = 0
    width: Annotated[int | None, FROM_1] = None
    depth: Annotated[int, between(1, 8)] = 9
    kernel: Annotated[int, KERNEL] = 4
    dropout: Annotated[float, BELOW_1] = 1.0

    def faults(self) -> list[str]:
        is_odd = [f"{self.called('depth')} must be even."] if self.depth % 2 else []
        return [*super().faults(), *is_odd]


def test_own_configs_are_checked() -> None:
    with pytest.raises(ConfigError) as caught:
        check(OwnConfig())
    assert caught.value.faults == [
        "`model.size` must be at least 1, but is 0.",
        "`model.depth` must be from 1 to 8, but is 9.",
        "`model.kernel` must be odd (a filter has a middle) and from 1 to 255, but is 4: take 3 "
        "or 5.",
        "`model.dropout` must be at least 0 and below 1, but is 1.0.",
        "`model.depth` must be even.",
    ]
    check(OwnConfig(1, 1, 8, 255, 0.0))


@pytest.mark.parametrize(
    ("arch", "preset", "changes", "expected"),
    [
        ("pervasve", None, {}, "Did you mean `pervasive`?"),
        ("pervasive", "multi3k", {}, "Did you mean `multi30k`?"),
        ("pervasive", None, {"deptth": 2}, "Did you mean `depth`?"),
        ("pervasive", None, {"depth": "two"}, "must be a whole number, but is `two`"),
        ("pervasive", None, {"skip": "dens"}, "Did you mean `dense`?"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(
    arch: str, preset: str | None, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected.replace("?", r"\?")):
        zoo.build(arch, preset, changes, source_vocab_size=9, target_vocab_size=9)


def test_an_own_architecture_has_the_name_that_it_is_registered_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise it would be trained, and its directory could not be loaded."""
    registry = zoo.architectures()
    monkeypatch.setattr(registry, "_entries", {**registry._entries})
    known = registry.get("bilstm")
    with pytest.raises(TypeError, match=r"config of 'mine' must be a dataclass.*above class int"):
        zoo.register("mine", "one's own", int, known.make, [])
    bare = dataclasses.make_dataclass("Bare", [("size", int), ("heads", int), ("depth", int, 3)])
    with pytest.raises(TypeError, match=r"default for each setting: give one to `size`.*`heads`$"):
        zoo.register("mine", "one's own", bare, known.make, [])
    zoo.register("mine", "one's own", known.config, known.make, [])
    with pytest.raises(ConfigError, match=r'as `mine`.*`architecture = "mine"`.*BiLSTM'):
        zoo.build("mine", source_vocab_size=9, target_vocab_size=9)
