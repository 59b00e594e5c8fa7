"""Activations: moments by hand, sums over skip connections, what is named and what refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from nmtgrid.analysis.activations import (
    Activations,
    Profile,
    activations_section,
    draw_profiles,
    profile,
    select_points,
)
from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.app import main
from nmtgrid.data.batches import Batch
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites, TranslationModel
from tests.invariants.cases import Case, basic_cases
from tests.invariants.helpers import readable
from tests.unit.analysis.drawn_figures import drawn_figures, text_faults
from tests.unit.helpers.tiny_run import Sentences, TinyModel
from tests.unit.helpers.toy_model import toy_model
from tests.unit.helpers.train_command import toy_data

SKIPS = ("residual", "residual-norm", "residual-cumulative", "residual-gated", "dense")
SMALL = {
    "depth": 2, "size": 8, "feed_forward_size": 16, "target_kernel": 3, "source_kernel": 3,
    "growth": 4, "bottleneck": 2,
}  # fmt: skip


def pervasive(skip: str = "residual", **settings: Any) -> TranslationModel:
    return zoo.build(
        "pervasive", overrides={**SMALL, "skip": skip, **settings},
        source_vocab_size=12, target_vocab_size=12,
    )  # fmt: skip


def by_name(profiled: Profile) -> dict[str, Activations]:
    return {point.point: point for point in profiled.points}


class Staged(TinyModel):
    """Two stages whose outputs are known: token k of the source is [k, -k], doubled."""

    def __init__(self) -> None:
        super().__init__()
        values = torch.arange(12.0)[:, None] * torch.tensor([1.0, -1.0])
        self.source = nn.Embedding.from_pretrained(values)
        self.twice = nn.Linear(2, 2, bias=False)
        nn.init.constant_(self.twice.weight, 0.0)
        self.twice.weight.data.fill_diagonal_(2.0)

    def features(self, batch: Batch, sites: PredictionSites) -> Tensor:
        doubled: Tensor = self.twice(self.source(batch.source))
        return doubled.mean(1)[sites.sentence]

    def stages(self) -> dict[str, nn.Module]:
        return {"encoder.0": self.source, "encoder.1": self.twice}


def pairs(*chosen: tuple[list[int], list[int]]) -> Sentences:
    sentences = Sentences(0)
    sentences.pairs = list(chosen)
    return sentences


def test_moments_by_hand() -> None:
    # An empty side is left out, and so is what comes after the second pair; each source ends with
    # the end symbol, token 2.
    sentences = pairs(([4, 5], [4]), ([], [4]), ([6], [4, 5]), ([11, 11], [4]))
    profiled = profile("x", Staged(), sentences, sentences=2)
    assert (profiled.sentences, profiled.source_tokens, profiled.target_tokens) == (2, 5, 5)
    first, second = profiled.points
    assert (first.point, first.part, first.kind) == ("encoder.0", "encoder", "state")
    assert (first.layer, second.layer) == (0, 1)
    assert (first.values, first.size, first.mean) == (10, 2, 0.0)
    squares = [4.0, 5.0, 2.0, 6.0, 2.0]
    assert first.deviation == pytest.approx(math.sqrt(sum(v**2 for v in squares) / 5))
    assert (first.least, first.most) == (-6.0, 6.0)
    assert second.deviation == pytest.approx(2 * first.deviation)
    # A deviation that is small beside the mean survives.
    model = Staged()
    values = torch.full((12, 2), 1000.0)
    values[4] += 0.25
    model.source = nn.Embedding.from_pretrained(values)
    point = by_name(profile("x", model, pairs(([4, 5], [4]))))["encoder.0"]
    expected = numpy.array([1000.25, 1000.0, 1000.0])
    assert point.mean == pytest.approx(expected.mean(), rel=1e-12)
    assert point.deviation == pytest.approx(expected.std(), rel=1e-6)


@pytest.mark.parametrize("skip", SKIPS)
def test_states_follow_from_changes(skip: str) -> None:
    """The means of h_n, h_n-1 and F_n(h_n-1) are joined as the skip connection joins them."""
    points = by_name(profile("x", pervasive(skip), Sentences(12)))
    cells = points["network.0.state"].values // 8
    for layer in range(1, 3 if skip == "dense" else 5):
        state, change = points[f"network.{layer}.state"], points[f"network.{layer}.change"]
        before = points[f"network.{layer - 1}.state"]
        if skip == "dense":
            assert state.size == 8 + 4 * layer and state.values == cells * state.size
            total = before.mean * before.size + change.mean * change.size
            assert state.mean == pytest.approx(total / state.size, abs=1e-6)
            continue
        total = before.mean + change.mean
        if skip == "residual-norm":
            assert points[f"network.{layer}.sum"].mean == pytest.approx(total, abs=1e-5)
            assert state.mean == pytest.approx(0.0, abs=1e-5)
            assert state.deviation == pytest.approx(1.0, abs=1e-3)
        else:
            factor = 1.0 if skip == "residual" else 0.5**0.5
            assert state.mean == pytest.approx(factor * total, abs=1e-5)
        assert state.values == change.values == cells * 8
    assert points["output.network"].values == cells * 8


def test_cells_of_a_padded_batch_are_the_same() -> None:
    model, sentences = pervasive("residual-cumulative").eval(), Sentences(9)
    points = by_name(profile("x", model, sentences))
    batch = sentences.batch(range(9))
    kept: list[Tensor] = []
    part = model.get_submodule("network.layers.3")
    handle = part.register_forward_hook(lambda module, inputs, out: kept.append(out))
    with torch.no_grad():
        model.features(batch, PredictionSites.offline(batch))
    handle.remove()
    values = kept[0].double().numpy()
    assert values.shape[0] == int((batch.source_lengths * batch.target_lengths).sum())
    point = points["network.4.change"]
    assert point.mean == pytest.approx(values.mean(), abs=1e-6)
    assert point.deviation == pytest.approx(values.std(), rel=1e-5)


@pytest.mark.parametrize("case", basic_cases(), ids=str)
def test_every_architecture_has_points(case: Case) -> None:
    model = case.build()
    profiled = profile("x", model, readable(Sentences(3), model))
    assert [point.point for point in profiled.points] == list(model.points())
    assert all(math.isfinite(point.deviation) and point.values for point in profiled.points)
    assert any(len(profiled.along(part)) > 1 for part in profiled.parts)


def test_parts_are_named_by_patterns() -> None:
    # Tied embeddings are told apart.
    points = by_name(profile("x", pervasive(tie="all"), pairs(([4], [4, 5, 6]))))
    assert [points[f"embedding.{side}"].values for side in ("target", "source")] == [4 * 8, 2 * 8]
    model = pervasive()
    assert list(select_points(model, ["network.1.*"], "x")) == [
        "network.1.inner", "network.1.change", "network.1.state",
    ]  # fmt: skip
    assert list(select_points(model, ["network.layers.*.map"], "x")) == [
        "network.layers.0.map", "network.layers.2.map",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"`x` \(`pervasive`\) has no point `network.9.state`"):
        select_points(model, ["network.9.state", "network.1.state"], "x")
    with pytest.raises(ConfigError, match="does not define probe points"):
        select_points(TinyModel(), [], "x")
    profiled = profile("x", model, Sentences(2), patterns=["network.layers.*.map"])
    assert [table.rows[0][0] for table in activations_section([profiled], "valid").tables] == [
        "network.layers.0.map"
    ]
    with pytest.raises(ConfigError, match="No pair"):
        profile("x", pervasive(), pairs(([], [4])))


def test_changes_lie_between_layers() -> None:
    points = [
        Activations(name, kind, 1, 1, 0.0, 0.0, 0.0, 0.0)
        for name, kind in (
            ("decoder.0", "state"), ("decoder.1.a", "change"), ("decoder.1.b", "change"),
            ("decoder.1", "state"),
        )
    ]  # fmt: skip
    profiled = Profile("x", "y", 1, 1, 1, points)
    assert [depth for depth, _ in profiled.along("decoder", "change")] == [0.5, 1.0]
    assert [depth for depth, _ in profiled.along("decoder")] == [0.0, 1.0]


def test_pictures(tmp_path: Path) -> None:
    systems = [profile(f"a system called {skip}, at length", pervasive(skip), Sentences(2))
             for skip in SKIPS]  # fmt: skip
    large = profile("large", pervasive(depth=9), Sentences(2))
    for profiles in (systems, [large], [profile("x", Staged(), Sentences(2)), large]):
        report = activations_section(profiles, "valid")
        assert json.loads(json.dumps(report.values))["systems"][0]["points"]
        for picture in report.pictures:
            picture.draw(tmp_path / f"{picture.name}.png")
            assert (tmp_path / f"{picture.name}.png").stat().st_size > 1000


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_key_stays_within_the_picture(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = [profile(f"model {index}", pervasive(), Sentences(2)) for index in range(count)]
    figures = drawn_figures(monkeypatch)
    draw_profiles(profiles, tmp_path / "x.png")
    (figure,) = figures
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "in colour: what layers pass on", "in grey: changes before the skip connection",
    ]  # fmt: skip
    assert not text_faults(figure)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, toy_dataset: Path) -> Path:
    """A folder with two datasets of unlike vocabularies and a model of the first."""
    folder = tmp_path_factory.mktemp("activations")
    (folder / "data").symlink_to(toy_dataset)
    toy_data(folder / "other", "--joint-vocabulary")
    return toy_model(folder / "model", toy_dataset, settings=SMALL).parent


def test_from_the_command_line(
    home: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    model, report = home / "model", home / "r.json"
    command = ["analyze", "activations", "--data", str(home / "data")]
    assert main([*command, f"A={model}", "--sentences", "3", "--json", str(report)]) == 0
    values = json.loads(report.read_text())
    assert values["split"] == "valid" and values["systems"][0]["sentences"] == 3
    assert "network.4" in capsys.readouterr().err
    assert "has no point `nothing`" in refused(*command, model, "--point", "nothing")
    assert "Two systems have the name `model`" in refused(*command, model, model)
    assert "vocabularies of the model" in refused(*command[:2], "--data", home / "other", model)
    assert "has no split `dev`" in refused(*command, model, "--split", "dev")
    assert "There is no model directory" in refused(*command, home / "none")
