"""Raw text in, raw text out: the complete pipeline from lines to their translations, in order.

The minimal use is `nmtgrid.load("runs/toy/model", beam=5).translate(["Guten Morgen!"])`; the page
docs/python.md shows the rest. The commands `decode` and `online-eval` use the `Translator` too.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtgrid.base.config import FROM_1, CheckedSettings, Range, from_json, override
from nmtgrid.base.config import check as check_config
from nmtgrid.base.devices import HeapTrimmer, autocast, find_device, keep_memory
from nmtgrid.base.errors import ConfigError, InputError, ModelError
from nmtgrid.base.io.workers import chunks
from nmtgrid.base.own_code import import_files
from nmtgrid.base.spans import plural, shortened
from nmtgrid.base.subword_marks import JOINER, joined_words, word_numbers
from nmtgrid.data.batches import collate, cut_by_length, pad
from nmtgrid.data.captioning.dataset import check_size, collate_pictures, region_names
from nmtgrid.models.api import Halt, TranslationModel, Verified
from nmtgrid.models.directory import LoadedModel, load_model
from nmtgrid.search import engine
from nmtgrid.search.api import Hypothesis, SearchPlan, Translation
from nmtgrid.search.constraints import ForcedPrefix
from nmtgrid.search.cuda_graphs import Graphs, Recorder
from nmtgrid.search.forced import forced_log_probabilities
from nmtgrid.search.long_sources import (
    LongLines,
    SourceLimits,
    cut,
    join_ranked,
    long_line_warning,
    split,
    unaligned_warning,
    units_to_split,
    untrained_length_warning,
)
from nmtgrid.search.precision import Precision, check_precision, choose, measure, prepare
from nmtgrid.search.unknown_units import UnknownUnits
from nmtgrid.text.pipeline import Pipeline
from nmtgrid.text.scripts import estimated_words
from nmtgrid.text.vocabulary import END, UNKNOWN

_PICTURE_WINDOW = 256
"""Number of pictures in memory at once; they are sorted by regions within this window."""
_LONGEST_PREFIX = 1024
"""Maximum number of units of a forced prefix: each is a search step, despite the length limit."""
_MOST_SEGMENTS = 1 << 16
"""Number of segments of a line that have distinct sampling keys."""
_MOST_COPIED = 2
"""Maximum length, in words estimated from letters, of a source word that replaces `<unk>`."""
Item = TypeVar("Item")


def check_text(model: TranslationModel) -> None:
    """Raise ConfigError if the model captions pictures and so cannot translate text."""
    if model.traits.source_features:
        raise ConfigError(
            f"This model (`{model.architecture}`) captions pictures; it cannot read text.",
            "Give it features of pictures: a file as INPUT whose name ends with .safetensors, or a "
            "dataset of pictures.",
        )


def check_pictures(model: TranslationModel) -> None:
    """Raise ConfigError if the model translates text and so cannot caption pictures."""
    if not model.traits.source_features:
        raise ConfigError(
            f"This model (`{model.architecture}`) translates text; it cannot read pictures.",
            "Give it text, or use a model such as `caption-top-down`.",
        )


def check_ensemble(loaded: Sequence[LoadedModel]) -> None:
    """Raise ConfigError if there is no model, ModelError unless all prepare text alike."""
    if not loaded:
        raise ConfigError("There is no model to translate with.")
    first, advice = loaded[0], "Only models made from one dataset can be averaged."
    for other in loaded[1:]:
        folders = f"{first.folder} and {other.folder}"
        for side in ("source", "target"):
            types = getattr(first.pipeline, side).vocabulary.types
            others = getattr(other.pipeline, side).vocabulary.types
            if types != others:
                sizes = f"{len(types):,} and {len(others):,} types"
                raise ModelError(f"{folders} have different {side} vocabularies ({sizes}).", advice)
        # Equal vocabularies may come from text that was prepared differently.
        if first.pipeline.facts != other.pipeline.facts:
            raise ModelError(f"{folders} prepare text differently.", advice)


def unequal_prefixes(count: int, problem: str, path: str | Path = "") -> InputError:
    """Return the error if the number of prefixes (`count` or more) is not that of the lines."""
    return InputError(
        f"there are prefixes for {plural(count, 'line')}, but {problem}.",
        "Give one for each line of the input, an empty one for a translation without a prefix.",
        path=path,
    )


def _with_prefixes(lines: Iterable[str], prefixes: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each line with its prefix. Raises InputError if there are fewer or more prefixes."""
    pairs = itertools.zip_longest(lines, prefixes)
    for number, (line, prefix) in enumerate(pairs, start=1):
        if prefix is None:
            raise unequal_prefixes(number - 1, f"line {number:,} has none")
        if line is None:
            raise unequal_prefixes(number, f"the input has only {plural(number - 1, 'line')}")
        yield line, prefix


