"""BPE-dropout and word dropout in training: limits, epochs, processes, resumption, refusals."""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest
import torch
from numpy.typing import NDArray

from nmtgrid.base.io.arrays import load_tensors
from nmtgrid.cli.app import main
from nmtgrid.data.batches import Batch, BatchPlan, DataCursor, collate
from nmtgrid.data.dataset import Dataset
from nmtgrid.data.dropout import ResegmentedPairs, drop_words
from nmtgrid.smoothing.samplers import as_batch
from nmtgrid.text.bpe import remove_bpe
from nmtgrid.text.vocabulary import BEGIN, END, PAD, UNKNOWN
from nmtgrid.training.distributed import Processes
from nmtgrid.training.trainer import read_batches
from tests.unit.helpers.toy_model import read_json
from tests.unit.helpers.train_command import SMALL_TRANSFORMER, train

BOTH = ("--set", "batches.source_bpe_dropout=0.3", "--set", "batches.target_bpe_dropout=0.3")
WORDS = ("--set", "batches.source_word_dropout=0.2", "--set", "batches.target_word_dropout=0.2")


@pytest.fixture(scope="module")
def dataset(toy_dataset: Path) -> Dataset:
    return Dataset.open(toy_dataset)


def resegmented(
    dataset: Dataset, source: float = 0.3, target: float = 0.3, max_length: int = 0, seed: int = 1
) -> ResegmentedPairs:
    return ResegmentedPairs(
        dataset.split("train"), dataset.pipeline, (source, target), seed=seed,
        max_length=max_length,
    )  # fmt: skip


def plan_of(dataset: Dataset, pairs: ResegmentedPairs, **limits: int) -> BatchPlan:
    train = dataset.split("train")
    return BatchPlan(
        train.source_lengths, train.target_lengths, resegmented=pairs.lengths, **limits
    )


def texts(dataset: Dataset, batch: Batch) -> tuple[dict[int, str], dict[int, str]]:
    """Return the units of source and target, by the pair's index."""
    sides = []
    for vocabulary, rows in (
        (dataset.pipeline.source_vocabulary, batch.source),
        (dataset.pipeline.target_vocabulary, batch.target_output),
    ):
        lines = [[i for i in row if i not in (PAD, END)] for row in rows.tolist()]
        units = [" ".join(vocabulary.decode(line)) for line in lines]
        sides.append(dict(zip(batch.indices.tolist(), units, strict=True)))
    return sides[0], sides[1]


def test_an_epoch_has_all_pairs_with_their_words_within_the_limits(dataset: Dataset) -> None:
    train = dataset.split("train")
    pairs = resegmented(dataset)
    plan = plan_of(dataset, pairs, max_tokens=150, max_cells=3000)
    everything = train.batch(range(len(train)))
    plain = texts(dataset, everything)
    epochs = []
    for epoch in (0, 1):
        seen: tuple[dict[int, str], dict[int, str]] = ({}, {})
        sizes = []
        for indices in plan.epoch(epoch):
            batch = pairs.batch(indices, epoch)
            (rows, width), height = batch.source.shape, batch.target_input.shape[1]
            assert rows == 1 or (rows * height <= 150 and rows * height * width <= 3000)
            lengths = pairs.lengths(indices, epoch)
            assert batch.source_lengths.tolist() == (lengths[0] + 1).tolist()
            assert batch.target_lengths.tolist() == (lengths[1] + 1).tolist()
            for side, units in zip(seen, texts(dataset, batch), strict=True):
                side |= units
            sizes.append(rows)
        assert sum(sizes) == plan.count == len(train)
        for side, expected in zip(seen, plain, strict=True):
            assert {i: remove_bpe(units) for i, units in side.items()} == {
                i: remove_bpe(units) for i, units in expected.items()
            }
            assert sum(side[i] != expected[i] for i in side) > len(train) / 2
            assert "<unk>" not in " ".join(side.values()).split()
        epochs.append(seen)
    assert all(first != second for first, second in zip(*epochs, strict=True))
    # The same word of a pair is not cut by one draw on both sides, or for all seeds.
    again = pairs.batch(numpy.arange(len(train)), 0)
    assert texts(dataset, again) == epochs[0]
    other = resegmented(dataset, seed=2).batch(numpy.arange(len(train)), 0)
    assert texts(dataset, other)[0] != epochs[0][0]


@pytest.mark.parametrize("side", [0, 1])
def test_one_side_alone(dataset: Dataset, side: int) -> None:
    train = dataset.split("train")
    source, target = (0.5, 0.0) if side == 0 else (0.0, 0.5)
    every = numpy.arange(len(train))
    changed = texts(dataset, resegmented(dataset, source, target).batch(every, 0))
    plain = texts(dataset, train.batch(every))
    assert changed[1 - side] == plain[1 - side] and changed[side] != plain[side]


