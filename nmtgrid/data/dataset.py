"""Datasets: binarised splits as memory maps, and the text pipeline that produced them.

Training, decoding, online evaluation and tuning read their data here.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.base.errors import DataError, StorageError, nearest
from nmtgrid.base.io.arrays import map_named
from nmtgrid.base.io.text import read_lines
from nmtgrid.data import directory
from nmtgrid.data.batches import Batch, collate, pad
from nmtgrid.data.captioning.dataset import (
    FOLDER,
    Pictures,
    PictureSource,
    collate_pictures,
    no_text_error,
)
from nmtgrid.text.pipeline import FACTS, Pipeline

_PIECE = 1 << 20
_AGAIN = "Run `nmtgrid bpe learn` on it again, or restore a copy."


class Dataset:
    """A dataset directory, opened with `Dataset.open`."""

    def __init__(self, path: Path, manifest: dict[str, Any], pipeline: Pipeline) -> None:
        self.path = path
        self.manifest = manifest
        self.pipeline = pipeline
        self.pictures = PictureSource.of(manifest)
        """Size and type of the features if the sources are pictures, None if they are text."""
        self._splits: dict[str, Split] = {}

    @classmethod
    def open(cls, path: str | Path) -> Dataset:
        """Return the dataset in the folder `path`, its files checked.

        Raises DataError when a part is missing, StorageError when one is damaged.
        """
        folder = Path(path)
        manifest = directory.read(folder)
        if "units" not in manifest:
            raise DataError(
                f"The dataset {folder} has no vocabulary yet.", f"Run `nmtgrid bpe learn {folder}`."
            )
        if not (folder / FACTS).is_file():
            raise DataError(f"The dataset {folder} lacks `{FACTS}`.", _AGAIN)
        pipeline = Pipeline.load(folder)
        for name in pipeline.files:
            directory.check_file(folder, manifest, name)
        for name in manifest["splits"]:
            directory.check_file(folder, manifest, f"{name}.safetensors")
            # The features of pictures are in separate files.
            if "source" in manifest:
                directory.check_file(folder, manifest, f"{FOLDER}/{name}.safetensors")
        return cls(folder, manifest, pipeline)

    @property
    def names(self) -> list[str]:
        """The names of the splits: train, valid, test and other test sets."""
        return list(self.manifest["splits"])

    def split(self, name: str) -> Split:
        """Return a split. Raises DataError for an unknown name."""
        if name not in self.manifest["splits"]:
            raise DataError(
                f"The dataset {self.path} has no split `{name}`.", nearest(name, self.names)
            )
        # Kept open: opening a split checks all of its ids.
        if name not in self._splits:
            kind = Split if self.pictures is None else PictureSplit
            self._splits[name] = kind(self, name)
        return self._splits[name]


class Split:
    """The sentence pairs of a split, as token ids without special symbols."""

    def __init__(self, dataset: Dataset, name: str) -> None:
        self.name = name
        self._dataset = dataset
        path = dataset.path / f"{name}.safetensors"
        pipeline = dataset.pipeline
        names = ("source.tokens", "source.offsets", "target.tokens", "target.offsets")
        self._source, self._source_offsets, *target = map_named(path, names, _AGAIN)
        # The ids of all targets, and the offset of each target [targets + 1].
        self.target_tokens, self.target_offsets = target
        self.source_lengths = _checked_lengths(
            path, self._source, self._source_offsets, "source", len(pipeline.source_vocabulary)
        )
        self.target_lengths = _checked_lengths(
            path, self.target_tokens, self.target_offsets, "target", len(pipeline.target_vocabulary)
        )
        """[pairs], in units, end symbol not counted."""
        if len(self._source_offsets) != len(self.target_offsets):
            raise StorageError(f"{path} is damaged: its sides differ in length.", _AGAIN)

    def __len__(self) -> int:
        return len(self._source_offsets) - 1

    def source(self, index: int) -> list[int]:
        """Return the ids of source sentence `index`."""
        return _sentence(self._source, self._source_offsets, index)

    def target(self, index: int) -> list[int]:
        """Return the ids of target sentence `index`."""
        return _sentence(self.target_tokens, self.target_offsets, index)

    def tokens(self, side: int, pairs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the concatenated ids of side 0 or 1 of these pairs, and the lengths."""
        tokens, offsets = (
            (self._source, self._source_offsets)
            if side == 0
            else (self.target_tokens, self.target_offsets)
        )
        firsts = numpy.asarray(offsets[pairs])
        lengths = numpy.asarray(offsets[pairs + 1]) - firsts
        # Distance from an id's place in the result to its place in the file.
        shifts = numpy.repeat(firsts - (numpy.cumsum(lengths) - lengths), lengths)
        return numpy.asarray(tokens[numpy.arange(lengths.sum()) + shifts]), lengths

    def batch(self, indices: Sequence[int] | NDArray[Any]) -> Batch:
        """Return the pairs `indices` as one padded batch."""
        pairs = list(map(int, indices))
        return collate(list(map(self.source, pairs)), list(map(self.target, pairs)), pairs)

    def raw_source(self) -> list[str]:
        """Return the raw source lines (not for train)."""
        return self._lines("raw", 0)

    def raw_target(self) -> list[str]:
        """Return the raw target lines (not for train)."""
        return self._lines("raw", 1)

    def tokenized_source(self) -> list[str]:
        """Return the tokenised source lines."""
        return self._lines("text", 0)

    def tokenized_target(self) -> list[str]:
        """Return the tokenised target lines."""
        return self._lines("text", 1)

    def _lines(self, folder: str, side: int) -> list[str]:
        if folder == "raw" and self.name == "train":
            raise DataError(
                "The raw text of `train` is not stored.", "Use a validation or test split."
            )
        language = self._dataset.pipeline.facts.languages[side]
        path = directory.check_file(
            self._dataset.path, self._dataset.manifest, f"{folder}/{self.name}.{language}"
        )
        lines, count = list(read_lines(path, allow_empty=True)), len(self.target_offsets) - 1
        if len(lines) != count:
            raise StorageError(
                f"{path} is damaged: it has {len(lines):,} lines where the split has {count:,}.",
                _AGAIN,
            )
        return lines


