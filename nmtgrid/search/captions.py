"""Pictures in, captions out, in order; a picture has the place of a line."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.captioning.captions import collate_pictures, region_names
from nmtgrid.models.api import TranslationModel
from nmtgrid.search.api import Hypothesis

WINDOW = 256
"""Pictures held at once; they are sorted by regions among themselves."""

Search = Callable[[Tensor, Tensor, list[int], bool], list[list[Hypothesis]]]
"""Takes sources, lengths, keys, and whether alignments are wanted."""


def stream(
    pictures: Iterable[NDArray[numpy.float32]],
    batches: Callable[[list[int]], Iterator[list[int]]],
    search: Search,
    align: bool,
    advance: Callable[[int, int], None],
) -> Iterator[tuple[int, list[str], list[Hypothesis]]]:
    """Yield number, regions' names and hypotheses of each picture [regions, F].

    `batches` cuts places by the sizes of what stands there; `advance` is told of the pictures and
    target tokens of each batch.
    """
    numbered = enumerate(pictures, start=1)
    while window := list(itertools.islice(numbered, WINDOW)):
        found: dict[int, list[Hypothesis]] = {}
        for places in batches([len(features) for _, features in window]):
            source, lengths = collate_pictures([window[place][1] for place in places])
            results = search(source, lengths, [window[place][0] for place in places], align)
            found.update(zip(places, results, strict=True))
            advance(len(places), sum(len(one[0].tokens) + 1 for one in results))
        for place, (number, features) in enumerate(window):
            yield number, region_names(len(features)), found[place]


def check_text(model: TranslationModel) -> None:
    """Raise ConfigError where text is given to a model that captions pictures."""
    if model.traits.source_features:
        raise ConfigError(
            f"This model (`{model.architecture}`) captions pictures; it cannot read text.",
            "Give it features of pictures: a safetensors file as INPUT, or a dataset of pictures.",
        )


def check_pictures(model: TranslationModel) -> None:
    """Raise ConfigError where pictures are given to a model that translates text."""
    if not model.traits.source_features:
        raise ConfigError(
            f"This model (`{model.architecture}`) translates text; it cannot read pictures.",
            "Give it text, or use a model such as `caption-top-down`.",
        )
