"""Runs `nmtgrid decode`: translates, captions or scores references, writes files, prints scores."""

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
from typing import IO, Any

import torch

from nmtgrid.adaptive.exit_presets import AUTO, halt_of
from nmtgrid.analysis.alignment.pharaoh import to_text
from nmtgrid.analysis.alignment.soft_alignments import links
from nmtgrid.base import console
from nmtgrid.base.config import from_json, override_all, set_option
from nmtgrid.base.devices import find_device
from nmtgrid.base.errors import ConfigError, DataError
from nmtgrid.base.io.atomic import is_stream
from nmtgrid.base.io.text import STANDARD, PipeMeter, open_writer, read_lines
from nmtgrid.base.spans import plural
from nmtgrid.cli.decode.arguments import PICTURE_RULES, DecodeArguments
from nmtgrid.cli.options import (
    PIPE_CLOSED,
    Leave,
    check_rules,
    check_same_text,
    check_vocabularies,
    config_file,
    explicit_options,
    say_notes,
)
from nmtgrid.data.captioning.dataset import FeatureFiles, as_floats
from nmtgrid.data.dataset import Dataset, PictureSplit, Split
from nmtgrid.metrics.quality import bleu, caption_scores, chrf, ter, tokenizer
from nmtgrid.models.api import Halt, Verified, with_exits
from nmtgrid.models.card import CARD, ScoreRecord, update_card
from nmtgrid.models.directory import LoadedModel, load_model
from nmtgrid.online.objectives.wait_k import trained_k
from nmtgrid.search.api import BlockCount, SearchPlan, Translation
from nmtgrid.search.forced import forced_traces
from nmtgrid.search.traces import Trace
from nmtgrid.search.translate import (
    TranslationOptions,
    Translator,
    check_pictures,
    check_text,
    default_plan,
    unequal_prefixes,
)
from nmtgrid.text.moses import Moses, count_escaped
from nmtgrid.text.scripts import bleu_tokenizer

_WIDEST = 1000
"""Maximum beam size."""
_FEW_ESCAPED = 0.01
"""Share of references that may contain `&apos;` in raw text, which may legitimately mention it."""
TRANSLATION_SCORES = {
    "bleu_tokenized": "BLEU, tokenised (%)",
    "bleu": "BLEU, raw text (%)",
    "chrf": "chrF2, raw text (%)",
    "ter": "TER, raw text (%)",
}
_CAPTION_SCORES = {
    "bleu_1": "BLEU-1 (%)",
    "bleu_2": "BLEU-2 (%)",
    "bleu_3": "BLEU-3 (%)",
    "bleu_4": "BLEU-4 (%)",
    "cider": "CIDEr-D (x 100)",
}


def option_faults(arguments: DecodeArguments) -> list[str]:
    """Return errors in the values of options that do not depend on the model."""
    faults: list[str] = []
    try:
        _options(arguments)
    except ConfigError as fault:
        faults += fault.faults
    try:
        # The beam of the model, which bounds `--nbest`, is not known yet.
        plan = _plan(arguments, SearchPlan(beam=_WIDEST))
    except ConfigError as fault:
        return [*faults, *fault.faults]
    scores_only = arguments.data is not None and arguments.out is None
    if scores_only and not arguments.forced and plan.nbest > 1:
        faults.append(
            f"`--nbest {plan.nbest}` has no effect with `--data`, which scores only the best "
            "translations: add `--out FILE` for the list."
        )
    return faults


def _options(arguments: DecodeArguments) -> TranslationOptions:
    return from_json(TranslationOptions, _explicit_fields(arguments, TranslationOptions))


def _option(name: str) -> str:
    """Return the name, in messages, of the option of a setting."""
    return f"--{name.replace('_', '-')}"