def _checked(lines: Iterable[Item], what: str, *, are_strings: bool = False) -> Iterator[Item]:
    """Return an iterator over `lines`, which error messages call `what`.

    Raises TypeError immediately if `lines` is not iterable or a single string, whose letters would
    be taken for lines; with `are_strings`, also during iteration for items that are not strings.
    """
    if isinstance(lines, (str, bytes)):
        raise TypeError(
            f"{what} must be several strings, not one: its letters would be taken for lines. "
            f"Pass a list, even for one line: [{_short(lines)}]."
        )
    if not isinstance(lines, Iterable):
        raise TypeError(f"{what} must be a list or another iterable, but is {_short(lines)}.")
    return _strings(lines, what) if are_strings else iter(lines)


def _strings(lines: Iterable[Item], what: str) -> Iterator[Item]:
    for number, line in enumerate(lines, start=1):
        if not isinstance(line, str):
            raise TypeError(f"{what} must be strings, but number {number:,} is {_short(line)}.")
        yield line


def _short(value: object) -> str:
    return shortened(repr(value))


_COUNT = Range(
    "a whole number from 1 on",
    lambda value: isinstance(value, (int, numpy.integer)) and FROM_1.contains(value),
)


@dataclasses.dataclass(frozen=True)
class TranslationOptions(CheckedSettings):
    """Options for the translation of text."""

    batch_tokens: Annotated[int, _COUNT] = 4000
    """Source tokens of a batch, including padding, times the width of the search."""
    max_source: Annotated[int | None, _COUNT] = None
    """Longest source in units that is translated whole (None: from the training data)."""
    long_lines: LongLines = "split"
    """Longer lines are split at the ends of their sentences, or cut, with a warning."""
    replace_unknown: bool = False
    """Replace `<unk>` by the aligned source word."""
    window: Annotated[int, _COUNT] = 4096
    """Number of lines in memory at once; they are sorted by length within this window."""

    def called(self, name: str) -> str:
        return f"`{name}` (`--{name.replace('_', '-')}`)"

    def faults(self) -> list[str]:
        """Return a description of each invalid value."""
        faults = super().faults()
        if self.long_lines not in get_args(LongLines):
            faults.append(
                f"{self.called('long_lines')} must be split or cut, but is {self.long_lines!r}."
            )
        return faults


@dataclasses.dataclass(frozen=True)
class _Line:
    """A source line in units, the ends of its segments (none if empty), and its forced prefix."""

    number: int
    units: list[str]
    ids: list[int]
    ends: list[int]
    prefix: list[str]


