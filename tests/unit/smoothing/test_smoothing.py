"""Loss smoothing on a dataset: vectors, objectives it goes with, the command line."""

import dataclasses
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from nmtgrid.base.config import override
from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.io.arrays import load_tensors
from nmtgrid.cli.app import main
from nmtgrid.cli.objectives import objectives
from nmtgrid.data.batches import collate
from nmtgrid.data.dataset import Dataset
from nmtgrid.layers.soft_targets import NeighbourDistribution, VectorDistribution
from nmtgrid.metrics.cider import Cider
from nmtgrid.smoothing.objectives import Smoothed, smooth
from nmtgrid.smoothing.rewards import CiderReward, documents
from nmtgrid.smoothing.vectors import learn_vectors, read_vectors, type_frequencies, type_vectors
from nmtgrid.training.prepare import Request, make_objective, resolve
from nmtgrid.training.settings import RunSettings
from tests.unit.helpers.train_command import SMALL_TRANSFORMER

SMALL = [
    *SMALL_TRANSFORMER,
    *("--set", "training.log_updates=1", "--set", "batches.max_tokens=300"),
]
BOTH = [
    *("--set", "smoothing.token.alpha=0.2", "--set", "smoothing.token.neighbours=5"),
    *("--set", "smoothing.sequence.alpha=0.3", "--set", "smoothing.sequence.samples=2"),
    *("--set", "smoothing.sequence.reward=bleu", "--set", "smoothing.entropy=0.01"),
]
CPU = torch.device("cpu")
READERS = ("dynamic", "divergence", "marginal")


