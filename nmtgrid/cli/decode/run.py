"""What `nmtgrid decode --forced` does: the references of a split, as the model sees them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from nmtgrid.adaptive.exit_presets import AUTO, halt_of
from nmtgrid.analysis.alignment.soft_alignments import pharaoh
from nmtgrid.base import console
from nmtgrid.base.config import from_json, override
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.text import NOTES, STANDARD, is_stream, open_writer, read_lines
from nmtgrid.cli.options import PIPE_CLOSED, Leave, check_same_text, check_vocabularies
from nmtgrid.data.dataset import Dataset, Split
from nmtgrid.models.api import with_exits
from nmtgrid.models.directory import LoadedModel, load_model
from nmtgrid.search.api import Halt
from nmtgrid.search.forced import AlignmentKind, forced_traces
from nmtgrid.search.postprocess import Translation, scores
from nmtgrid.search.traces import Trace
from nmtgrid.search.translate import TranslationOptions, Translator, default_plan, unequal_prefixes

if TYPE_CHECKING:
    import torch


def read_prefixes(path: Path | None, total: int | None) -> Iterator[str] | None:
    """Return the prefixes in `path`, None for no path.

    `total` are the lines to translate where they are known. Raises InputError, before anything is
    translated, for a file with another number of lines; pipes are read as the lines are.
    """
    if path is None:
        return None
    if total is not None and str(path) != STANDARD and not is_stream(path):
        count = sum(1 for _ in read_lines(path))
        if count != total:
            raise unequal_prefixes(count, f"there are {total:,} lines to translate", path)
    return read_lines(path)


_STANDARD_INPUT = Path(STANDARD)
_FLUSH_EVERY = 64
_FEW_ESCAPED = 0.01
"""Share of references that may hold `&apos;` and still be raw text that speaks of it."""


@dataclasses.dataclass(frozen=True)
class Outputs:
    """The files to write; None: not wanted (text: standard output, unless a split is scored)."""

    text: Path | None = None
    traces: Path | None = None
    alignments: Path | None = None


@dataclasses.dataclass(frozen=True)
class Changes:
    """What the command line changes: None leaves the model's setting or the default."""

    search: Mapping[str, Any]
    text: Mapping[str, Any]
    assignments: Sequence[str] = ()


def make_translator(
    models: Sequence[Path],
    changes: Changes,
    *,
    weights: str = "best",
    precision: Literal["fp32", "bf16"] = "fp32",
    device: torch.device | str = "cpu",
    exit: str | None = None,
) -> Translator:
    """Return the translator; every fault of the options is told before anything is decoded.

    `exit` says where tokens leave the decoder: the name of settings in the model's directory, a
    block's number, or "auto".
    """
    options = from_json(TranslationOptions, _given(changes.text))
    loaded = [load_model(path, None, weights) for path in models]
    plan = default_plan(loaded[0])
    if changes.search.get("sample"):
        plan = dataclasses.replace(plan, beam=1)  # the model's own width is not meant here
    assignments = [text.removeprefix("search.") for text in changes.assignments]
    _check_once(changes.search, assignments)
    plan = override(override(plan, _given(changes.search)), assignments)
    halt = None if exit is None else chosen(exit, loaded[0])
    return Translator(
        loaded, plan, options, device=device, precision=precision, warn=console.warn, halt=halt
    )


def _check_once(options: Mapping[str, Any], assignments: Sequence[str]) -> None:
    """Raise ConfigError for a setting that both an option and `--set` give."""
    names = {text.partition("=")[0].strip() for text in assignments}
    faults = [
        f"`--set {name}` and `--{name.replace('_', '-')}` say the same: give one."
        for name, value in options.items()
        if value is not None and name in names
    ]
    if faults:
        raise ConfigError(faults)


def chosen(choice: str, loaded: LoadedModel) -> Halt | None:
    """Return what lets tokens leave early. Raises ConfigError where `choice` does not fit."""
    if choice == AUTO and with_exits(loaded.model).traits.halting == "none":
        console.say("note: this model has no exit predictor: with `--exit auto` all blocks run.")
        return None
    return halt_of(choice, loaded, console.warn)