class Translator:
    """A model or an ensemble that translates raw text or captions pictures."""

    def __init__(
        self,
        loaded: Sequence[LoadedModel],
        plan: SearchPlan | None = None,
        options: TranslationOptions | None = None,
        *,
        device: torch.device | str = "cpu",
        precision: Precision = "fp32",
        warn: Callable[[str], None] | None = None,
        halt: Halt | Verified | None = None,
    ) -> None:
        """`plan` defaults to the first model's settings.

        `warn` gets messages about long lines (None: they are Python warnings), `halt` decides where
        tokens exit early (None: nowhere). With `precision` auto the fastest one is chosen in a
        short measurement. Raises ConfigError for invalid plans and for a precision that the device
        does not support, ModelError if the models' vocabularies differ.
        """
        check_ensemble(loaded)
        self.loaded = loaded[0]
        """The model, or the first one of an ensemble."""
        self.pipeline: Pipeline = loaded[0].pipeline
        self.plan = default_plan(loaded[0]) if plan is None else plan
        self.options = TranslationOptions() if options is None else options
        check_config(self.plan)
        check_config(self.options)
        self.device = torch.device(device)
        self.warn = warn or (lambda text: warnings.warn(text, stacklevel=2))
        self.models = [member.model.to(self.device).eval() for member in loaded]
        self.halt = halt
        self.exit: str | None = None
        """The choice passed to `nmtgrid.early_exit`, as text."""
        known = [member.lengths for member in loaded]
        self.limits = SourceLimits.of(known, self.options.max_source)
        self.features = self.models[0].traits.source_features  # of a region; 0: text
        # Only a GPU gains from recorded steps. Searches share their memory, so only one runs at a
        # time; on other devices searches share nothing that they write to.
        self.graphs = Graphs(Recorder(self.device)) if self.device.type == "cuda" else None
        self._turn = contextlib.nullcontext() if self.graphs is None else threading.Lock()
        # Unknown words are replaced along the alignment, so the models must have one.
        engine.check(self.models, self.plan, self.options.replace_unknown, halt=halt)
        check_precision(precision, self.device, halt, self.warn)
        if self.device.type == "cpu":
            keep_memory()  # the steps of a search free and allocate a lot of it
        self._heap = HeapTrimmer()
        self.speedups: dict[str, float] = {}
        """How many times faster than in fp32 a search was with each precision, if measured."""
        if precision == "auto":
            types = len(self.pipeline.source_vocabulary)
            ratios = measure(self.models, self.plan, types)
            self.speedups, precision = dict(ratios.items()), choose(ratios)
        self.precision: Precision = precision
        self.bf16 = precision == "bf16"
        """Whether searches run under autocast; otherwise only the models' products are rounded."""
        if self.device.type == "cpu":
            self.models, self.bf16 = prepare(self.models, precision)

    def with_search(self, **search: Any) -> Translator:
        """Return a translator with other search settings (beam=5, nbest=3, ...).

        It shares the models and the text pipeline, so this is free. Raises ConfigError for invalid
        settings.
        """
        other = copy.copy(self)
        other.plan = _changed(self.plan, search)
        engine.check(self.models, other.plan, self.options.replace_unknown, halt=self.halt)
        return other

    def translate(
        self, lines: Iterable[str], *, prefixes: Iterable[str] | None = None
    ) -> list[str]:
        """Return the translations of raw `lines`, one for each; empty lines stay empty.

        `prefixes` and errors are as in `translations`.
        """
        return [translation.text for translation in self.translations(lines, prefixes=prefixes)]

    def with_halt(self, halt: Halt | Verified | None, exit: str) -> Translator:
        """Return a translator whose tokens exit early as `halt` decides (None: never).

        `exit` is the choice that `halt` was made from. Models and text pipeline are shared. Raises
        ConfigError if the models or the search do not support `halt`.
        """
        other = copy.copy(self)
        other.halt, other.exit = halt, exit
        engine.check(self.models, self.plan, self.options.replace_unknown, halt=halt)
        check_precision(self.precision, self.device, halt, self.warn)
        return other

    def score(self, pairs: Iterable[tuple[str, str]]) -> list[float]:
        """Return the log-probability of each raw (source, target), including the end symbol.

        Pairs are scored whole, however long they are. Raises TypeError unless `pairs` is a list of
        pairs of strings.
        """
        check_text(self.models[0])
        encoded, untrained = [], {}
        for number, pair in enumerate(_checked(pairs, "pairs"), start=1):
            is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
            if not (is_pair and all(isinstance(side, str) for side in pair)):
                raise TypeError(
                    f"pairs must be pairs of strings, source and target, but number {number} is "
                    f"{_short(pair)}. Pass a list, even for one pair: [(source, target)]."
                )
            source, target = pair
            encoded.append(
                (self.pipeline.encode_source(source), self.pipeline.encode_target(target))
            )
            if self.limits.trained is not None and len(encoded[-1][0]) > self.limits.trained:
                untrained[number] = len(encoded[-1][0])
        UnknownUnits(self.pipeline, self.warn).add(source for source, _ in encoded)
        if untrained:
            advice = "Score their sentences one by one."
            self.warn(untrained_length_warning(untrained, self.limits, advice))
        scores = [0.0] * len(encoded)
        sizes = [len(source) + len(target) for source, target in encoded]
        for indices in self._batches(sizes, 1):
            batch = collate(*zip(*(encoded[index] for index in indices), strict=True))
            with autocast(self.device, self.bf16):
                values = forced_log_probabilities(self.models, batch.to(self.device))
            for index, value in zip(indices, values.sum(1).tolist(), strict=True):
                scores[index] = value
        return scores

    def translations(
        self,
        lines: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        align: bool = False,
        on_progress: Callable[[float, int], None] = lambda lines, tokens: None,
        is_waiting: Callable[[], bool] = lambda: False,
    ) -> Iterator[Translation]:
        """Yield the translation of each line, in order, with one window of lines in memory.

        With `align` hypotheses have alignments. `on_progress` is called after each batch with the
        number of lines finished, fractions for segments of lines, and that of target tokens.
        `is_waiting` is called after each line: if the next one has not arrived yet, the lines so
        far are translated first.
        `prefixes` are raw text that the translation of each line must begin with, in whole words,
        possibly empty; of a line in segments, they apply to the first segment. Raises ConfigError
        immediately if `align` is set and the model has no alignments, TypeError for items that are
        not strings; during iteration InputError unless there are as many prefixes as lines, each of
        at most 1,024 units.
        """
        lines = _checked(lines, "lines", are_strings=True)
        engine.check(self.models, self.plan, align)
        check_text(self.models[0])
        pairs: Iterator[tuple[str, str]] = zip(lines, itertools.repeat(""), strict=False)
        if prefixes is not None:
            prefixes = _checked(prefixes, "prefixes", are_strings=True)
            pairs = _with_prefixes(lines, prefixes)
        # A separate generator, so that the errors above are raised here, not at the first line.
        return self._windows(pairs, align, on_progress, is_waiting)

    def caption(
        self,
        pictures: Iterable[NDArray[numpy.float32]],
        *,
        align: bool = False,
        on_progress: Callable[[float, int], None] = lambda pictures, tokens: None,
    ) -> Iterator[Translation]:
        """Yield the caption of each picture, given as features [regions, F], in order.

        Raises ConfigError immediately if the model cannot caption, DataError for features of
        another size.
        """
        pictures = _checked(pictures, "pictures")
        engine.check(self.models, self.plan, align)
        check_pictures(self.models[0])
        return self._captions(pictures, align, on_progress)

    def _captions(
        self,
        pictures: Iterable[NDArray[numpy.float32]],
        align: bool,
        on_progress: Callable[[float, int], None],
    ) -> Iterator[Translation]:
        numbered = enumerate(
            (check_size(features, self.features) for features in pictures), start=1
        )
        for window in chunks(numbered, _PICTURE_WINDOW):
            captions: dict[int, list[Hypothesis]] = {}
            for indices in self._batches([len(features) for _, features in window]):
                source, lengths = collate_pictures([window[index][1] for index in indices])
                keys = [window[index][0] for index in indices]
                nbest_lists = self._search(source, lengths, keys, align)
                captions.update(zip(indices, nbest_lists, strict=True))
                tokens = sum(len(best.tokens) + 1 for best, *_ in nbest_lists)
                on_progress(len(indices), tokens)
            for index, (number, features) in enumerate(window):
                names = region_names(len(features))
                caption = restore(
                    self.pipeline, number, names, join_ranked([captions[index]], self.plan)
                )
                yield dataclasses.replace(caption, source_end=False)

    def _forced(self, prefix: str, number: int) -> list[str]:
        """Return the units of the prefix of line `number`."""
        units = self.pipeline.target.tokens(prefix) if prefix else []
        if len(units) > _LONGEST_PREFIX:
            raise InputError(
                f"the prefix of line {number:,} has {len(units):,} units, but at most "
                f"{_LONGEST_PREFIX:,} are allowed.",
                "Give only the beginning of this line's translation.",
            )
        return units

    def _windows(
        self,
        pairs: Iterable[tuple[str, str]],
        align: bool,
        on_progress: Callable[[float, int], None],
        is_waiting: Callable[[], bool],
    ) -> Iterator[Translation]:
        """Yield the translation of each (line, prefix), window by window."""
        pipeline, options = self.pipeline, self.options
        align = align or options.replace_unknown
        numbered = enumerate(pairs, start=1)
        unknown = UnknownUnits(pipeline, self.warn)
        for window in chunks(numbered, options.window, is_waiting):
            lines: list[_Line] = []
            too_long: dict[int, int] = {}
            untrained: dict[int, int] = {}
            for number, (text, prefix) in window:
                units, ends = self._segments(text)
                if len(ends) > 1 or (ends and ends[-1] < len(units)):
                    too_long[number] = len(units)
                if self.limits.trained is not None:
                    longest = max((end - start for start, end in pairwise([0, *ends])), default=0)
                    if longest > self.limits.trained:
                        untrained[number] = longest
                forced = self._forced(prefix, number)
                ids = pipeline.source_vocabulary.encode(units)
                lines.append(_Line(number, units, ids, ends, forced))
            unknown.add(line.ids for line in lines)
            if too_long:
                self.warn(long_line_warning(too_long, self.limits, options.long_lines))
            if untrained:
                advice = "Leave out `--max-source`, and they are translated in segments."
                self.warn(untrained_length_warning(untrained, self.limits, advice))
            results = self._search_window(lines, align, on_progress)
            for line in lines:
                # Removed, so that finished lines do not stay in memory.
                segments = [results.pop((line.number, n)) for n in range(len(line.ends))]
                joined = join_ranked(segments, self.plan)
                if align and any(whole.alignment is None for whole, _ in joined):
                    self.warn(unaligned_warning(line.number))
                yield restore(
                    pipeline, line.number, line.units, joined, options.replace_unknown, line.prefix
                )

    def _segments(self, text: str) -> tuple[list[str], list[int]]:
        """Return the units of a line and the ends of its segments; no ends for an empty line."""
        side, is_cut = self.pipeline.source, self.options.long_lines == "cut"
        units = side.tokens(text) if is_cut else units_to_split(text, self.limits, side)
        if not units:
            return [], []
        if is_cut:
            return units, cut(units, self.limits.segment, side.mark)[:1]
        return units, split(units, self.limits, side.moses, side.mark)

    def _search_window(
        self, lines: list[_Line], align: bool, on_progress: Callable[[float, int], None]
    ) -> dict[tuple[int, int], list[Hypothesis]]:
        """Return the hypotheses of each (line number, segment of the line) of a window."""
        vocabulary = self.pipeline.target_vocabulary
        segments: list[tuple[tuple[int, int], list[int], list[int]]] = []  # ids, forced ids
        for line in lines:
            for segment, (start, end) in enumerate(pairwise([0, *line.ends])):
                forced = [] if segment else vocabulary.encode(line.prefix)
                segments.append(((line.number, segment), line.ids[start:end], forced))
        share_of_segment = {line.number: 1 / len(line.ends) for line in lines if line.ends}
        results: dict[tuple[int, int], list[Hypothesis]] = {}
        # Sentences with the same exit are searched together, unless there are constraints, which
        # belong to their batches.
        is_forced = any(forced for *_, forced in segments)
        together = 1 if is_forced else engine.batches_together(self.halt)
        for batches in chunks(self._batches([len(ids) for _, ids, _ in segments]), together):
            self._heap.trim()
            indices = [*itertools.chain(*batches)]
            names, sources, prefixes = zip(*(segments[index] for index in indices), strict=True)
            source = pad([[*ids, END] for ids in sources])
            lengths = torch.tensor([len(ids) + 1 for ids in sources])
            # A key depends only on the line and the segment, so samples do not depend on batches.
            keys = [number * _MOST_SEGMENTS + segment for number, segment in names]
            nbest_lists = self._search(source, lengths, keys, align, prefixes, len(batches))
            results.update(zip(names, nbest_lists, strict=True))
            tokens = sum(len(best.tokens) + 1 for best, *_ in nbest_lists)
            on_progress(sum(share_of_segment[number] for number, _ in names), tokens)
        # Empty lines are in no batch, but they are finished too.
        on_progress(sum(not line.ends for line in lines), 0)
        return results

    def _search(
        self,
        source: Tensor,
        lengths: Tensor,
        keys: list[int],
        align: bool,
        prefixes: Sequence[Sequence[int]] = (),
        parts: int = 1,
    ) -> list[list[Hypothesis]]:
        constraints = [ForcedPrefix(prefixes, self.device)] if any(prefixes) else []
        # One autocast around the whole search, so that cast weights are reused in all steps.
        with self._turn, autocast(self.device, self.bf16):
            return engine.search(
                self.models,
                source.to(self.device),
                lengths.to(self.device),
                self.plan,
                align=align,
                constraints=constraints,
                keys=torch.tensor(keys),
                halt=self.halt,
                graphs=self.graphs,
                parts=parts,
            )

    def _batches(self, sizes: list[int], width: int | None = None) -> Iterator[list[int]]:
        """Yield batches of indices in order of size, with rows x longest within the limit."""
        # Rows of one length pad little, and the state of a search grows with its rows.
        width = width or (self.plan.nbest if self.plan.sample else self.plan.beam)
        lengths = numpy.array(sizes, dtype=int)
        limit = self.options.batch_tokens // width
        for batch in cut_by_length(lengths, lengths, numpy.arange(len(sizes)), limit):
            yield batch.tolist()