def settings(*changes: str, objective: str = "likelihood") -> RunSettings:
    more = () if objective in ("likelihood", *READERS) else ("model.exits=tied",)
    arch = "pervasive" if objective in READERS else "transformer"
    return resolve(Request(arch, None, objective, (*more, *changes)), objectives)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "toy"
    main(["preprocess", "--toy", "400", "--out", str(folder)])
    main(["bpe", "learn", str(folder), "--words", "--min-count", "1"])
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("token.alpha=1.5", "`smoothing.token.alpha` must be from 0 to 1, but is 1.5."),
        ("token.temperature=0", "`smoothing.token.temperature` must be a number above 0"),
        ("token.rarity=-1", "`smoothing.token.rarity` must be a number from 0 on"),
        ("token.neighbours=-1", "`smoothing.token.neighbours` must be 0, or at least 2"),
        ("token.neighbours=1", "a token is its own nearest neighbour"),
        ("sequence.alpha=-0.1", "`smoothing.sequence.alpha` must be from 0 to 1"),
        ("sequence.temperature=0", "`smoothing.sequence.temperature` must be a number above 0"),
        ("sequence.proposal_temperature=0", "proposal_temperature` must be a number above 0"),
        ("sequence.samples=0", "`smoothing.sequence.samples` must be at least 1, but is 0."),
        ("sequence.reward=rouge", "must be one of `hamming`, `bleu`, `cider`, but is `rouge`"),
        ("entropy=-1", "`smoothing.entropy` must be a number from 0 on"),
    ],
)
def test_values_that_make_no_sense(change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        override(settings(), ["smoothing." + change])


def test_one_sample_cannot_be_weighed(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"`smoothing.sequence.samples` to 2 or more"):
        settings("smoothing.sequence.alpha=0.5", "smoothing.sequence.reward=cider")
    with pytest.raises(ConfigError, match=r"leave `smoothing.sequence.vocabulary` at `all`"):
        settings(
            "smoothing.sequence.alpha=0.5", "smoothing.sequence.substitutes=similar",
            "smoothing.sequence.vocabulary=batch",
        )  # fmt: skip
    command = ["--arch", "pervasive", "--objective", "dynamic", "--set", "model.source_causal=true"]
    asked = ["--set", "smoothing.sequence.alpha=0.5", "--set", "model.reader=own", "--dry-run"]
    sizes = ["--source-vocab-size", "9", "--target-vocab-size", "9"]
    assert main(["train", *command, *asked, *sizes]) == 2
    assert "sequence.lazy=true" in capfd.readouterr().err


@pytest.mark.parametrize("objective", [*READERS, "exits-halting"])
def test_decisions_are_not_learnt_from_drawn_sentences(data: Path, objective: str) -> None:
    dataset = Dataset.open(data)
    more = ("model.halting=geometric",) if objective == "exits-halting" else ()
    asked = settings("smoothing.sequence.alpha=0.5", *more, objective=objective)
    with pytest.raises(ConfigError, match=r"sequence.lazy=true"):
        make_objective(asked, dataset, CPU, objectives)
    lazy = override(asked, ["smoothing.sequence.lazy=true", "smoothing.token.alpha=0.1"])
    smoothed = make_objective(lazy, dataset, CPU, objectives)
    assert isinstance(smoothed, Smoothed) and isinstance(smoothed.spread, VectorDistribution)


def test_all_types_count_unless_few_are_asked_for(data: Path) -> None:
    """Without smoothing nothing is wrapped."""
    plain, dataset = settings(), Dataset.open(data)
    base = objectives.get("likelihood").make(plain.objective)
    assert smooth(base, plain, dataset, CPU) is base
    kinds = {(): VectorDistribution, ("smoothing.token.neighbours=7",): NeighbourDistribution}
    for few, kind in kinds.items():
        objective = make_objective(
            settings("smoothing.token.alpha=0.5", *few), dataset, CPU, objectives
        )
        assert isinstance(objective, Smoothed) and isinstance(objective.spread, kind)


def test_settings_reach_the_distribution_of_types(data: Path, tmp_path: Path) -> None:
    """Of three types with vectors, whose cosines with the first are 1, 0.6 and 0."""
    dataset = Dataset.open(data)
    first, second, third = dataset.pipeline.target_vocabulary.types[4:7]
    path = tmp_path / "vectors.txt"
    path.write_text(f"{first} 1 0\n{second} 3 4\n{third} 0 2\n", encoding="utf-8")
    token = ("alpha=0.2", "temperature=0.3", "rarity=0.5", f"vectors={path}")
    asked = settings(*(f"smoothing.token.{change}" for change in token))
    smoothed = make_objective(asked, dataset, CPU, objectives)
    assert isinstance(smoothed, Smoothed) and isinstance(smoothed.spread, VectorDistribution)
    tokens = numpy.asarray(dataset.split("train").target_tokens).tolist()
    counts = [tokens.count(index) for index in (4, 5, 6)]
    rewards = [
        cosine - 0.5 * min(count, counts[0]) / max(count, counts[0])
        for cosine, count in zip((1.0, 0.6, 0.0), counts, strict=True)
    ]
    powers = [math.exp(reward / 0.3) for reward in rewards]
    expected = [0.0] * smoothed.size
    expected[4:7] = [power / sum(powers) for power in powers]
    assert smoothed.spread.rows(torch.tensor([4]))[0].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("objective", "more"),
    [
        ("wait-k", []),
        ("wait-k-sampled", ["--set", "objective.paths=2"]),
        ("exits-aligned", ["--set", "model.exits=tied", "--set", "model.decoder_depth=2"]),
        ("exits-mixed", ["--set", "model.exits=tied", "--set", "model.decoder_depth=2"]),
    ],
)
def test_with_other_objectives(data: Path, tmp_path: Path, objective: str, more: list[str]) -> None:
    encoder = ["--set", "model.encoder=unidirectional"] if "wait" in objective else []
    command = ["train", str(data), "--out", str(tmp_path / "m"), *SMALL, *BOTH, *more, *encoder]
    assert main([*command, "--objective", objective, "--max-updates", "2"]) == 0
    assert main([*command[:4], "--resume", "--max-updates", "3"]) == 0