def _plan(arguments: DecodeArguments, plan: SearchPlan) -> SearchPlan:
    """Return the model's `plan` with the changes of options and `--set`. Raises ConfigError."""
    search = _explicit_fields(arguments, SearchPlan)
    if arguments.sample:
        plan = dataclasses.replace(plan, beam=1)  # the model's own beam size does not apply
    # `--set` changes settings of the search, with or without the name of their group.
    changes = [text.removeprefix("search.") for text in arguments.changes or []]
    changed = [text.partition("=")[0].strip() for text in changes]
    faults = [
        f"`--set {name}` and `{_option(name)}` set the same value: give only one."
        for name in search
        if name in changed
    ]
    if any("".join(text.split()).lower() == "sample=true" for text in changes):
        faults.append("`--set sample=true`: use `--sample` instead, which samples without a beam.")
    if faults:
        raise ConfigError(faults)
    plan = override_all(plan, [(_option, search), (set_option, changes)])
    if idle := plan.ineffective(changed):
        raise ConfigError([f"`--set {name}` has no effect without `--sample`." for name in idle])
    return plan


def make_translator(arguments: DecodeArguments) -> Translator:
    """Return the translator; all errors in the options are raised before anything is decoded.

    An option that is not given has the value of the model or the default.
    """
    device = find_device(arguments.device)
    models = load_models(arguments, device)
    translator = Translator(
        models,
        _plan(arguments, default_plan(models[0])),
        _options(arguments),
        device=device,
        precision=arguments.precision,
        warn=console.warn,
        halt=choose_halt(arguments.exit, models[0]),
    )
    # A model reads either text or pictures.
    has_pictures = arguments.source is not None and arguments.source.suffix == ".safetensors"
    if arguments.data is not None:
        has_pictures = Dataset.open(arguments.data).pictures is not None
    (check_pictures if has_pictures else check_text)(translator.models[0])
    if translator.features:
        check_rules(arguments, PICTURE_RULES)
    if translator.speedups:
        console.say(format_precision(translator.precision, translator.speedups))
    if (k := trained_k(arguments.model)) is not None:
        console.say(
            f"note: this model was trained with wait-{k}, but `decode` reads the whole source "
            "first; `--stream` reads as in training."
        )
    return translator


def conditions(translator: Translator, arguments: DecodeArguments) -> dict[str, Any]:
    """Return JSON keys: which models decode what, and how; `speedups` are those of `auto`."""
    data, source = arguments.data, arguments.source or Path(STANDARD)
    return {
        "model": str(arguments.model),
        "ensemble": [str(folder) for folder in arguments.ensemble or ()],
        "data": None if data is None else str(data),
        "input": str(source) if data is None else None,
        "weights": arguments.weights,
        "exit": arguments.exit,
        "precision": translator.precision,
        "speedups": dict(translator.speedups),
        "device": translator.device.type,
    }


def load_models(arguments: DecodeArguments, device: torch.device) -> list[LoadedModel]:
    """Load MODEL and those of `--ensemble`. Raises ModelError."""
    folders = [arguments.model, *(arguments.ensemble or [])]
    resolved = [folder.resolve() for folder in folders]
    for number, folder in enumerate(folders):
        if resolved[number] in resolved[:number]:
            console.warn(f"`--ensemble {folder}`: this model is in the ensemble more than once.")
    return [load_model(folder, device, arguments.weights) for folder in folders]


def format_precision(precision: str, speedups: Mapping[str, float]) -> str:
    """Return a line on the chosen precision and the measured speeds."""
    others = [
        f"{kind} {ratio:.1f}" for kind, ratio in speedups.items() if kind not in (precision, "fp32")
    ]
    beside = f" ({', '.join(others)} times)" if others else ""
    if precision == "fp32":
        return f"precision: fp32, as nothing else is clearly faster here{beside}."
    return f"precision: {precision}, {speedups[precision]:.1f} times faster than fp32{beside}."