def restore(
    pipeline: Pipeline,
    line: int,
    source: list[str],
    joined: Sequence[tuple[Hypothesis, Sequence[int]]],
    replace_unknown: bool = False,
    prefix: Sequence[str] = (),
) -> Translation:
    """Return the translation of line number `line` with these source units.

    `joined` are its hypotheses, best first, with the beginnings of their segments (`join_ranked`).
    `replace_unknown` replaces `<unk>` by the aligned source word. `prefix` are the target units
    that were forced: they appear as given, including unknown ones.
    """
    targets, words, texts = [], [], []
    for hypothesis, starts in joined:
        # A search writes neither `<pad>` nor `<s>`, and its hypotheses omit the end symbol.
        units = pipeline.target.vocabulary.decode(hypothesis.tokens)
        if replace_unknown and hypothesis.alignment is not None:
            # The last row and column of an alignment are those of the end symbols.
            columns = hypothesis.alignment[: len(units), :-1].argmax(1).tolist()
            for row, token in enumerate(hypothesis.tokens):
                if token == UNKNOWN:
                    units[row] = whole_word(source, columns[row], pipeline.source.mark)
        # The model wrote the prefix as ids, in which unknown types have become `<unk>`.
        units = [*prefix, *units[len(prefix) :]]
        targets.append(units)
        # Words as in the dataset: `bleu_tokenized` compares these.
        segments = (units[start:end] for start, end in pairwise([*starts, len(units)]))
        words.append(pipeline.target.join_segments(segments))
        texts.append(pipeline.target.moses.detokenize(words[-1]))
    best = (words[0], targets[0]) if joined else ("", [])
    return Translation(line, source, [hypothesis for hypothesis, _ in joined], texts, *best)


