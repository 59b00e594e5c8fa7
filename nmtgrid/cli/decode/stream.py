"""What `nmtgrid decode --stream` does: translates words as they come, and writes what is final."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal

from nmtgrid.base import console
from nmtgrid.base.config import check as check_config
from nmtgrid.base.config import override
from nmtgrid.base.devices import find_device
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.text import STANDARD, open_writer
from nmtgrid.base.spans import whole_numbers
from nmtgrid.cli.decode.run import chosen
from nmtgrid.cli.options import ONE_LEAVES, PIPE_CLOSED, DeviceName, Leave, write_report
from nmtgrid.metrics.latency import Unit, latency
from nmtgrid.models.directory import load_model
from nmtgrid.online.policies import Threshold, WaitK
from nmtgrid.online.settings import Setting
from nmtgrid.online.stream import Stream, StreamTranslator
from nmtgrid.search.api import Agent
from nmtgrid.search.long_sources import join
from nmtgrid.search.traces import Trace, rounded_exit_scores
from nmtgrid.search.translate import check_ensemble, default_plan
from nmtgrid.text.incremental import GrowingText, arriving_words

_WITHOUT_REFERENCE = dict.fromkeys(("laal", "yaal", "length_ratio"))
"""What a stream cannot know."""


@dataclasses.dataclass(frozen=True)
class StreamArguments:
    """What the command line asks of a stream; exactly one of `k` and `threshold` is to be given."""

    models: Sequence[Path]
    source: Path
    k: str | None
    threshold: float | None
    finish_reading: bool
    traces: Path | None
    max_source: int = 512
    changes: Sequence[str] = ()
    weights: str = "best"
    precision: Literal["fp32", "bf16"] = "fp32"
    device: DeviceName = "auto"
    exit: str | None = None


def check(order: StreamArguments, meaningless: Iterable[str]) -> None:
    """Raise ConfigError that names every fault; `meaningless` options were given in vain."""
    faults: list[str] = []
    names = ", ".join(f"`--{name}`" for name in meaningless)
    if names:
        faults.append(
            f"With `--stream` there is no meaning in {names}: each word is written to standard "
            "output as soon as it is final, and never taken back."
        )
    if (order.k is None) == (order.threshold is None):
        given = "neither is given" if order.k is None else "both are given"
        faults.append(f"`--stream` needs one of `--k` and `--threshold`, but {given}.")
    if order.max_source < 1:
        faults.append(f"`--max-source` must be at least 1, but is {order.max_source}.")
    if order.exit is not None and len(order.models) > 1:
        faults.append(ONE_LEAVES)
    for one in (order.k, None), (None, order.threshold):
        try:
            if one != (None, None):
                _agent(*one)
        except ConfigError as fault:
            faults += fault.faults
    if faults:
        raise ConfigError(faults)


def _agent(
    k: str | None, threshold: float | None, finish_reading: bool = False
) -> tuple[Setting, Agent]:
    """Return the way to decide when to read. Raises ConfigError for a faulty one."""
    if k is None:
        assert threshold is not None
        return Setting("threshold", threshold), Threshold(threshold, finish_reading)
    values = whole_numbers(k, "--k", least=1, infinite=True)
    if len(values) != 1:
        raise ConfigError(f"`--k` must be one number with `--stream`, but is `{k}`.")
    return Setting("wait-k", values[0]), WaitK(values[0], finish_reading)


def translate_stream(order: StreamArguments, json: Path | None = None) -> None:
    """Translate what arrives, line for line, to standard output; report what was done to `json`.

    An interruption leaves the traces and the report of the lines that have ended. Raises
    ConfigError, before anything is read, where the model cannot do what is asked.
    """
    setting, agent = _agent(order.k, order.threshold, order.finish_reading)
    device = find_device(order.device)
    loaded = [load_model(path, device, order.weights) for path in order.models]
    check_ensemble(loaded)
    plan = dataclasses.replace(
        default_plan(loaded[0]), beam=1, nbest=1, sample=False, coverage_penalty=0.0
    )
    plan = override(plan, [text.removeprefix("search.") for text in order.changes])
    check_config(plan)
    if plan.beam > 1 or plan.sample or plan.coverage_penalty:
        raise ConfigError("A stream is decoded greedily: change nothing but lengths by `--set`.")
    halt = None if order.exit is None else chosen(order.exit, loaded[0])
    models, bf16 = [one.model for one in loaded], order.precision == "bf16"
    translator = StreamTranslator(models, loaded[0].pipeline, agent, plan, device, bf16, halt)
    translator.begin()
    run = _Run(translator, order.max_source)
    words = arriving_words(order.source, console.warn)
    interruption: KeyboardInterrupt | None = None
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(open_writer(STANDARD))
        traces = stack.enter_context(open_writer(order.traces)) if order.traces else None
        try:
            for text, line in run.translate(words):
                _write(out, text)
                if line is not None and traces is not None:
                    traces.write(f"{line.trace().to_line()}\n".encode())
        except KeyboardInterrupt as caught:
            interruption = caught  # for a writer it would be a fault, which leaves no file
    values = {**setting.values(), "finish_reading": order.finish_reading, **run.report()}
    write_report(json, {**values, "complete": interruption is None})
    if interruption is not None:
        raise interruption


def _write(out: IO[bytes], text: str) -> None:
    """Write at once: whoever waits for the translation sees it now."""
    if not text:
        return
    try:
        out.write(text.encode("utf-8", "replace"))
        out.flush()
    except BrokenPipeError as fault:
        # As it is, it would be taken for a fault of the other files that stand open.
        raise Leave(PIPE_CLOSED) from fault


class _Line:
    """One source line under way: a stream, or several where it is too long for one."""

    def __init__(self, number: int, translator: StreamTranslator, longest: int) -> None:
        self.number = number
        self._translator, self._longest = translator, longest
        self.streams: list[Stream] = []
        self.text = GrowingText(translator.pipeline.target.moses)

    def read(self, word: str) -> str:
        """Return what a word adds to the text."""
        more = ""
        size = len(self._translator.pipeline.source_word(word))
        if self.streams and size:
            held = len(self.streams[-1].source)
            if held and held + size > self._longest:
                if len(self.streams) == 1:
                    console.warn(
                        f"long-line: line {self.number} has more than {self._longest:,} source "
                        "units and is translated in pieces."
                    )
                more = self.end()
                self.streams.append(self._translator.begin())
        if not self.streams:
            self.streams.append(self._translator.begin())
        return more + self._grown(self.streams[-1].read(word))

    def end(self) -> str:
        """Return what the end adds to the text."""
        return self._grown(self.streams[-1].end()) if self.streams else ""

    def trace(self) -> Trace:
        """Return the record of a line that has ended."""
        parts = [stream for stream in self.streams if stream.source]
        if not parts:
            return Trace(self.number, [], [], "", [], 0.0, 0.0, reads=[])
        whole = join([stream.hypothesis() for stream in parts], self._translator.plan)
        reads: list[int] = []
        before = 0
        for stream in parts:
            # What a piece reads of its own end symbol is no unit of the line, but for the last.
            size = len(stream.source)
            reads = [min(z, before) for z in reads[: len(reads) - bool(before)]]
            reads += [before + z for z in stream.hypothesis().reads or ()]
            before += size
        return Trace(
            self.number,
            [unit for stream in parts for unit in stream.source],
            [unit for stream in parts for unit in stream.target],
            self.text.text,
            whole.log_probabilities,
            whole.log_probability,
            whole.score,
            reads=reads,
            exits=whole.exits,
            exit_scores=rounded_exit_scores(whole.exit_scores),
            num_exits=whole.num_exits,
        )

    def _grown(self, words: list[str]) -> str:
        return "".join(map(self.text.add, words))


class _Run:
    """Translates lines of words and counts what it does."""

    def __init__(self, translator: StreamTranslator, longest: int) -> None:
        self._translator, self._longest = translator, longest
        self._started = time.perf_counter()
        self._seconds = 0.0
        self._sentences = self._tokens = 0
        self._exits = self._left = 0
        self._delays: dict[Unit, list[list[int]]] = {"token": [], "word": []}
        self._lengths: dict[Unit, list[int]] = {"token": [], "word": []}

    def translate(self, words: Iterator[str | None]) -> Iterator[tuple[str, _Line | None]]:
        """Yield text as it becomes final, and with each line's end the line."""
        line = self._line()
        for word in words:
            began = time.perf_counter()
            text = f"{line.end()}\n" if word is None else line.read(word)
            self._seconds += time.perf_counter() - began
            yield text, (line if word is None else None)
            if word is None:
                self._count(line)
                line = self._line()

    def report(self) -> dict[str, Any]:
        """Return counts, times and latencies; seconds are those of work, without waiting.

        What compares with a reference is None.
        """
        token, word = (
            {**latency(delays, self._lengths[unit], unit=unit).values(), **_WITHOUT_REFERENCE}
            for unit, delays in self._delays.items()
        )
        return {
            "sentences": self._sentences,
            "target_tokens": self._tokens,
            "seconds": self._seconds,
            "seconds_with_waiting": time.perf_counter() - self._started,
            "tokens_per_second": self._tokens / max(self._seconds, 1e-9),
            **{name: token[name] for name in ("al", "unit", "convention")},
            **({} if not self._left else {"average_exit": self._exits / self._left}),
            "latencies": [token, word],
            "search": dataclasses.asdict(self._translator.plan),
        }

    def _line(self) -> _Line:
        return _Line(self._sentences + 1, self._translator, self._longest)

    def _count(self, line: _Line) -> None:
        self._sentences += 1
        if not line.streams:
            # An empty line has no latency: it is counted as one that was skipped.
            self._add([], [], 0, 0)
        for stream in line.streams:
            self._tokens += len(stream.target) + bool(stream.source)
            exits = stream.hypothesis().exits if stream.source else None
            self._exits += sum(exits or [])
            self._left += len(exits or [])
            words = len(stream.word_sizes)
            self._add(stream.token_delays(), stream.word_delays(), len(stream.source), words)

    def _add(self, tokens: list[int], words: list[int], length: int, word_length: int) -> None:
        self._delays["token"].append(tokens)
        self._delays["word"].append(words)
        self._lengths["token"].append(length)
        self._lengths["word"].append(word_length)