def _explicit_fields(
    arguments: DecodeArguments, kind: type[TranslationOptions | SearchPlan]
) -> dict[str, Any]:
    # Invalid options in a file are reported separately, and have no value.
    names = {*explicit_options(arguments)} - config_file(arguments).faulty_fields
    fields = dataclasses.fields(kind)
    return {field.name: getattr(arguments, field.name) for field in fields if field.name in names}


def choose_halt(choice: str | None, loaded: LoadedModel) -> Halt | Verified | None:
    """Return the exit mechanism of `--exit` (see `halt_of`).

    None without a choice, or if the model has no exit predictor for `auto`. Raises ConfigError if
    `choice` does not fit the model.
    """
    if choice is None:
        return None
    if choice == AUTO and with_exits(loaded.model).traits.halting == "none":
        console.say("note: this model has no exit predictor: with `--exit auto` all blocks run.")
        return None
    return halt_of(choice, loaded, console.warn)


def translate_text(translator: Translator, arguments: DecodeArguments) -> dict[str, Any]:
    """Translate a file or pipe (`-`: standard input) line by line; return the report."""
    source = arguments.source or Path(STANDARD)
    total, pipe = None, PipeMeter()
    if str(source) != STANDARD and not is_stream(source):
        # Read it through once: an error in its last line is reported now, not after hours.
        total = sum(1 for _ in read_lines(source, allow_empty=True))
    elif _is_typed(arguments):
        # The user sees each translation before typing the next line.
        translator.options = dataclasses.replace(translator.options, window=1)
        console.say("Type one sentence per line; Ctrl-D ends.")
    # Filled while lines are read, and complete when all are.
    notes: Counter[str] = Counter()
    prefixes = None if arguments.prefix is None else _read_prefixes(arguments.prefix, total)
    lines = read_lines(source, notes, allow_empty=True, meter=pipe if total is None else None)
    begin = functools.partial(
        translator.translations, lines, prefixes=prefixes, is_waiting=pipe.is_waiting
    )
    report, _ = _write_translations(translator, begin, total, arguments)
    if not report["sentences"]:
        console.say("note: the input is empty: there is nothing to translate.")
    say_notes(source, notes)
    return report


def _is_typed(arguments: DecodeArguments) -> bool:
    """Return whether the input is typed at a terminal."""
    is_standard = arguments.data is None and str(arguments.source or STANDARD) == STANDARD
    return is_standard and sys.stdin is not None and sys.stdin.isatty()


def translate_split(translator: Translator, arguments: DecodeArguments) -> dict[str, Any]:
    """Translate or caption a split of a dataset; return its scores and the report."""
    assert arguments.data is not None
    dataset = Dataset.open(arguments.data)
    split = dataset.split(arguments.split or "test")
    check_same_text(translator, dataset)
    if isinstance(split, PictureSplit):
        total = len(split.pictures)
        pictures = (split.pictures.features(index) for index in range(total))
        begin = functools.partial(translator.caption, pictures)
    else:
        lines = split.raw_source()
        total = len(lines)
        prefixes = None if arguments.prefix is None else _read_prefixes(arguments.prefix, total)
        begin = functools.partial(translator.translations, lines, prefixes=prefixes)
    report, translations = _write_translations(translator, begin, total, arguments)
    if isinstance(split, PictureSplit):
        words = [caption.tokenized for caption in translations]
        values, what = caption_scores(words, split.references()), "picture"
    else:
        moses = dataset.pipeline.target.moses
        # TER takes minutes; how many is not known in advance.
        with console.progress("scoring"):
            values = scores(translations, split, moses, with_ter=arguments.ter)
        what = "sentence"
    print_scores(values, report, f"{split.name}: {plural(report['sentences'], what)}")
    if arguments.card:
        loaded = translator.loaded
        names = [name for name in TRANSLATION_SCORES if name in values]
        record = ScoreRecord(
            split=split.name,
            # With its parent folder: a dataset's own name is mostly `data`.
            data=Path(*dataset.path.resolve().parts[-2:]).as_posix(),
            sentences=report["sentences"],
            figures={name: values[name] for name in names},
            signatures={name: values[f"signature_{name}"] for name in names},
            beam=report["search"]["beam"],
            weights=loaded.weights,
            checksum=loaded.checksum,
        )
        update_card(loaded.folder, score=record)
        console.say(f"The scores are in {loaded.folder / CARD}.")
    return {**values, "split": split.name, **report}