def whole_word(units: Sequence[str], index: int, mark: str = JOINER) -> str:
    """Return the word that the unit at `index` belongs to; their `mark` shows where words end.

    In text without spaces, where a word may be a whole sentence, only the unit is returned.
    """
    word = joined_words(units, mark)[word_numbers(units, mark)[index]]
    if estimated_words([word]) <= _MOST_COPIED:
        return word
    # A separate `▁` belongs to the unit after it.
    end = index + (2 if units[index] == mark else 1)
    return "".join(joined_words(units[index:end], mark))


def default_plan(loaded: LoadedModel) -> SearchPlan:
    """Return the search plan in a model's settings. Raises ModelError if they are damaged."""
    try:
        return from_json(SearchPlan, loaded.settings.get("search") or {}, "settings.search.")
    except ConfigError as fault:
        problem = f"{loaded.folder / 'config.json'}: {' '.join(fault.faults)}"
        raise ModelError(problem, "Restore a copy.") from fault


def _changed(plan: SearchPlan, search: Mapping[str, Any]) -> SearchPlan:
    """Return `plan` changed by Python arguments. Raises ConfigError if these are invalid."""
    try:
        changed = override(plan, search)
    except ConfigError as fault:
        # In Python settings are arguments, so messages omit `--set` and options in brackets.
        problems = [
            re.sub(r" \(`--[a-z-]+`\)", "", problem.replace("`--set ", "`"))
            for problem in fault.faults
        ]
        raise ConfigError(problems, fault.advice) from None
    if idle := changed.ineffective(search):
        raise ConfigError([f"`{name}` has no effect without `sample=True`." for name in idle])
    return changed


