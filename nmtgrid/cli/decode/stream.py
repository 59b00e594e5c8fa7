"""`nmtgrid decode --stream`: simultaneous translation of words as they arrive.

An agent, wait-k or the model's own, decides between READ and WRITE (chapter 4); its output is
final. `nmtgrid.online.stream` decodes; this module reads and writes lines and measures latency.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nmtgrid.base import console
from nmtgrid.base.config import override
from nmtgrid.base.devices import find_device
from nmtgrid.base.errors import ConfigError, NmtgridError
from nmtgrid.base.io.text import STANDARD, open_writer
from nmtgrid.base.spans import plural
from nmtgrid.cli.decode.arguments import DecodeArguments
from nmtgrid.cli.decode.run import choose_halt, conditions, load_models
from nmtgrid.cli.options import PIPE_CLOSED, Leave, config_file, drop_output, write_report
from nmtgrid.metrics.latency import Metric, Unit, latency, read_metrics, seconds_per_token
from nmtgrid.online.objectives.wait_k import trained_k
from nmtgrid.online.path_warnings import (
    ends_at_limit,
    length_limit_warning,
    reads_whole_source,
    whole_source_counts,
    whole_source_warning,
)
from nmtgrid.online.policy_presets import ChosenPolicy, Conditions, choose_policy
from nmtgrid.online.settings import Setting, read_settings
from nmtgrid.online.stream import LineText, StreamTranslator, stream_plan
from nmtgrid.search.api import BlockCount, SearchPlan
from nmtgrid.search.engine import hides_source_end
from nmtgrid.search.translate import (
    TranslationOptions,
    Translator,
    check_ensemble,
    default_plan,
)
from nmtgrid.search.unknown_units import UnknownUnits
from nmtgrid.text.incremental import stream_words

_EFFECTIVE = ("max_length_a", "max_length_b", "min_length", "renormalize")
"""The search settings that affect the output of a stream, or its traces."""


def faults_of_stream(arguments: DecodeArguments) -> list[str]:
    """Return errors in the values of a stream's options."""
    faults = []
    if arguments.max_source is not None and arguments.max_source < 1:
        faults.append(f"`--max-source` must be at least 1, but is {arguments.max_source}.")
    try:
        read_metrics(arguments.metric or ())
    except ConfigError as fault:
        faults += fault.faults
    try:
        if _names_policy(arguments):
            _named_policy(arguments)
        # A policy in a file of `--config` with a wrong value is reported already.
        elif (
            config_file(arguments).faulty_fields.isdisjoint({"k", "threshold", "policy"})
            and trained_k(arguments.model) is None
        ):
            faults.append(
                "`--stream` needs one of `--k`, `--threshold` and `--policy`, but none is given, "
                "and the model was not trained with one k."
            )
    except ConfigError as fault:
        faults += fault.faults
    except NmtgridError as fault:
        faults.append(str(fault))
    return faults


def _named_policy(arguments: DecodeArguments) -> ChosenPolicy:
    """Return the policy that an option selects. Raises ConfigError for faulty values."""
    policies: list[ChosenPolicy] = []
    faults: list[str] = []
    # Checked separately: if several of them are given, although exclusive, all may be faulty.
    if arguments.k is not None:
        try:
            policies += map(ChosenPolicy, read_settings(arguments.k, None, None))
        except ConfigError as error:
            # Without its advice, which is to write several numbers.
            faults += error.faults
        if len(policies) > 1:
            faults.append(f"`--k` must be one number with `--stream`, but is `{arguments.k}`.")
    if arguments.policy is not None:
        try:
            policies.append(choose_policy(arguments.policy, arguments.model))
        except ConfigError as error:
            faults.append(str(error))
    if arguments.threshold is not None:
        setting = Setting("threshold", arguments.threshold)
        policies.append(ChosenPolicy(setting))
        faults += setting.faults("--threshold")
    if faults:
        raise ConfigError(faults)
    return policies[0]


def _names_policy(arguments: DecodeArguments) -> bool:
    """Return whether one of the options that select a policy is given."""
    return (arguments.k, arguments.threshold, arguments.policy) != (None, None, None)


def _policy_of_training(arguments: DecodeArguments) -> ChosenPolicy:
    """Return the k that the model was trained with, and print it."""
    chosen = choose_policy(None, arguments.model)  # there is one, by `faults_of_stream`
    k = chosen.setting.number
    console.say(f"note: this model was trained with wait-{k}, so `--k {k}` is used.")
    return chosen