def scores(
    translations: Sequence[Translation], split: Split, moses: Moses, *, with_ter: bool
) -> dict[str, Any]:
    """Return JSON keys: tokenised and raw scores in percent, with signatures; TER takes minutes.

    `bleu_tokenized` compares words as tokenised in the dataset (multi-bleu's protocol); the others
    compare raw text, lower-cased if `moses.lowercase`, since a lower-cased model can do no better.
    BLEU compares characters if there are no spaces between words, as its signature says; TER and
    the length ratio then count characters too.
    `references_escaped` counts references that are not raw, with `&apos;` and the like.
    """
    words = [translation.tokenized for translation in translations]
    text = [translation.text for translation in translations]
    tokenized, raw = split.tokenized_target(), split.raw_target()
    lowercase = moses.lowercase
    if lowercase:
        raw = list(map(moses.lower, raw))  # in some languages unlike the metrics' lower-casing
    words_as, raw_as = (bleu_tokenizer(moses.lang, raw, name) for name in ("none", "13a"))
    metrics = {
        "bleu_tokenized": bleu(words, tokenized, words_as),
        "bleu": bleu(text, raw, raw_as, lowercase),
        "chrf": chrf(text, raw, lowercase),
    }
    if with_ter:
        metrics["ter"] = ter(text, raw, lowercase, raw_as)
    split_words = tokenizer(words_as)
    hypothesis_words, reference_words = (
        sum(len(split_words(line)) for line in lines) for lines in (words, tokenized)
    )
    return {
        **{name: metric.value for name, metric in metrics.items()},
        **{f"signature_{name}": metric.signature for name, metric in metrics.items()},
        "references_lowercased": lowercase,
        "references_escaped": count_escaped(raw),
        "length_ratio": hypothesis_words / max(reference_words, 1),
    }


def print_scores(values: Mapping[str, Any], report: Mapping[str, Any], title: str) -> None:
    """Print scores of translations or captions, their signatures and the average exit.

    Also prints properties of the references that make raw-text scores differ from published ones.
    """
    is_text = "bleu_tokenized" in values
    titles = TRANSLATION_SCORES if is_text else _CAPTION_SCORES
    names = [name for name in titles if name in values]
    console.table(
        f"{title} in {report['seconds']:.1f} s, {report['tokens_per_second']:,.0f} target tokens/s",
        ["score" if is_text else "score, all references", "value"],
        [[titles[name], values[name]] for name in names],
    )
    # BLEU-1 to BLEU-4 are one computation, with one signature.
    for name in names if is_text else ("bleu_4", "cider"):
        console.say(f"signature of {name}: {values[f'signature_{name}']}")
    if "average_exit" in report:
        console.say(f"average exit: {report['average_exit']:.2f} blocks per token")
    if not is_text:
        return
    if values["references_lowercased"]:
        console.say(
            "The dataset is lower-cased: raw references are compared in lower case (case:lc)."
        )
    if values["references_escaped"] > _FEW_ESCAPED * report["sentences"]:
        console.warn(
            f"{values['references_escaped']:,} references contain escapes of Moses' tokeniser, "
            "such as `&apos;`, so they are not raw text. Raw BLEU splits each escape into three "
            "words and is too high: quote tokenised BLEU."
        )


