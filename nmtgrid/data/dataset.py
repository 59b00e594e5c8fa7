"""The dataset directory, read: encoded splits as memory maps, and the pipeline that made them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.base.errors import DataError, StorageError, nearest
from nmtgrid.base.io.arrays import map_arrays
from nmtgrid.base.io.text import read_lines
from nmtgrid.data import directory as manifests
from nmtgrid.data.batches import Batch, collate
from nmtgrid.data.captioning.dataset import (
    FOLDER,
    Pictures,
    PictureSource,
    collate_pictures,
    collate_references,
    group_captions,
    no_text_error,
)
from nmtgrid.text.pipeline import FACTS, Pipeline

ARRAYS = ("source.tokens", "source.offsets", "target.tokens", "target.offsets")
_PIECE = 1 << 20
_AGAIN = "Run `nmtgrid bpe learn` on it again, or restore a copy."


class Dataset:
    """A dataset directory; `open` makes it."""

    def __init__(self, path: Path, manifest: dict[str, Any], pipeline: Pipeline) -> None:
        self.path = path
        self.manifest = manifest
        self.pipeline = pipeline
        self.pictures = PictureSource.of(manifest)
        """What the sources are where they are pictures, None where they are text."""
        self._splits: dict[str, Split] = {}

    @classmethod
    def open(cls, path: str | Path) -> Dataset:
        """Return the dataset in the folder `path`, its files checked.

        Raises DataError when a part is missing, StorageError when one is damaged.
        """
        folder = Path(path)
        manifest = manifests.read(folder)
        if "units" not in manifest:
            raise DataError(
                f"The dataset {folder} has no vocabulary yet.", f"Run `nmtgrid bpe learn {folder}`."
            )
        if not (folder / FACTS).is_file():
            raise DataError(f"The dataset {folder} lacks `{FACTS}`.", _AGAIN)
        pipeline = Pipeline.load(folder)
        for name in pipeline.files:
            manifests.check_file(folder, manifest, name)
        for name in manifest["splits"]:
            manifests.check_file(folder, manifest, f"{name}.safetensors")
            if "source" in manifest:
                manifests.check_file(folder, manifest, f"{FOLDER}/{name}.safetensors")
        return cls(folder, manifest, pipeline)

    @property
    def names(self) -> list[str]:
        """The names of the splits: train, valid, test and other tests."""
        return list(self.manifest["splits"])

    def split(self, name: str) -> Split:
        """Return a split. Raises DataError for an unknown name."""
        if name not in self.manifest["splits"]:
            raise DataError(
                f"The dataset {self.path} has no split `{name}`.", nearest(name, self.names)
            )
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
        arrays = map_arrays(path)
        missing = [array for array in ARRAYS if array not in arrays]
        if missing:
            raise StorageError(f"{path} is damaged: it lacks `{missing[0]}`.", _AGAIN)
        self._source, self._source_offsets, self._target, self._target_offsets = (
            arrays[array] for array in ARRAYS
        )
        vocabularies = dataset.pipeline.source_vocabulary, dataset.pipeline.target_vocabulary
        self.source_lengths, self.target_lengths = (
            _checked_lengths(path, arrays[f"{side}.tokens"], arrays[f"{side}.offsets"], side, size)
            for side, size in zip(("source", "target"), map(len, vocabularies), strict=True)
        )
        """[pairs], in units, end symbol not counted."""
        if len(self._source_offsets) != len(self._target_offsets):
            raise StorageError(f"{path} is damaged: its sides differ in length.", _AGAIN)

    def __len__(self) -> int:
        return len(self._source_offsets) - 1

    def source(self, index: int) -> list[int]:
        """Return the ids of source sentence `index`."""
        return _sentence(self._source, self._source_offsets, index)

    @property
    def target_tokens(self) -> NDArray[Any]:
        """The ids of all targets, one after the other."""
        return self._target

    @property
    def target_offsets(self) -> NDArray[Any]:
        """Where each target begins among them, and where the last one ends [targets + 1]."""
        return self._target_offsets

    def target(self, index: int) -> list[int]:
        """Return the ids of target sentence `index`."""
        return _sentence(self._target, self._target_offsets, index)

    def batch(self, indices: Sequence[int] | NDArray[Any]) -> Batch:
        """Return the pairs `indices` as one padded batch."""
        places = [int(index) for index in indices]
        return collate(
            [self.source(place) for place in places],
            [self.target(place) for place in places],
            places,
        )

    def raw_source(self) -> list[str]:
        """Return the untouched source lines (not of train)."""
        return self._lines("raw", 0)

    def raw_target(self) -> list[str]:
        """Return the untouched target lines (not of train)."""
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
                "The raw text of `train` is not kept.", "Take a validation or test split."
            )
        language = self._dataset.pipeline.facts.languages[side]
        path = manifests.check_file(
            self._dataset.path, self._dataset.manifest, f"{folder}/{self.name}.{language}"
        )
        return list(read_lines(path, allow_empty=True))


class PictureSplit(Split):
    """Pictures and their captions: in training a pair for each caption, elsewhere for each picture.

    The target of a picture is then its first caption; all of them are its references.
    """

    def __init__(self, dataset: Dataset, name: str) -> None:
        assert dataset.pictures is not None
        self.name = name
        self._dataset = dataset
        folder, size = dataset.path, len(dataset.pipeline.target_vocabulary)
        self.pictures = Pictures(folder / FOLDER / f"{name}.safetensors", dataset.pictures)
        path = folder / f"{name}.safetensors"
        arrays = map_arrays(path)
        missing = [array for array in ARRAYS[2:] if array not in arrays]
        if missing:
            raise StorageError(f"{path} is damaged: it lacks `{missing[0]}`.", _AGAIN)
        self._target, self._target_offsets = (arrays[array] for array in ARRAYS[2:])
        lengths = _checked_lengths(path, self._target, self._target_offsets, "target", size)
        starts = self.pictures.captions
        if starts[-1] != len(lengths):
            raise StorageError(f"{path} is damaged: its captions are not those of its pictures.")
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
        """Return the ids of the caption of pair `index`."""
        return _sentence(self._target, self._target_offsets, int(self._caption[index]))

    def reference_ids(self, picture: int) -> list[list[int]]:
        """Return the ids of all captions of a picture, by its place among the pictures."""
        first, last = self.pictures.captions[picture : picture + 2]
        return [
            _sentence(self._target, self._target_offsets, place)
            for place in range(int(first), int(last))
        ]

    def batch(self, indices: Sequence[int] | NDArray[Any]) -> Batch:
        """Return the pairs `indices` as one padded batch, with all captions of their pictures."""
        places = [int(index) for index in indices]
        text = collate([[]] * len(places), [self.target(place) for place in places], places)
        source, lengths = collate_pictures([self.features(place) for place in places])
        held = [self.reference_ids(int(self._picture[place])) for place in places]
        return dataclasses.replace(
            text, source=source, source_lengths=lengths, references=collate_references(held)
        )

    def references(self) -> list[list[str]]:
        """Return the tokenised captions of each picture."""
        return group_captions(self._lines("text", 1), self.pictures.captions)

    def raw_target(self) -> list[str]:
        """Return the untouched first caption of each picture (not of train)."""
        lines = self._lines("raw", 1)
        return [lines[place] for place in self._caption]

    def tokenized_target(self) -> list[str]:
        """Return the tokenised caption of each pair."""
        lines = self._lines("text", 1)
        return [lines[place] for place in self._caption]

    def source(self, index: int) -> list[int]:
        """Raise DataError: a picture is no text."""
        raise no_text_error(self._dataset.path)

    def raw_source(self) -> list[str]:
        """Raise DataError: a picture is no text."""
        raise no_text_error(self._dataset.path)

    def tokenized_source(self) -> list[str]:
        """Raise DataError: a picture is no text."""
        raise no_text_error(self._dataset.path)


def _sentence(tokens: NDArray[Any], offsets: NDArray[Any], index: int) -> list[int]:
    count = len(offsets) - 1
    if not -count <= index < count:
        raise IndexError(f"sentence {index} of {count}")
    index %= count
    ids: list[int] = tokens[offsets[index] : offsets[index + 1]].tolist()
    return ids


def _checked_lengths(
    path: Path, tokens: NDArray[Any], offsets: NDArray[Any], side: str, size: int
) -> NDArray[numpy.int32]:
    """Return the lengths of the sentences.

    Raises StorageError when offsets or ids cannot belong to each other or the vocabulary.
    """
    fits = len(offsets) > 0 and offsets[0] == 0 and offsets[-1] == len(tokens)
    lengths = numpy.empty(max(len(offsets) - 1, 0), numpy.int32)
    last = 0
    for start, piece in _pieces(offsets):
        steps = numpy.diff(piece)
        fits = fits and bool((steps >= 0).all())
        lengths[start : start + len(steps)] = steps
        if start:
            lengths[start - 1] = piece[0] - last
            fits = fits and bool(piece[0] >= last)
        last = int(piece[-1])
    if not fits:
        raise StorageError(f"{path} is damaged: the {side} offsets make no sense.", _AGAIN)
    for _, piece in _pieces(tokens):
        if piece.max() >= size:
            raise StorageError(
                f"{path} does not fit the vocabulary: it has ids beyond {size - 1:,}.", _AGAIN
            )
    return lengths


def _pieces(array: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield (first index, values) over an array; of a mapped one, read from its file.

    What is read through the map once would be counted as this process' memory from then on.
    """
    if not isinstance(array, numpy.memmap) or array.filename is None:
        yield from ((at, array[at : at + _PIECE]) for at in range(0, len(array), _PIECE))
        return
    with open(array.filename, "rb") as file:
        file.seek(array.offset)
        for at in range(0, len(array), _PIECE):
            yield at, numpy.fromfile(file, array.dtype, min(_PIECE, len(array) - at))