def test_a_sentence_that_would_be_too_long_stays_plain(dataset: Dataset) -> None:
    train = dataset.split("train")
    every = numpy.arange(len(train))
    limit = int(numpy.median(train.source_lengths)) + 3
    free = resegmented(dataset, 0.6, 0.0)
    pairs = resegmented(dataset, 0.6, 0.0, max_length=limit)
    plain, drawn = texts(dataset, train.batch(every))[0], texts(dataset, free.batch(every, 0))[0]
    is_long = free.lengths(every, 0)[0] > limit
    assert 0 < (is_long & (train.source_lengths <= limit)).sum() < len(train)
    assert texts(dataset, pairs.batch(every, 0))[0] == {
        i: plain[i] if is_long[i] else drawn[i] for i in drawn
    }
    plan = plan_of(dataset, pairs, max_tokens=300, max_length=limit)
    expected = {
        i
        for i in range(len(train))
        if max(train.source_lengths[i], train.target_lengths[i]) <= limit
    }
    for epoch in range(3):
        batches = plan.epoch(epoch)
        assert {int(i) for indices in batches for i in indices} == expected
        assert max(pairs.batch(i, epoch).source_lengths.max() for i in batches) <= limit + 1


def test_batches_do_not_depend_on_processes_or_on_where_a_run_goes_on(dataset: Dataset) -> None:
    """Across the end of an epoch within an update as well."""

    def reader(start: DataCursor, processes: Processes) -> Iterator[tuple[DataCursor, list[Batch]]]:
        pairs = resegmented(dataset)
        plan = plan_of(dataset, pairs, max_tokens=200)

        def read(indices: NDArray[numpy.int64], epoch: int) -> Batch:
            return drop_words(pairs.batch(indices, epoch), (0.2, 0.2), 5, epoch)

        return read_batches(read, plan, start, 3, processes, ahead=False)

    def shown(batches: list[Batch]) -> Counter[str]:
        return Counter(
            str((batch.indices.tolist(), batch.source.tolist(), batch.target_input.tolist()))
            for batch in batches
        )

    whole = list(itertools.islice(reader(DataCursor.begin(), Processes()), 30))
    epochs = [cursor.epoch for cursor, _ in whole]
    assert epochs[-1] > 2
    for start in range(0, 25, 4):
        cursor = whole[start][0]
        for (after, batches), *shares in zip(
            whole[start + 1 : start + 5],
            *(reader(cursor, Processes(rank, 2)) for rank in (0, 1)),
            strict=False,
        ):
            assert {share[0] for share in shares} == {after}
            assert shown([b for _, part in shares for b in part]) == shown(batches)


def test_word_dropout_replaces_words_alone_at_its_rate() -> None:
    draw = numpy.random.default_rng(3)
    sources, targets = (
        [draw.integers(4, 99, n).tolist() for n in draw.integers(1, 12, 3000)] for _ in range(2)
    )
    batch = collate(sources, targets)
    dropped = drop_words(batch, (0.3, 0.1), 1, 0)
    for name, rate, is_word in (
        ("source", 0.3, batch.is_source & (batch.source != END)),
        ("target_input", 0.1, batch.is_target & (batch.target_input != BEGIN)),
    ):
        before, after = getattr(batch, name), getattr(dropped, name)
        is_dropped = after != before
        assert bool((after[is_dropped] == UNKNOWN).all()) and bool(is_word[is_dropped].all())
        # Hoeffding: exceeded once in 10^9 experiments.
        words = int(is_word.sum())
        assert abs(int(is_dropped.sum()) / words - rate) < (21.5 / 2 / words) ** 0.5
        # First and last words as well, which stand beside begin and end.
        assert 0 < is_dropped[:, 0 if name == "source" else 1].float().mean() < 1
        last = batch.source_lengths - 2 if name == "source" else batch.target_lengths - 1
        assert 0 < is_dropped.gather(1, last[:, None]).float().mean() < 1
    assert torch.equal(dropped.target_output, batch.target_output)


def test_word_dropout_follows_the_pair_not_the_batch() -> None:
    batch = collate([[5, 6, 7, 8]] * 40, [[5, 6, 7, 8]] * 40)
    rows = torch.tensor([7, 3, 21])
    whole, part = (drop_words(b, (0.5, 0.5), 1, 4) for b in (batch, batch.select(rows)))
    assert torch.equal(whole.source[rows], part.source)
    assert torch.equal(whole.target_input[rows], part.target_input)
    # Other draws for each pair, side, epoch and seed.
    source, target = (
        t[:, first:][:, :4] == UNKNOWN for t, first in ((whole.source, 0), (whole.target_input, 1))
    )
    assert len({tuple(row) for row in source.tolist()}) > 8 and not torch.equal(source, target)
    for seed, epoch in ((1, 5), (2, 4)):
        assert not torch.equal(drop_words(batch, (0.5, 0.5), seed, epoch).source, whole.source)


def test_drawn_sentences_are_shown_with_the_words_of_the_truth_dropped() -> None:
    batch = drop_words(collate([[5, 6]] * 9, [[5, 6, 7]] * 9), (0.0, 0.5), 1, 0)
    samples = torch.tensor([[[8, 9, 10, END]] * 2] * 9)
    inputs = as_batch(batch, samples, torch.ones(9, 2)).target_input.view(9, 2, 4)
    truth = batch.target_input
    expected = torch.tensor([BEGIN, 8, 9, 10]).expand(9, 4).masked_fill(truth == UNKNOWN, UNKNOWN)
    assert 0 < int((truth == UNKNOWN).sum()) < 27
    for sample in inputs.unbind(1):
        assert torch.equal(sample, expected)