def translate_text(
    translator: Translator, source: Path, outputs: Outputs, prefix: Path | None = None
) -> dict[str, Any]:
    """Translate a file or pipe (`-`: standard input) line for line; return what was done.

    `prefix` has a line for each, with which its translation begins.
    """
    total = None
    if source != _STANDARD_INPUT and not is_stream(source):
        # Read it through once: a fault in its last line is told now, not after hours.
        total = sum(1 for _ in read_lines(source))
    elif sys.stdin is not None and sys.stdin.isatty():
        options = dataclasses.replace(translator.options, window=1)
        translator.options = options
        console.say("Write a sentence on each line; Ctrl-D ends.")
    notes: Counter[str] = Counter()
    prefixes = read_prefixes(prefix, total)
    begin = functools.partial(translator.stream, read_lines(source, notes), prefixes=prefixes)
    report, _ = write_translations(translator, begin, total, outputs, keep=False)
    for name, count in notes.items():
        if count:
            console.say(f"note: {source}: {NOTES[name].format(count=f'{count:,}')}")
    return report


def translate_split(
    translator: Translator,
    data: Path,
    name: str,
    outputs: Outputs,
    prefix: Path | None = None,
    with_ter: bool = False,
) -> dict[str, Any]:
    """Translate a split of a dataset; return its scores and what was done."""
    dataset = Dataset.open(data)
    split = dataset.split(name)
    check_same_text(translator, dataset)
    lines = split.raw_source()
    prefixes = read_prefixes(prefix, len(lines))
    begin = functools.partial(translator.stream, lines, prefixes=prefixes)
    report, translations = write_translations(translator, begin, len(lines), outputs, keep=True)
    lowercase = dataset.pipeline.facts.lowercase
    found = scores(translations, split, lowercase=lowercase, with_ter=with_ter)
    _show(found, split, report)
    return {**found, "split": name, **report}


def write_translations(
    translator: Translator,
    begin: Callable[..., Iterator[Translation]],
    total: int | None,
    outputs: Outputs,
    *,
    keep: bool,
) -> tuple[dict[str, Any], list[Translation]]:
    """Translate and write; return counts and times, and the translations if they are wanted.

    `begin(align=.., advance=..)` is the translator's `stream` or `caption` of what is to be read.
    """
    aligns = all(model.traits.aligns for model in translator.models)
    align = outputs.alignments is not None or (outputs.traces is not None and aligns)
    kept: list[Translation] = []
    started = time.perf_counter()
    with progress(total) as meter, contextlib.ExitStack() as stack:
        stream = begin(align=align, advance=meter.advance)
        text = _STANDARD_INPUT if outputs.text is None and not keep else outputs.text
        files = [
            None if path is None else stack.enter_context(open_writer(path))
            for path in (text, outputs.traces, outputs.alignments)
        ]
        for translation in stream:
            _write(files, translation, translator.plan.nbest)
            meter.sentences += 1
            meter.count_exits(translation)
            if keep:
                kept.append(translation if not align else _without_alignments(translation))
    seconds = time.perf_counter() - started
    report = {
        "sentences": meter.sentences,
        "target_tokens": meter.tokens,
        "seconds": seconds,
        "tokens_per_second": meter.tokens / max(seconds, 1e-9),
        "search": dataclasses.asdict(translator.plan),
    }
    if meter.exits:
        report["average_exit"] = meter.exits / meter.left
    return report, kept


def _write(files: Sequence[IO[bytes] | None], translation: Translation, nbest: int) -> None:
    text, traces, alignments = files
    if text is not None:
        lines = [translation.text] if nbest == 1 else _nbest(translation)
        try:
            text.write("".join(f"{line}\n" for line in lines).encode())
            if translation.line % _FLUSH_EVERY == 0:
                text.flush()
        except BrokenPipeError as fault:
            # As it is, it would be taken for a fault of the other files that stand open.
            raise Leave(PIPE_CLOSED) from fault
    if traces is not None or alignments is not None:
        trace = Trace.of(translation)
        if traces is not None:
            traces.write(f"{trace.to_line()}\n".encode())
        if alignments is not None:
            alignments.write(f"{pharaoh(trace)}\n".encode())


def _nbest(translation: Translation) -> list[str]:
    """Return `line ||| text ||| log-probability ||| score` lines; an empty line has one."""
    if not translation.hypotheses:
        return [f"{translation.line} |||  ||| 0.0000 ||| 0.0000"]
    return [
        f"{translation.line} ||| {text} ||| {one.log_probability:.4f} ||| {one.score:.4f}"
        for text, one in zip(translation.texts, translation.hypotheses, strict=True)
    ]