class PictureSplit(Split):
    """Pictures and their captions: one pair per caption in training, one per picture elsewhere.

    Outside training the target of a picture is its first caption; its references are all of them.
    """

    def __init__(self, dataset: Dataset, name: str) -> None:
        assert dataset.pictures is not None
        # Split's constructor is not called: it maps source tokens, which pictures do not have.
        self.name = name
        self._dataset = dataset
        folder, size = dataset.path, len(dataset.pipeline.target_vocabulary)
        self.pictures = Pictures(folder / FOLDER / f"{name}.safetensors", dataset.pictures)
        path = folder / f"{name}.safetensors"
        names = ("target.tokens", "target.offsets")
        self.target_tokens, self.target_offsets = map_named(path, names, _AGAIN)
        lengths = _checked_lengths(path, self.target_tokens, self.target_offsets, "target", size)
        starts = self.pictures.captions
        if starts[-1] != len(lengths):
            raise StorageError(f"{path} is damaged: its captions do not belong to its pictures.")
        if name == "train":
            self._caption = numpy.arange(len(lengths))
            self._picture = numpy.repeat(numpy.arange(len(self.pictures)), numpy.diff(starts))
        else:
            self._caption, self._picture = starts[:-1], numpy.arange(len(self.pictures))
        self.source_lengths = self.pictures.regions[self._picture]
        self.target_lengths = lengths[self._caption]

    def __len__(self) -> int:
        return len(self._caption)

    def features(self, index: int) -> NDArray[numpy.float32]:
        """Return the features [regions, F] of the picture of pair `index`."""
        return self.pictures.features(int(self._picture[index]))

    def target(self, index: int) -> list[int]:
        return super().target(int(self._caption[index]))

    def reference_ids(self, picture: int) -> list[list[int]]:
        """Return the ids of all captions of a picture, by its index among the pictures."""
        first, last = self.pictures.captions[picture : picture + 2]
        return [
            _sentence(self.target_tokens, self.target_offsets, index)
            for index in range(int(first), int(last))
        ]

    def batch(self, indices: Sequence[int] | NDArray[Any]) -> Batch:
        """Return the pairs `indices` as one padded batch, with all captions of their pictures."""
        pairs = [int(index) for index in indices]
        # Collated with empty sources, which the features then replace.
        text = collate([[]] * len(pairs), list(map(self.target, pairs)), pairs)
        source, lengths = collate_pictures(list(map(self.features, pairs)))
        captions = [self.reference_ids(int(self._picture[pair])) for pair in pairs]
        most = max(map(len, captions))
        rows = [ids for own in captions for ids in (*own, *([[]] * (most - len(own))))]
        references = pad(rows).view(len(pairs), most, -1)
        return dataclasses.replace(
            text, source=source, source_lengths=lengths, references=references
        )

    def references(self) -> list[list[str]]:
        """Return the tokenised captions of each picture."""
        lines, starts = super()._lines("text", 1), self.pictures.captions.tolist()
        return [lines[first:last] for first, last in itertools.pairwise(starts)]

    def source(self, index: int) -> list[int]:
        raise no_text_error(self._dataset.path)

    def _lines(self, folder: str, side: int) -> list[str]:
        """Return the caption of each pair. Raises DataError for source text: pictures have none."""
        if side == 0:
            raise no_text_error(self._dataset.path)
        lines = super()._lines(folder, side)
        return [lines[index] for index in self._caption]


