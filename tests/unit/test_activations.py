"""Activations: moments by hand, sums over skip connections, what is named and what refused."""

from __future__ import annotations

import json
import math
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
    along,
    draw_profiles,
    parts,
    profile,
    select_points,
)
from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.app import main
from nmtgrid.data.batches import Batch
from nmtgrid.data.dataset import Dataset
from nmtgrid.models import zoo
from nmtgrid.models.api import PredictionSites, TranslationModel
from nmtgrid.models.directory import save_model
from tests.laws.cases import Case, basic_cases
from tests.laws.helpers import readable
from tests.unit.drawn_figures import drawn_figures, text_faults
from tests.unit.tiny_run import Sentences, TinyModel

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


def by_name(found: Profile) -> dict[str, Activations]:
    return {point.point: point for point in found.points}


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


def pairs(*held: tuple[list[int], list[int]]) -> Sentences:
    made = Sentences(0)
    made.pairs = list(held)
    return made


def test_moments_by_hand() -> None:
    # An empty side is left out, and so is what comes after the second pair; each source ends with
    # the end symbol, token 2.
    held = pairs(([4, 5], [4]), ([], [4]), ([6], [4, 5]), ([11, 11], [4]))
    found = profile("x", Staged(), held, sentences=2)
    assert (found.sentences, found.source_tokens, found.target_tokens) == (2, 5, 5)
    first, second = found.points
    assert (first.point, first.part, first.kind) == ("encoder.0", "encoder", "state")
    assert (first.layer, second.layer) == (0, 1)
    assert (first.values, first.size, first.mean) == (10, 2, 0.0)
    squares = [4.0, 5.0, 2.0, 6.0, 2.0]
    assert first.deviation == pytest.approx(math.sqrt(sum(v**2 for v in squares) / 5))
    assert (first.least, first.most) == (-6.0, 6.0)
    assert second.deviation == pytest.approx(2 * first.deviation)


@pytest.mark.parametrize("skip", SKIPS)
def test_states_follow_from_changes(skip: str) -> None:
    """The means of h_n, h_n-1 and F_n(h_n-1) are joined as the skip connection joins them."""
    found = by_name(profile("x", pervasive(skip), Sentences(12)))
    cells = found["network.0.state"].values // 8
    for layer in range(1, 3 if skip == "dense" else 5):
        state, change = found[f"network.{layer}.state"], found[f"network.{layer}.change"]
        before = found[f"network.{layer - 1}.state"]
        if skip == "dense":
            assert state.size == 8 + 4 * layer and state.values == cells * state.size
            total = before.mean * before.size + change.mean * change.size
            assert state.mean == pytest.approx(total / state.size, abs=1e-6)
            continue
        total = before.mean + change.mean
        if skip == "residual-norm":
            assert found[f"network.{layer}.sum"].mean == pytest.approx(total, abs=1e-5)
            assert state.mean == pytest.approx(0.0, abs=1e-5)
            assert state.deviation == pytest.approx(1.0, abs=1e-3)
        else:
            factor = 1.0 if skip == "residual" else 0.5**0.5
            assert state.mean == pytest.approx(factor * total, abs=1e-5)
        assert state.values == change.values == cells * 8
    assert found["output.network"].values == cells * 8


def test_cells_of_a_padded_batch_are_the_same() -> None:
    """Pair by pair as all at once: the valid cells of one batch with padding."""
    model, held = pervasive("residual-cumulative").eval(), Sentences(9)
    found = by_name(profile("x", model, held))
    batch = held.batch(range(9))
    kept: list[Tensor] = []
    part = model.get_submodule("network.layers.3")
    handle = part.register_forward_hook(lambda module, given, out: kept.append(out))
    with torch.no_grad():
        model.features(batch, PredictionSites.offline(batch))
    handle.remove()
    values = kept[0].double().numpy()
    assert values.shape[0] == int((batch.source_lengths * batch.target_lengths).sum())
    point = found["network.4.change"]
    assert point.mean == pytest.approx(values.mean(), abs=1e-6)
    assert point.deviation == pytest.approx(values.std(), rel=1e-5)


@pytest.mark.parametrize("case", basic_cases(), ids=str)
def test_every_architecture_has_points(case: Case) -> None:
    model = case.build()
    found = profile("x", model, readable(Sentences(3), model))
    assert [point.point for point in found.points] == list(model.points())
    assert all(math.isfinite(point.deviation) and point.values for point in found.points)
    assert any(len(along(found, part)) > 1 for part in parts(found))