def caption_file(translator: Translator, arguments: DecodeArguments) -> dict[str, Any]:
    """Caption the pictures of a file of features in its order; return the report.

    `pictures` in the report are their names, one per output line.
    """
    path = arguments.source
    assert path is not None
    files = FeatureFiles([path])
    if files.size != translator.features:
        raise DataError(
            f"{path} has {files.size:,} features per region, but the model expects "
            f"{translator.features:,}.",
            "Extract the features that the model was trained on.",
        )
    # Read it through once: an error in its last picture is reported now, not after hours.
    for name in files.names:
        files.read(name)
    pictures = (as_floats(files.read(name)) for name in files.names)
    begin = functools.partial(translator.caption, pictures)
    report, _ = _write_translations(translator, begin, len(files.names), arguments)
    return {**report, "pictures": files.names}


def force_split(translator: Translator, arguments: DecodeArguments) -> dict[str, Any]:
    """Teacher-force a split; write traces and alignments; return the perplexity and counts."""
    assert arguments.data is not None
    dataset = Dataset.open(arguments.data)
    check_same_text(translator, dataset)
    check_vocabularies(translator, dataset)
    split, started = dataset.split(arguments.split or "test"), time.perf_counter()
    total, tokens, empty = 0.0, 0, 0
    model = translator.models[0]
    with console.progress("scoring", len(split)) as bar, contextlib.ExitStack() as stack:
        paths = (arguments.traces, arguments.alignments)
        traces, alignments = (_open_output(path, stack) for path in paths)
        for trace in forced_traces(
            model,
            translator.pipeline,
            split,
            kind="energies" if arguments.energies else "weights",
            # Traces contain an alignment if the model has one; the other two require it.
            align=alignments is not None
            or arguments.energies
            or (traces is not None and model.traits.aligns),
            device=translator.device,
            bf16=translator.bf16,
            batch_tokens=translator.options.batch_tokens,
            on_progress=_Meter(bar).advance,
        ):
            _write_trace(trace, traces, alignments)
            # As in validation: training has no pairs with an empty side.
            if trace.source and trace.target:
                total += trace.log_probability
                tokens += len(trace.log_probabilities)
            else:
                empty += 1
    nll = -total / max(tokens, 1)
    perplexity = math.exp(min(nll, 700.0))  # exp(710) is beyond a double
    console.say(
        f"{split.name}: perplexity {perplexity:.3f} over {tokens:,} target units, end symbols "
        "included."
    )
    if isinstance(split, PictureSplit) and split.name != "train":
        console.say("Only the first caption of each picture is scored.")
    if empty:
        console.say(f"This excludes {plural(empty, 'pair')} with an empty side.")
    return {
        "split": split.name,
        "sentences": len(split) - empty,
        "target_tokens": tokens,
        "perplexity": perplexity,
        "nll": nll,
        "seconds": time.perf_counter() - started,
    }


def _read_prefixes(path: Path, total: int | None) -> Iterator[str]:
    """Return the prefixes in `path`; `total` is the number of lines to translate, if known.

    Raises InputError, before anything is translated, for a file with another number of lines;
    pipes are read along with the lines.
    """
    if total is not None and str(path) != STANDARD and not is_stream(path):
        count = sum(1 for _ in read_lines(path, allow_empty=True))
        if count != total:
            verb = "is" if total == 1 else "are"
            text = f"{plural(total, 'line')} {verb} to be translated"
            raise unequal_prefixes(count, text, path)
    return read_lines(path, allow_empty=True)


def _open_output(path: Path | None, stack: contextlib.ExitStack) -> IO[bytes] | None:
    """Open an output file, if one is named; after an interruption it has the finished lines."""
    if path is None:
        return None

    def name_partial(partial: Path) -> None:
        console.say(f"note: the finished lines are in {partial}.")

    return stack.enter_context(open_writer(path, name_partial))