def _sentence(tokens: NDArray[Any], offsets: NDArray[Any], index: int) -> list[int]:
    count = len(offsets) - 1
    # Checked first: at a bad negative index the offsets would silently delimit other tokens.
    if not -count <= index < count:
        raise IndexError(f"sentence {index} of {count}")
    index %= count
    ids: list[int] = tokens[offsets[index] : offsets[index + 1]].tolist()
    return ids


def _checked_lengths(
    path: Path, tokens: NDArray[Any], offsets: NDArray[Any], side: str, size: int
) -> NDArray[numpy.int32]:
    """Return the lengths of the sentences.

    Raises StorageError if the offsets are inconsistent or an id is outside the vocabulary.
    """
    fits = len(offsets) > 0 and offsets[0] == 0 and offsets[-1] == len(tokens)
    lengths = numpy.empty(max(len(offsets) - 1, 0), numpy.int32)
    last = 0
    # In pieces, so that the offsets of millions of sentences are not in memory all at once.
    for start, piece in _pieces(offsets):
        steps = numpy.diff(piece)
        fits = fits and bool((steps >= 0).all())
        lengths[start : start + len(steps)] = steps
        if start:  # the sentence across the boundary of two pieces
            lengths[start - 1] = piece[0] - last
            fits = fits and bool(piece[0] >= last)
        last = int(piece[-1])
    if not fits:
        raise StorageError(f"{path} is damaged: the {side} offsets are inconsistent.", _AGAIN)
    for _, piece in _pieces(tokens):
        # On a GPU such an id would fail only during training, in an assertion that names no file.
        if piece.max() >= size:
            raise StorageError(
                f"{path} does not match the vocabulary: it has ids above {size - 1:,}.", _AGAIN
            )
    return lengths


def _pieces(array: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield (first index, values) for pieces of an array; a mapped one is read from its file.

    Pages read through the map would count as memory of this process from then on.
    """
    starts = range(0, len(array), _PIECE)
    if not isinstance(array, numpy.memmap) or array.filename is None:
        yield from ((start, array[start : start + _PIECE]) for start in starts)
        return
    with open(array.filename, "rb") as file:
        file.seek(array.offset)
        for start in starts:
            yield start, numpy.fromfile(file, array.dtype, min(_PIECE, len(array) - start))