def translate_stream(arguments: DecodeArguments) -> None:
    """Translate the input as it arrives, line by line, to standard output; write traces, a report.

    After an interruption, an error, such as one in a user-defined policy, or when the reader of
    standard output exits, the traces and the report cover the finished lines. Raises ConfigError,
    before anything is read, if the model does not support the options.
    """
    choose = _named_policy if _names_policy(arguments) else _policy_of_training
    chosen = choose(arguments)
    lines = _translator(arguments, chosen)
    run = _Run(_streams(arguments, chosen, lines))
    words = stream_words(arguments.source or Path(STANDARD), console.warn)
    ending: KeyboardInterrupt | NmtgridError | Leave | None = None
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(open_writer(Path(STANDARD)))
        path = arguments.traces
        traces = None if path is None else stack.enter_context(open_writer(path))
        try:
            for text, line in run.translate(words):
                if text:
                    try:
                        out.write(text.encode("utf-8", "replace"))
                        out.flush()  # whoever waits for the translation sees it at once
                    except BrokenPipeError as fault:
                        # The rest of the buffer could not be written at the end either.
                        drop_output()
                        # BrokenPipeError would be treated as an error of the other open files.
                        raise Leave(PIPE_CLOSED) from fault
                if line is not None and traces is not None:
                    traces.write(f"{line.trace(line.number).to_line()}\n".encode())
        except (KeyboardInterrupt, NmtgridError, Leave) as caught:
            # Raised again after the files are closed: a writer that sees an error leaves no file,
            # but the finished lines are worth keeping.
            ending = caught
    try:
        report = run.report(read_metrics(arguments.metric or ()))
    except ConfigError as caught:  # a metric has failed
        report, ending = run.report({}), ending or caught
    if ending is None:
        run.warn(chosen.setting)
    values = {
        **conditions(lines, arguments),
        **chosen.setting.values(),
        "finish_reading": arguments.finish_reading,
        **report,
    }
    write_report(arguments.json, {**values, "complete": ending is None})
    if ending is not None:
        raise ending


def _translator(arguments: DecodeArguments, chosen: ChosenPolicy) -> Translator:
    """Load the models; return their translator. Raises ConfigError for unsupported options."""
    device = find_device(arguments.device)
    loaded = load_models(arguments, device)
    check_ensemble(loaded)
    use = Conditions(
        finish_reading=arguments.finish_reading,
        exit=arguments.exit,
        ensemble=bool(arguments.ensemble),
    )
    chosen.check(loaded[0], use, console.warn)
    plan = _plan(arguments, stream_plan(default_plan(loaded[0])))
    return Translator(
        loaded,
        plan,
        TranslationOptions(max_source=arguments.max_source),
        device=device,
        precision=arguments.precision,
        halt=choose_halt(arguments.exit, loaded[0]),
    )


def _streams(
    arguments: DecodeArguments, chosen: ChosenPolicy, lines: Translator
) -> StreamTranslator:
    """Return the stream translator. Raises ConfigError if the models cannot translate online."""
    # Traces contain an alignment if the models have one.
    align = arguments.traces is not None and all(m.traits.aligns for m in lines.models)
    agent = chosen.setting.make(arguments.finish_reading)
    translator = StreamTranslator.of(lines, agent, align=align)
    # A trial stream, which is discarded: what the model does not support is reported before the
    # first word arrives.
    translator.begin()
    return translator


def _plan(arguments: DecodeArguments, plan: SearchPlan) -> SearchPlan:
    """Return the `plan` of streams with the changes of `--set`.

    Raises ConfigError for invalid changes, and for those that have no effect on a stream.
    """
    changed = override(plan, [text.removeprefix("search.") for text in arguments.changes or []])
    idle = [
        field.name
        for field in dataclasses.fields(plan)
        if field.name not in _EFFECTIVE
        and getattr(changed, field.name) != getattr(plan, field.name)
    ]
    if idle:
        names = ", ".join(f"`{name}`" for name in _EFFECTIVE)
        raise ConfigError(
            [f"`--set {name}` has no effect: streams are decoded greedily." for name in idle],
            f"With `--stream`, `--set` changes {names}.",
        )
    return changed