def _without_alignments(translation: Translation) -> Translation:
    """Return what scoring needs: alignments of a whole split would fill the memory."""
    return dataclasses.replace(translation, hypotheses=[])


class _Meter:
    """Counts what is done and shows it on the progress bar."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._started = time.perf_counter()
        self.sentences = self.tokens = self.exits = self.left = 0

    def count_exits(self, translation: Translation) -> None:
        """Add where the tokens of the best hypothesis left the decoder, its end symbol's too."""
        if translation.hypotheses and translation.hypotheses[0].exits is not None:
            self.exits += sum(translation.hypotheses[0].exits)
            self.left += len(translation.hypotheses[0].exits)

    def advance(self, lines: int, tokens: int) -> None:
        self.tokens += tokens
        rate = self.tokens / max(time.perf_counter() - self._started, 1e-9)
        self._bar.update(self._bar.task_ids[0], advance=lines, note=f"{rate:,.0f} target tokens/s")


@contextlib.contextmanager
def progress(total: int | None) -> Iterator[_Meter]:
    """Show how far the translations are."""
    with console.progress("translating", total) as bar:
        yield _Meter(bar)


def _show(found: Mapping[str, Any], split: Split, report: Mapping[str, Any]) -> None:
    names = {
        "bleu_tokenized": "BLEU, tokenised (%)",
        "bleu": "BLEU, raw text (%)",
        "chrf": "chrF2, raw text (%)",
    }
    if "ter" in found:
        names["ter"] = "TER, raw text (%)"
    console.table(
        f"{split.name}: {report['sentences']:,} sentences in {report['seconds']:.1f} s, "
        f"{report['tokens_per_second']:,.0f} target tokens/s",
        ["score", "value"],
        [[title, found[key]] for key, title in names.items()],
    )
    for key in names:
        console.say(f"signature of {key}: {found[f'signature_{key}']}")
    if "average_exit" in report:
        console.say(f"average exit: {report['average_exit']:.2f} blocks per token")
    if found["references_lowercased"]:
        console.say(
            "The dataset is lower-cased: raw references are compared in lower case (case:lc)."
        )
    if found["references_escaped"] > _FEW_ESCAPED * report["sentences"]:
        console.warn(
            f"{found['references_escaped']:,} references hold what Moses' tokeniser writes, such "
            "as `&apos;`: they are not raw text. Raw BLEU takes that for three words and is too "
            "high; quote tokenised BLEU."
        )


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def force_split(
    translator: Translator, data: Path, name: str, outputs: Outputs, kind: AlignmentKind
) -> dict[str, Any]:
    """Teacher-force a split; write traces and alignments; return the perplexity and counts."""
    dataset = Dataset.open(data)
    check_same_text(translator, dataset)
    check_vocabularies(translator, dataset)
    split, total, started = dataset.split(name), 0.0, time.perf_counter()
    model = translator.models[0]
    needs = outputs.alignments is not None or kind == "energies"
    with progress(len(split)) as meter, contextlib.ExitStack() as stack:
        traces, alignments = (
            None if path is None else stack.enter_context(open_writer(path))
            for path in (outputs.traces, outputs.alignments)
        )
        for trace in forced_traces(
            model,
            translator.pipeline,
            split,
            kind=kind,
            align=needs or (outputs.traces is not None and model.traits.aligns),
            device=translator.device,
            bf16=translator.bf16,
            batch_tokens=translator.options.batch_tokens,
            advance=meter.advance,
        ):
            total += trace.log_probability
            if traces is not None:
                traces.write(f"{trace.to_line()}\n".encode())
            if alignments is not None:
                alignments.write(f"{pharaoh(trace)}\n".encode())
    tokens = int(split.target_lengths.sum()) + len(split)
    perplexity = math.exp(min(-total / max(tokens, 1), 700.0))
    console.say(
        f"{split.name}: perplexity {perplexity:.3f} over {tokens:,} target units, end symbols "
        "included."
    )
    return {
        "split": name,
        "sentences": len(split),
        "target_tokens": tokens,
        "perplexity": perplexity,
        "nll": -total / max(tokens, 1),
        "seconds": time.perf_counter() - started,
    }