def _write_translations(
    translator: Translator,
    begin: Callable[..., Iterator[Translation]],
    total: int | None,
    arguments: DecodeArguments,
) -> tuple[dict[str, Any], list[Translation]]:
    """Translate and write; return counts and times, and the translations of a split.

    `begin(align=.., on_progress=..)` is the translator's `translations` or `caption` of the input.
    """
    # Only the scores of a split need all translations at once; a pipe may never end.
    is_split = arguments.data is not None
    # A split is scored: its translations are written only if a file is named.
    text_path = Path(STANDARD) if arguments.out is None and not is_split else arguments.out
    aligns = all(model.traits.aligns for model in translator.models)
    align = arguments.alignments is not None or (arguments.traces is not None and aligns)
    translations: list[Translation] = []
    sentences, blocks = 0, BlockCount()
    is_typed = _is_typed(arguments)
    # A reader of a pipe may wait for each line; a file appears only when it is complete.
    is_read = text_path is not None and (str(text_path) == STANDARD or is_stream(text_path))
    started = time.perf_counter()
    # A progress bar would be drawn over the typed text.
    progress = console.progress("translating", total, hidden=is_typed)
    with progress as bar, contextlib.ExitStack() as stack:
        meter = _Meter(bar)
        # Started before any file is opened, so that an unsupported option leaves no empty files.
        stream = begin(align=align, on_progress=meter.advance)
        paths = (text_path, arguments.traces, arguments.alignments)
        text, traces, alignments = (_open_output(path, stack) for path in paths)
        for translation in stream:
            if text is not None:
                _write_text(text, translation, translator.plan.nbest, flush=is_read)
            if traces is not None or alignments is not None:
                _write_trace(Trace.of(translation), traces, alignments)
            sentences += 1
            if translation.hypotheses:
                blocks.add(translation.hypotheses[0])
            if is_split:
                # Alignments of a whole split would fill the memory, and no score needs them.
                hypotheses = [] if align else translation.hypotheses
                translations.append(dataclasses.replace(translation, hypotheses=hypotheses))
    seconds = time.perf_counter() - started
    report = {
        "sentences": sentences,
        "target_tokens": meter.tokens,
        "seconds": seconds,
        "tokens_per_second": meter.tokens / max(seconds, 1e-9),
        "search": dataclasses.asdict(translator.plan),
    }
    if blocks.average is not None:
        report["average_exit"] = blocks.average
    return report, translations


def _write_text(file: IO[bytes], translation: Translation, nbest: int, *, flush: bool) -> None:
    """Write the best text, or `line ||| text ||| log-probability ||| score` lines."""
    lines = [translation.text]
    if nbest > 1:
        lines = [
            f"{translation.line} ||| {text} ||| {hypothesis.log_probability:.4f} ||| "
            f"{hypothesis.score:.4f}"
            for text, hypothesis in zip(translation.texts, translation.hypotheses, strict=True)
        ] or [f"{translation.line} |||  ||| 0.0000 ||| 0.0000"]
    try:
        file.write(("\n".join(lines) + "\n").encode())
        if flush:
            file.flush()
    except BrokenPipeError as fault:
        # BrokenPipeError would be treated as an error of the other open files.
        raise Leave(PIPE_CLOSED) from fault


def _write_trace(trace: Trace, traces: IO[bytes] | None, alignments: IO[bytes] | None) -> None:
    if traces is not None:
        traces.write(f"{trace.to_line()}\n".encode())
    if alignments is not None:
        alignments.write(f"{to_text(links(trace))}\n".encode())


@dataclasses.dataclass
class _Meter:
    """Counts target tokens and shows their rate on the progress bar."""

    bar: console.Bar
    lines: float = 0
    tokens: int = 0
    started: float = dataclasses.field(default_factory=time.perf_counter)

    def advance(self, lines: float, tokens: int) -> None:
        # Rounded, because lines may be added in fractions.
        self.lines, self.tokens = round(self.lines + lines, 9), self.tokens + tokens
        rate = self.tokens / max(time.perf_counter() - self.started, 1e-9)
        note = f"{rate:,.0f} target tokens/s"
        if self.lines % 1:
            note = f"{self.lines:,.2f} lines, {note}"
        self.bar.update(completed=self.lines, note=note)