class _Line(LineText):
    """A source line in progress, and its translated text."""

    def __init__(self, number: int, translator: StreamTranslator) -> None:
        super().__init__(translator)
        self.number = number
        self._limits = translator.limits

    def warn(self) -> None:
        """Warn of a long line, after it is written: a terminal would show it within the text."""
        if len(self.stream.segments) > 1:
            console.warn(
                f"long-line: line {self.number} has more than "
                f"{plural(self._limits.whole, 'source unit')} and is translated in segments."
            )


class _Run:
    """Translates lines word by word, and collects counts, times and delays."""

    def __init__(self, translator: StreamTranslator) -> None:
        self._translator = translator
        self._started = time.perf_counter()
        self._unknown = UnknownUnits(translator.pipeline, console.warn)
        self._seconds = 0.0
        self._sentences = self._tokens = self._at_limit = 0
        self._blocks = BlockCount()
        # Seconds of work before each write of each line.
        self._written: list[list[float]] = []
        # Delays and source length of each line; latency is averaged over lines.
        self._measured: dict[Unit, list[tuple[list[int], int]]] = {"token": [], "word": []}

    def translate(self, words: Iterator[str | None]) -> Iterator[tuple[str, _Line | None]]:
        """Yield text as it becomes final, and at the end of each line also the line."""
        line = _Line(1, self._translator)
        for word in words:
            began = time.perf_counter()
            text = f"{line.end()}\n" if word is None else line.read(word)
            # Excludes the time until the next word arrives, or until the text has been written.
            self._seconds += time.perf_counter() - began
            yield text, (line if word is None else None)
            if word is None:
                line.warn()
                self._count(line)
                line = _Line(self._sentences + 1, self._translator)

    def report(self, own: Mapping[str, Metric]) -> dict[str, Any]:
        """Return counts, times and latencies; `seconds` excludes waiting for words.

        Values that need a reference are None. Raises ConfigError if one of the user-defined
        metrics `own` fails.
        """
        unknown = dict.fromkeys(("laal", "yaal", "length_ratio"))
        latencies = []
        for unit, streams in self._measured.items():
            delays, lengths = [delays for delays, _ in streams], [length for _, length in streams]
            averages = latency(delays, lengths, unit=unit, own=own)
            latencies.append({**averages.values(), **unknown})
        shown = ["al", "unit", "convention", *(["own"] if own else [])]
        average_exit = self._blocks.average
        return {
            "sentences": self._sentences,
            "target_tokens": self._tokens,
            "seconds": self._seconds,
            "seconds_with_waiting": time.perf_counter() - self._started,
            "tokens_per_second": self._tokens / max(self._seconds, 1e-9),
            **seconds_per_token(self._written),
            **{name: latencies[0][name] for name in shown},
            **({} if average_exit is None else {"average_exit": average_exit}),
            "latencies": latencies,
            "search": dataclasses.asdict(self._translator.plan),
        }

    def warn(self, setting: Setting) -> None:
        """Warn if the policy translates offline, or translations end at the length limit."""
        streams = self._measured["token"]
        average = latency([delays for delays, _ in streams], [length for _, length in streams])
        counts = whole_source_counts(average)
        if reads_whole_source(setting, *counts):
            console.warn(whole_source_warning({setting.title: counts}))
        sources = sum(length > 0 for _, length in streams)
        warning = length_limit_warning({setting.title: (self._at_limit, sources)})
        # A model that does not see the source's end does not stop by itself.
        if warning and not hides_source_end(self._translator.models):
            console.warn(warning)

    def _count(self, line: _Line) -> None:
        self._sentences += 1
        segments = line.stream.segments
        lengths = [len(stream.source) for stream in segments]
        written = sum(len(stream.target) for stream in segments)
        self._at_limit += any(lengths) and ends_at_limit(written, lengths, self._translator.plan)
        for stream in segments:
            self._tokens += len(stream.target) + bool(stream.source)
            if stream.source:
                self._blocks.add(stream.hypothesis())
        whole = line.stream
        self._unknown.add([self._translator.pipeline.source_vocabulary.encode(whole.source)])
        self._written.append(whole.seconds)
        self._measured["token"].append((whole.token_delays(), len(whole.source)))
        self._measured["word"].append((whole.word_delays(), len(whole.word_sizes)))
