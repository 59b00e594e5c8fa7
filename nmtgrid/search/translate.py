"""Raw text in, raw text out: the whole way from lines to their translations, in order.

`nmtgrid.load("runs/toy/model", beam=5).translate(["Guten Morgen!"])` is all that it takes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.base.config import check as check_config
from nmtgrid.base.config import from_json, override
from nmtgrid.base.devices import find_device
from nmtgrid.base.errors import ConfigError, ModelError
from nmtgrid.data.batches import collate
from nmtgrid.data.captioning.dataset import check_size, collate_pictures, region_names
from nmtgrid.models.api import TranslationModel
from nmtgrid.models.directory import LoadedModel, load_model
from nmtgrid.search import engine
from nmtgrid.search.api import Halt, Hypothesis, SearchPlan
from nmtgrid.search.constraints import ForcedPrefix
from nmtgrid.search.cuda_graphs import graphs_for
from nmtgrid.search.forced import forced_log_probabilities
from nmtgrid.search.inputs import check_ensemble, check_lines, check_pairs, with_prefixes
from nmtgrid.search.long_sources import cut, join_ranked, long_line_warning
from nmtgrid.search.postprocess import Translation, restore
from nmtgrid.text.pipeline import Pipeline

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


_MOST_PIECES = 1 << 16


@dataclasses.dataclass(frozen=True)
class TranslationOptions:
    """How text goes through a search."""

    batch_tokens: int = 4000
    """Source tokens of a batch, padding included, times the width of the search."""
    max_source: int = 512
    """Longest source in units; longer lines are split or cut, with a warning."""
    long_lines: Literal["split", "cut"] = "split"
    replace_unknown: bool = False
    """Write the aligned source word where the model writes `<unk>`."""
    window: int = 16384
    """Lines held at once; they are sorted by length among themselves."""

    def faults(self) -> list[str]:
        """Return what is wrong with the values."""
        return [
            f"`{name}` (`--{name.replace('_', '-')}`) must be at least 1, but is "
            f"{getattr(self, name)}."
            for name in ("batch_tokens", "max_source", "window")
            if getattr(self, name) < 1
        ]


class Translator:
    """One model, or several averaged, that translate raw text, or caption pictures."""

    def __init__(
        self,
        loaded: Sequence[LoadedModel],
        plan: SearchPlan | None = None,
        options: TranslationOptions | None = None,
        *,
        device: torch.device | str = "cpu",
        precision: Literal["fp32", "bf16"] = "fp32",
        warn: Callable[[str], None] = lambda text: None,
        halt: Halt | None = None,
    ) -> None:
        """`plan` defaults to the first model's settings; `warn` is told of lines too long.

        `halt` says where tokens leave the decoder early (None: nowhere).

        Raises ConfigError for faulty plans, ModelError when the models' vocabularies differ.
        """
        check_ensemble(loaded)
        self.pipeline: Pipeline = loaded[0].pipeline
        self.plan = default_plan(loaded[0]) if plan is None else plan
        self.options = TranslationOptions() if options is None else options
        check_config(self.plan)
        check_config(self.options)
        self.device, self.bf16, self.warn = torch.device(device), precision == "bf16", warn
        self.models = [one.model.to(self.device).eval() for one in loaded]
        self.halt = halt
        self.features = self.models[0].traits.source_features  # of a region; 0: text
        self.graphs = graphs_for(self.device)
        engine.check(self.models, self.plan, self.options.replace_unknown, halt=halt)

    def translate(
        self, lines: Iterable[str], *, prefixes: Iterable[str] | None = None
    ) -> list[str]:
        """Return the translations of raw `lines`, one for each; empty lines stay empty.

        `prefixes` and what is raised: as in `stream`.
        """
        return [one.text for one in self.stream(lines, prefixes=prefixes)]

    def score(self, pairs: Iterable[tuple[str, str]]) -> list[float]:
        """Return the log-probability of each raw (source, target), end symbol included.

        Raises TypeError for what is no list of pairs of strings.
        """
        check_text(self.models[0])
        encode_source, encode_target = self.pipeline.encode_source, self.pipeline.encode_target
        given = check_pairs(pairs)
        encoded = [(encode_source(source), encode_target(target)) for source, target in given]
        values = [0.0] * len(encoded)
        sizes = [len(source) + len(target) for source, target in encoded]
        for places in self._batches(sizes, 1):
            batch = collate(*zip(*(encoded[place] for place in places), strict=True))
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
                found = forced_log_probabilities(self.models, batch.to(self.device))
            for place, value in zip(places, found.sum(1).tolist(), strict=True):
                values[place] = value
        return values

    def stream(
        self,
        lines: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        align: bool = False,
        advance: Callable[[int, int], None] = lambda lines, tokens: None,
    ) -> Iterator[Translation]:
        """Yield the translation of each line, in order, holding one window of lines at a time.

        `advance` is called after each batch with the lines and target tokens it has finished.
        `prefixes` are raw text that the translation of each line must begin with, in whole words,
        perhaps none; of a line in pieces the first one does. Raises ConfigError at once when
        `align` is asked of a model that does not align, TypeError for one string in place of
        several; InputError on the way unless there are as many prefixes as lines.
        """
        check_lines(lines)
        check_lines(prefixes or (), "prefixes")
        engine.check(self.models, self.plan, align)
        check_text(self.models[0])
        pairs = with_prefixes(lines, prefixes)
        return self._windows(pairs, align or self.options.replace_unknown, advance)

    def caption(
        self,
        pictures: Iterable[NDArray[numpy.float32]],
        *,
        align: bool = False,
        advance: Callable[[int, int], None] = lambda pictures, tokens: None,
    ) -> Iterator[Translation]:
        """Yield the caption of each picture, given as features [regions, F], in order.

        Raises ConfigError at once where the model cannot, DataError for features of another size.
        """
        engine.check(self.models, self.plan, align)
        check_pictures(self.models[0])
        checked = (check_size(one, self.features) for one in pictures)
        found = stream(checked, self._batches, self._search, align, advance)
        restored = (restore(self.pipeline, *one) for one in found)
        return (dataclasses.replace(one, source_end=False) for one in restored)

    def _windows(
        self,
        pairs: Iterable[tuple[str, str]],
        align: bool,
        advance: Callable[[int, int], None],
    ) -> Iterator[Translation]:
        numbered = ((number, *pair) for number, pair in enumerate(pairs, start=1))
        replace = self.options.replace_unknown
        while window := list(itertools.islice(numbered, self.options.window)):
            numbers = [number for number, _, _ in window]
            units = [self.pipeline.source_tokens(line) for _, line, _ in window]
            begun = [self.pipeline.target.tokens(prefix) if prefix else [] for *_, prefix in window]
            ends = [self._ends(of_line) for of_line in units]
            self._tell_long(numbers, units, ends)
            found = self._translate(numbers, units, ends, begun, align, advance)
            for number, line, hypotheses, prefix in zip(numbers, units, found, begun, strict=True):
                yield restore(self.pipeline, number, line, hypotheses, replace, prefix)

    def _ends(self, units: list[str]) -> list[int]:
        """Return where the pieces of a line end; none for an empty line."""
        if not units:
            return []
        ends = cut(units, self.options.max_source)
        return ends if self.options.long_lines == "split" else ends[:1]

    def _tell_long(self, numbers: list[int], units: list[list[str]], ends: list[list[int]]) -> None:
        lengths = {number: len(u) for number, u, e in zip(numbers, units, ends, strict=True)
                   if len(e) > 1 or (e and e[-1] < len(u))}  # fmt: skip
        if lengths:
            self.warn(long_line_warning(lengths, self.options.max_source, self.options.long_lines))

    def _translate(
        self,
        numbers: list[int],
        units: list[list[str]],
        ends: list[list[int]],
        begun: list[list[str]],
        align: bool,
        advance: Callable[[int, int], None],
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of each line of a window; `begun` are the prefixes in units."""
        encode = self.pipeline.source_vocabulary.encode
        prefixes = [self.pipeline.target_vocabulary.encode(of_line) for of_line in begun]
        pieces: list[tuple[int, int, list[int]]] = []
        for place, (of_line, stops) in enumerate(zip(units, ends, strict=True)):
            starts = [0, *stops[:-1]]
            for number, (start, stop) in enumerate(zip(starts, stops, strict=False)):
                pieces.append((place, number, encode(of_line[start:stop])))
        found: dict[tuple[int, int], list[Hypothesis]] = {}
        for batch in self._batches([len(ids) for _, _, ids in pieces]):
            chosen = [pieces[place] for place in batch]
            keys = [numbers[place] * _MOST_PIECES + number for place, number, _ in chosen]
            texts = collate([ids for _, _, ids in chosen], [[]] * len(chosen))
            first = [[] if number else prefixes[place] for place, number, _ in chosen]
            results = self._search(texts.source, texts.source_lengths, keys, align, first)
            for (place, number, _), hypotheses in zip(chosen, results, strict=True):
                found[place, number] = hypotheses
            advance(
                sum(number == 0 for _, number, _ in chosen),
                sum(len(hypotheses[0].tokens) + 1 for hypotheses in results),
            )
        advance(sum(not stops for stops in ends), 0)
        return [
            join_ranked([found[place, number] for number in range(len(stops))], self.plan)
            for place, stops in enumerate(ends)
        ]

    def _search(
        self,
        source: Tensor,
        lengths: Tensor,
        keys: list[int],
        align: bool,
        prefixes: Sequence[Sequence[int]] = (),
    ) -> list[list[Hypothesis]]:
        rules = [ForcedPrefix(prefixes, self.device)] if any(prefixes) else []
        # One autocast around the whole search: the cast weights are then kept from step to step.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            return engine.search(
                self.models,
                source.to(self.device),
                lengths.to(self.device),
                self.plan,
                align=align,
                constraints=rules,
                keys=torch.tensor(keys),
                halt=self.halt,
                graphs=self.graphs,
            )

    def _batches(self, sizes: list[int], width: int | None = None) -> Iterator[list[int]]:
        """Yield places in order of size, so many that rows x longest stay within the limit."""
        batch: list[int] = []
        width = width or (self.plan.nbest if self.plan.sample else self.plan.beam)
        for place in sorted(range(len(sizes)), key=sizes.__getitem__):
            rows = (len(batch) + 1) * width
            if batch and rows * (sizes[place] + 1) > self.options.batch_tokens:
                yield batch
                batch = []
            batch.append(place)
        if batch:
            yield batch


def default_plan(loaded: LoadedModel) -> SearchPlan:
    """Return the search that a model's settings ask for. Raises ModelError for damaged ones."""
    try:
        return from_json(SearchPlan, loaded.settings.get("search") or {}, "settings.search.")
    except ConfigError as fault:
        problem = f"{loaded.folder / 'config.json'}: {' '.join(fault.faults)}"
        raise ModelError(problem, "Restore a copy.") from fault


def load(
    folder: str | Path,
    *more: str | Path,
    device: str = "auto",
    precision: Literal["fp32", "bf16"] = "fp32",
    weights: str = "best",
    options: TranslationOptions | None = None,
    **search: Any,
) -> Translator:
    """Return a translator for the model directory `folder`, or for several averaged ones.

    `search` changes settings of the plan (beam=5, length_penalty=0.6, ...). Raises ModelError
    for what is missing or does not fit, ConfigError for faulty settings, DeviceError for a
    device that is not there.
    """
    chosen = find_device(device)
    loaded = [load_model(path, chosen, weights) for path in (folder, *more)]
    plan = override(default_plan(loaded[0]), search)
    return Translator(loaded, plan, options, device=chosen, precision=precision)