def run(data: Path, out: Path, *options: object, updates: int) -> dict[str, torch.Tensor]:
    """Train so many updates in all; return the last weights."""
    begun = ("--resume",) if out.exists() else (*SMALL_TRANSFORMER, *options)
    limits = ("--set", "batches.max_tokens=400") if not out.exists() else ()
    assert train(data, "--out", out, *begun, *limits, "--max-updates", updates) == 0
    return load_tensors(out / "last.safetensors")


def test_a_resumed_run_is_the_same_bit_for_bit(toy_dataset: Path, tmp_path: Path) -> None:
    """In the middle of an epoch and in the next one."""
    whole = run(toy_dataset, tmp_path / "whole", *BOTH, *WORDS, updates=16)
    for updates in (3, 11, 16):
        parts = run(toy_dataset, tmp_path / "parts", *BOTH, *WORDS, updates=updates)
    assert all(torch.equal(parts[name], weight) for name, weight in whole.items())
    *_, last = (tmp_path / "whole/metrics.jsonl").read_text().splitlines()
    assert json.loads(last)["epoch"] >= 1


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory, toy_dataset: Path) -> dict[str, Path]:
    """Datasets by what their units are."""
    folder = tmp_path_factory.mktemp("datasets")
    for toy, name in (("--toy", "words"), ("--toy-pictures", "pictures")):
        assert main(["preprocess", toy, "60", "--out", str(folder / name)]) == 0
        assert main(["bpe", "learn", str(folder / name), "--words"]) == 0
    return {"bpe": toy_dataset, "words": folder / "words", "pictures": folder / "pictures"}


ARCH = {"pictures": ("--arch", "caption-lstm", "--preset", "toy-pictures")}


@pytest.mark.parametrize("action", ["--out", "--dry-run"])
@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("words", "source_bpe_dropout=0.1", "units of {} are words"),
        ("words", "target_bpe_dropout=0.1", "units of {} are words"),
        ("pictures", "source_bpe_dropout=0.1", "sources of {} are pictures"),
        ("pictures", "target_bpe_dropout=0.1", "sources of {} are pictures"),
        ("pictures", "source_word_dropout=0.1", "sources of {} are pictures"),
        ("bpe", "source_bpe_dropout=1.1", "`batches.source_bpe_dropout` must be from 0 to 1"),
        ("bpe", "target_bpe_dropout=-0.1", "`batches.target_bpe_dropout` must be from 0 to 1"),
        ("bpe", "source_word_dropout=1", "must be at least 0 and below 1"),
        ("bpe", "target_word_dropout=nan", "must be"),
    ],
)
def test_what_has_no_meaning_is_refused_before_anything_is_written(
    datasets: dict[str, Path], tmp_path: Path, refused: Callable[..., str],
    name: str, setting: str, message: str, action: str,
) -> None:  # fmt: skip
    target = () if action == "--dry-run" else (tmp_path / "m",)
    options = ("--set", f"batches.{setting}", *ARCH.get(name, ()))
    shown = refused("train", datasets[name], *options, action, *target)
    assert message.format(datasets[name]) in shown
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("words", ["source_word_dropout=0.2", "target_word_dropout=0.2"]),
        ("pictures", ["target_word_dropout=0.2"]),
        ("bpe", ["source_bpe_dropout=1", "target_bpe_dropout=1"]),
    ],
)
def test_what_has_a_meaning_trains(
    datasets: dict[str, Path], tmp_path: Path, name: str, settings: list[str]
) -> None:
    options = [word for setting in settings for word in ("--set", f"batches.{setting}")]
    small = (*ARCH[name], "--set", "model.size=16") if name in ARCH else SMALL_TRANSFORMER
    assert train(datasets[name], *options, *small, "--max-updates", 2, "--out", tmp_path / "m") == 0


def test_the_plan_counts_the_longer_sentences(toy_dataset: Path, tmp_path: Path) -> None:
    values = []
    for rate in ("0", "1"):
        report = tmp_path / f"{rate}.json"
        options = ("--set", f"batches.source_bpe_dropout={rate}", "--json", report)
        assert train(toy_dataset, "--dry-run", *SMALL_TRANSFORMER, *options) == 0
        values.append(read_json(report))
    plain, characters = values
    split = Dataset.open(toy_dataset).split("train")
    assert plain["source_length"] == pytest.approx(split.source_lengths.mean() + 1)
    # All pairs are in the sample; those within the limit of 100 become characters.
    lengths, _ = resegmented(Dataset.open(toy_dataset), 1.0, 0.0, max_length=100).lengths(
        numpy.arange(len(split)), 0
    )
    assert characters["source_length"] == pytest.approx(lengths.mean() + 1)
    assert characters["source_length"] > 1.2 * plain["source_length"]
    assert characters["target_length"] == plain["target_length"]