def test_tied_embeddings_are_told_apart() -> None:
    found = by_name(profile("x", pervasive(tie="all"), pairs(([4], [4, 5, 6]))))
    assert found["embedding.target"].values == 4 * 8
    assert found["embedding.source"].values == 2 * 8


def test_parts_are_named_by_patterns() -> None:
    model = pervasive()
    assert list(select_points(model, ["network.1.*"], "x")) == [
        "network.1.inner", "network.1.change", "network.1.state",
    ]  # fmt: skip
    assert list(select_points(model, ["network.layers.*.map"], "x")) == [
        "network.layers.0.map", "network.layers.2.map",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"`x` \(`pervasive`\) has no point `network.9.state`"):
        select_points(model, ["network.9.state", "network.1.state"], "x")
    with pytest.raises(ConfigError, match="names no points"):
        select_points(TinyModel(), [], "x")
    found = profile("x", model, Sentences(2), patterns=["network.layers.*.map"])
    assert [table.rows[0][0] for table in activations_section([found], "valid").tables] == [
        "network.layers.0.map"
    ]


def test_without_text() -> None:
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
    held = Profile("x", "y", 1, 1, 1, points)
    assert [depth for depth, _ in along(held, "decoder", "change")] == [0.5, 1.0]
    assert [depth for depth, _ in along(held, "decoder")] == [0.0, 1.0]


def test_pictures(tmp_path: Path) -> None:
    found = [profile(f"a system called {skip}, at length", pervasive(skip), Sentences(2))
             for skip in SKIPS]  # fmt: skip
    large = profile("large", pervasive(depth=9), Sentences(2))
    for held in (found, [large], [profile("x", Staged(), Sentences(2)), large]):
        made = activations_section(held, "valid")
        assert json.loads(json.dumps(made.values))["systems"][0]["points"]
        for picture in made.pictures:
            picture.draw(tmp_path / f"{picture.name}.png")
            assert (tmp_path / f"{picture.name}.png").stat().st_size > 1000


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_key_stays_within_the_picture(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [profile(f"model {place}", pervasive(), Sentences(2)) for place in range(count)]
    figures = drawn_figures(monkeypatch)
    draw_profiles(held, tmp_path / "x.png")
    (figure,) = figures
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "in colour: what layers pass on", "in grey: changes before the skip connection",
    ]  # fmt: skip
    assert not text_faults(figure)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two datasets of unlike vocabularies and a model of the first."""
    folder = tmp_path_factory.mktemp("activations")
    for name, merges in (("data", "60"), ("other", "30")):
        made = str(folder / name)
        assert main(["preprocess", "--toy", "300", "--out", made]) == 0
        assert main(["bpe", "learn", made, "--merges", merges, "--joint"]) == 0
    pipeline = Dataset.open(folder / "data").pipeline
    model = zoo.build(
        "pervasive", overrides=SMALL, source_vocab_size=len(pipeline.source_vocabulary),
        target_vocab_size=len(pipeline.target_vocabulary),
    )  # fmt: skip
    save_model(folder / "model", model, pipeline, {})
    return folder


def test_from_the_command_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, report = home / "model", home / "r.json"
    ours = ["analyze", "activations", "--data", str(home / "data")]
    assert main([*ours, f"A={model}", "--sentences", "3", "--json", str(report)]) == 0
    values = json.loads(report.read_text())
    assert values["split"] == "valid" and values["systems"][0]["sentences"] == 3
    assert "network.4" in capsys.readouterr().err
    cases: dict[str, list[object]] = {
        "has no point `nothing`": [*ours, model, "--point", "nothing"],
        "Two systems are called `model`": [*ours, model, model],
        "vocabularies of the model": [*ours[:2], "--data", home / "other", model],
        "has no split `dev`": [*ours, model, "--split", "dev"],
        "There is no model directory": [*ours, home / "none"],
    }
    for told, arguments in cases.items():
        assert main([*map(str, arguments)]) == 2
        shown = " ".join(capsys.readouterr().err.split())
        assert told in shown, shown


def test_sums_in_double_precision() -> None:
    """A deviation that is small beside the mean survives."""
    found = Staged()
    values = torch.full((12, 2), 1000.0)
    values[4] += 0.25
    found.source = nn.Embedding.from_pretrained(values)
    point = by_name(profile("x", found, pairs(([4, 5], [4]))))["encoder.0"]
    expected = numpy.array([1000.25, 1000.0, 1000.0])
    assert point.mean == pytest.approx(expected.mean(), rel=1e-12)
    assert point.deviation == pytest.approx(expected.std(), rel=1e-6)
