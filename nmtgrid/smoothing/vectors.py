"""Word vectors of target types, for their cosine similarity (section E.2.2).

They are learnt from the training targets, read from a file of word2vec or GloVe, or taken from a
model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.base.errors import ConfigError, InputError
from nmtgrid.base.io.text import read_lines
from nmtgrid.base.spans import is_whole_number
from nmtgrid.data.dataset import Dataset, Split
from nmtgrid.models.directory import load_model
from nmtgrid.text.vocabulary import BEGIN, END, PAD, UNKNOWN, Vocabulary

_WINDOW, _SIZE, _SEED, _POWER = 5, 200, 20_180_715, 0.75
_PIECE, _MOST = 20_000, 1_000_000
_ENOUGH = 0.9
_LONGEST_SIZE = 9
_SPECIAL = [PAD, BEGIN, END, UNKNOWN]
_SETTING = "`smoothing.token.vectors`"


def type_vectors(name: str, dataset: Dataset) -> Tensor:
    """Return vectors [V, E] of norm one for the target types of `dataset`; zero if unknown.

    `name` is "own", a model directory or a text file. Special symbols have none, because they are
    similar to no other type. Raises InputError if the file is invalid or missing.
    """
    vocabulary = dataset.pipeline.target_vocabulary
    if name == "own":
        vectors = learn_vectors(dataset.split("train"), len(vocabulary))
    elif Path(name).is_dir():
        vectors = _of_model(Path(name), vocabulary)
    else:
        vectors = read_vectors(Path(name), vocabulary)
    vectors[_SPECIAL] = 0.0
    return torch.nn.functional.normalize(vectors.float(), dim=1)


def type_frequencies(train: Split, size: int) -> Tensor:
    """Return how often each of `size` types occurs in the training targets [size]."""
    # Counted piece by piece: the shards are memory-mapped, so the corpus is never read at once.
    counts = numpy.zeros(size, numpy.int64)
    for piece in _sentences(train):
        counts += numpy.bincount(piece[piece >= 0], minlength=size)
    return torch.from_numpy(counts).float()


def few_vectors(vectors: Tensor, frequencies: Tensor) -> list[str]:
    """Return a warning if under nine of ten training tokens have one of the vectors [V, E]."""
    has_vector = vectors.abs().amax(1) > 0
    seen = frequencies.clone()
    seen[_SPECIAL] = 0.0
    share = float(seen[has_vector].sum() / seen.sum().clamp(min=1.0))
    if share >= _ENOUGH:
        return []
    with_vector, types = int(has_vector.sum()), len(has_vector) - len(_SPECIAL)
    return [
        f"{_SETTING}: {with_vector:,} of {types:,} target types have "
        f"vectors, and so {share:.1%} of the training tokens; tokens of the other types are not "
        "smoothed. Vectors must be of the same units, in the same case."
    ]


def learn_vectors(train: Split, size: int) -> Tensor:
    """Return vectors [size, E] learnt from the contexts of types in the training targets.

    Positive pointwise mutual information within five tokens, contexts smoothed by the power 3/4,
    reduced to 200 numbers by a singular value decomposition; deterministic. Of a large corpus the
    first million sentences count.
    """
    keys: NDArray[numpy.int64] = numpy.empty(0, numpy.int64)
    counts: NDArray[numpy.int64] = numpy.empty(0, numpy.int64)
    for piece in _sentences(train, _MOST):
        pairs = []
        for distance in range(1, _WINDOW + 1):
            first, second = piece[:-distance], piece[distance:]
            # -1 marks the end of a sentence, repeated to the width of the window.
            inside = (first >= 0) & (second >= 0)
            pairs += [first[inside] * size + second[inside], second[inside] * size + first[inside]]
        # Counts stay sparse: sorted keys row * V + column, merged piece by piece.
        new_keys, new_counts = numpy.unique(numpy.concatenate(pairs), return_counts=True)
        keys, cell = numpy.unique(numpy.concatenate([keys, new_keys]), return_inverse=True)
        all_counts = numpy.concatenate([counts, new_counts])
        counts = numpy.bincount(cell, all_counts, len(keys)).astype(numpy.int64)
    if not len(keys):
        return torch.zeros(size, 1)
    row, column = keys // size, keys % size
    by_row = numpy.bincount(row, counts, size)
    # The power keeps rare contexts from having the largest information (Levy et al., 2015).
    by_column = by_row**_POWER
    information = numpy.log(counts * (by_column.sum() / (by_row[row] * by_column[column])))
    is_positive = information > 0
    indices = torch.from_numpy(numpy.stack([row[is_positive], column[is_positive]]))
    values = torch.from_numpy(information[is_positive]).float()
    matrix = torch.sparse_coo_tensor(indices, values, (size, size), check_invariants=True)
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed the GPUs, permanently.
        torch.default_generator.manual_seed(_SEED)
        left, scales, _ = torch.svd_lowrank(matrix.coalesce(), q=min(_SIZE, size), niter=3)
    # The root of the singular values, as is usual for such vectors (Levy et al., 2015).
    return left * scales.sqrt()


def read_vectors(path: Path, vocabulary: Vocabulary) -> Tensor:
    """Return vectors [V, E] of the types in a text file: a type and its numbers on each line.

    A first line with two numbers, as in word2vec, gives the size of the vectors; otherwise it is
    that of the first line. GloVe has types with spaces, which no vocabulary has: they are skipped.

    Raises InputError for lines that differ in their count of numbers, and if no type is known.
    """
    index_of = {token: index for index, token in enumerate(vocabulary.types)}
    rows: dict[int, list[float]] = {}
    size = 0
    for line, text in enumerate(read_lines(path), 1):
        token, *numbers = text.rstrip().split(" ")
        if line == 1 and len(numbers) == 1 and is_whole_number(numbers[0]):
            # A number with more digits is not a size: the lines that follow will not fit it.
            size = int(numbers[0][:_LONGEST_SIZE])
            continue
        size = size or len(numbers)
        if size < len(numbers) and not all(map(_is_number, numbers[:-size])):
            continue
        if len(numbers) != size or not numbers:
            count = f"here are {len(numbers)} numbers after the type, but {size} are expected"
            raise InputError(
                f"{count if numbers else 'here is no type with numbers after it'}.",
                "Each line must have a type and its numbers, the same number of them on all lines, "
                "separated by single spaces.",
                path=path, line=line,
            )  # fmt: skip
        if token in index_of:
            try:
                rows[index_of[token]] = [float(number) for number in numbers]
            except ValueError as fault:
                raise InputError(f"{fault}.", "Correct the line.", path=path, line=line) from fault
    if not rows:
        raise InputError(
            "none of its types is in the target vocabulary.",
            "The vectors must come from text with the same subword units.",
            path=path,
        )
    vectors = torch.zeros(len(vocabulary), size)
    vectors[list(rows)] = torch.tensor(list(rows.values()))
    if not bool(vectors.isfinite().all()):
        raise InputError("it contains numbers that are not finite.", "Correct it.", path=path)
    return vectors


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _of_model(folder: Path, vocabulary: Vocabulary) -> Tensor:
    """Return the target embeddings [V, E] of a model directory, for the types that it knows."""
    loaded = load_model(folder)
    embedding = getattr(loaded.model, "target_embedding", None)
    weight = loaded.model.classifier().weight if embedding is None else embedding.weight
    # The two vocabularies may number the same types differently.
    model_types = loaded.pipeline.target_vocabulary.types
    model_index = {token: index for index, token in enumerate(model_types)}
    vectors = torch.zeros(len(vocabulary), weight.shape[1])
    common = [
        (n, model_index[token]) for n, token in enumerate(vocabulary.types) if token in model_index
    ]
    # Special symbols are in every vocabulary.
    if len(common) <= len(_SPECIAL):
        raise ConfigError(
            f"{_SETTING}: the model in {folder} has none of the target types.",
            "Use a model that was trained with the same units.",
        )
    indices, model_indices = zip(*common, strict=True)
    vectors[list(indices)] = weight.detach()[list(model_indices)].float()
    return vectors


def _sentences(train: Split, limit: int = 0) -> Iterator[NDArray[numpy.int64]]:
    """Yield the first `limit` targets (0: all) in pieces, each followed by `_WINDOW` times -1."""
    tokens, offsets = train.target_tokens, train.target_offsets
    count = min(limit, len(offsets) - 1) if limit else len(offsets) - 1
    for start in range(0, count, _PIECE):
        bounds = numpy.asarray(offsets[start : min(start + _PIECE, count) + 1], numpy.int64)
        piece = numpy.asarray(tokens[bounds[0] : bounds[-1]], numpy.int64)
        yield numpy.insert(piece, numpy.repeat(bounds[1:] - bounds[0], _WINDOW), -1)