def test_resumed_as_if_never_stopped(data: Path, tmp_path: Path) -> None:
    """Drawn sentences come from the states that a run keeps."""
    for name, limits in (("whole", ["4"]), ("parts", ["2", "4"])):
        for part, limit in enumerate(limits):
            more = ["--resume"] if part else [*SMALL, *BOTH]
            command = ["train", str(data), "--out", str(tmp_path / name), *more]
            assert main([*command, "--max-updates", limit]) == 0
    weights = [load_tensors(tmp_path / name / "last.safetensors") for name in ("whole", "parts")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_alike_is_what_stands_alike() -> None:
    """Types 4 and 5 stand among the same others, 6 among different ones; no window crosses ends."""
    sentences = [[7, 4, 8], [7, 5, 8], [9, 6, 10], [9, 11, 10]] * 5
    text: Any = SimpleNamespace(
        target_tokens=numpy.array(sentences, numpy.uint16).flatten(),
        target_offsets=numpy.arange(0, 3 * len(sentences) + 1, 3),
    )
    vectors, again = (torch.nn.functional.normalize(learn_vectors(text, 12)) for _ in range(2))
    assert float(vectors[4] @ vectors[5]) > 0.9
    assert float(vectors[6] @ vectors[11]) > 0.9
    assert abs(float(vectors[4] @ vectors[6])) < 0.3
    torch.testing.assert_close(again, vectors)


def test_own_vectors(data: Path) -> None:
    dataset = Dataset.open(data)
    train, size = dataset.split("train"), len(dataset.pipeline.target_vocabulary)
    frequencies = type_frequencies(train, size)
    expected = numpy.bincount(numpy.asarray(train.target_tokens), minlength=size)
    assert frequencies.tolist() == expected.tolist()
    vectors = type_vectors("own", dataset)
    assert vectors.shape[0] == size
    assert (vectors[:4] == 0).all()
    norms, seen = vectors[4:].norm(dim=1), frequencies[4:] > 1
    torch.testing.assert_close(norms[seen], torch.ones(int(seen.sum())))


def test_vectors_of_a_file(data: Path, tmp_path: Path) -> None:
    dataset = Dataset.open(data)
    vocabulary = dataset.pipeline.target_vocabulary
    path = tmp_path / "vectors.txt"
    first, second = vocabulary.types[4:6]
    path.write_text(f"3 2\n{first} 3 4\nnothing-of-ours 1 1\n{second} 0 -2\n")
    vectors = type_vectors(str(path), dataset)
    torch.testing.assert_close(vectors[4:6], torch.tensor([[0.6, 0.8], [0.0, -1.0]]))
    assert (vectors[6:] == 0).all()
    # As GloVe has them: types with spaces, and no first line of sizes.
    path.write_text(f"{first} 3 4\n. . . 1 1\nat name@domain.com 1 1\n{second} 0 -2\n")
    torch.testing.assert_close(type_vectors(str(path), dataset), vectors)
    for text, message in (
        (f"{first} 3 4\n{second} 1\n", "here are 1 numbers after the type, but 2 are expected"),
        (f"{first} 3 4\n{second} 1 2 3\n", "txt:2: here are 3 numbers after the type, but 2"),
        ('{"a": 1}'[:1] + "\n", "txt:1: here is no type with numbers after it"),
        (f"{first} 3 x\n", "could not convert string to float"),
        (f"{first} 3 nan\n", "not finite"),
        ("unheard-of-type 1 2\n", "none of its types is in the target vocabulary"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            read_vectors(path, vocabulary)


def test_vectors_of_a_model(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    assert main(["train", str(data), "--out", str(out), *SMALL, "--max-updates", "1"]) == 0
    vectors = type_vectors(str(out), Dataset.open(data))
    weight = load_tensors(out / "model.safetensors")["target_embedding.weight"]
    torch.testing.assert_close(vectors[4:], torch.nn.functional.normalize(weight[4:], dim=1))


def test_cider_of_samples(data: Path) -> None:
    """As the metric scores them; by the share that a change costs where all n-grams weigh alike."""
    train = Dataset.open(data).split("train")
    truth = train.target(0)
    other = [*truth[:-1], train.target(5)[0]]
    batch = collate([[3]], [truth])
    tokens = torch.tensor([[[*truth, 2], [*other, 2]]])
    reward = CiderReward(train)
    scorer = Cider(list(documents(train)))
    expected = scorer.scores([truth, other], [truth])
    assert reward(batch, tokens)[0].tolist() == pytest.approx(expected)
    several = dataclasses.replace(batch, references=torch.tensor([[truth, other]]))
    expected = scorer.scores([truth, other], [truth, other])
    assert reward(several, tokens)[0].tolist() == pytest.approx(expected)
    # Of two tokens half of the unigrams are left and no bigram; of four, 3/4 of the unigrams,
    # two or one of three bigrams, one or none of two trigrams.
    assert reward.loss_of_one(2) == pytest.approx(1 - 0.5 / 2)
    assert reward.loss_of_one(4) == pytest.approx(1 - (3 / 4 + 1.5 / 3 + 0.5 / 2) / 4)