def load(
    folder: str | Path,
    *more: str | Path,
    device: str = "auto",
    precision: Precision = "fp32",
    weights: Literal["best", "last", "average"] = "best",
    options: TranslationOptions | None = None,
    warn: Callable[[str], None] | None = None,
    imports: Iterable[str | Path] = (),
    **search: Any,
) -> Translator:
    """Return a translator for the model directory `folder`, or for several averaged ones.

    `warn` gets messages about long lines (None: they are Python warnings), `imports` are Python
    files that define parts of the model, such as its architecture. `search` changes settings of the
    search (beam=5, length_penalty=0.6, ...). Raises ModelError if something is missing or does not
    fit, ConfigError for invalid settings, DeviceError for a device that does not exist, TypeError
    for arguments of another type.
    """
    for path in (folder, *more):
        if not isinstance(path, (str, Path)):
            raise TypeError(f"A model directory is named by its path, not by {_short(path)}.")
    if not isinstance(device, str):
        raise TypeError(f"device must be a name such as 'cpu' or 'auto', but is {_short(device)}.")
    if not isinstance(weights, str):
        raise TypeError(f"weights must be a name such as 'best', but is {_short(weights)}.")
    if warn is not None and not callable(warn):
        raise TypeError(f"warn must be a function of one text, but is {_short(warn)}.")
    if options is not None and not isinstance(options, TranslationOptions):
        raise TypeError(f"options must be TranslationOptions, but are {_short(options)}.")
    if precision not in get_args(Precision):
        names = ", ".join(map(repr, get_args(Precision)))
        raise ConfigError(f"precision must be one of {names}, but is {_short(precision)}.")
    import_files(imports)
    torch_device = find_device(device)
    loaded = [load_model(path, torch_device, weights) for path in (folder, *more)]
    plan = _changed(default_plan(loaded[0]), search)
    return Translator(loaded, plan, options, device=torch_device, precision=precision, warn=warn)
