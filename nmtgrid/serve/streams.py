"""Streams of the clients of `nmtgrid demo`: one state each, bounded in number and size.

`Streams` opens, finds and drops them; a single thread runs the models, for one source unit of a
stream at a time, so that nobody waits for another's whole text or endless word. Results are events,
which the HTTP interface writes as JSON (docs/demo.md describes all keys):

    {"event": "read", "system": 0, "word": "Er", "units": ["er"], "reads": 1}
    {"event": "write", "system": 0, "index": 0, "unit": "he", "probability": 0.93, "reads": 3, ...}
    {"event": "text", "system": 0, "text": "He"}
    {"event": "end", "system": 0, "text": "He ...", "average_lagging": 2.4, "trace": {...}, ...}
"""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from typing import Any, TypeVar

from nmtgrid.base.errors import NmtgridError
from nmtgrid.base.io.atomic import LINE_CHECKSUM
from nmtgrid.metrics.latency import latency
from nmtgrid.online.stream import LineText, StreamTranslator
from nmtgrid.search.api import BlockCount
from nmtgrid.search.traces import Trace
from nmtgrid.serve.systems import System
from nmtgrid.text.moses import is_invisible

Result = TypeVar("Result")
Event = dict[str, Any]
_SHARE_DIGITS, _DIGITS = 4, 6


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits for clients; seconds are wall-clock time."""

    streams: int = 64
    """Streams open at once."""
    systems: int = 2
    """Systems side by side in one stream."""
    words: int = 400
    """Source words of a stream."""
    characters: int = 8000
    """Characters of a stream, and of all lines of one `translate`."""
    lines: int = 100
    """Lines of one `translate`."""
    body: int = 1 << 16
    """Bytes of a request."""
    queue: int = 128
    """Requests that wait for the models or are being processed."""
    connections: int = 256
    seconds: float = 30.0
    """Time that a request may take."""
    idle: float = 300.0
    """Time after which a stream that nobody uses is closed."""


class Refusal(NmtgridError):
    """A request that is rejected, with its HTTP status."""

    def __init__(self, status: int, problem: str, advice: str = "") -> None:
        self.status = status
        super().__init__(problem, advice)


class Worker:
    """The single thread that runs the models, with a bounded queue of requests."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="models")
        self._lock = threading.Lock()
        self.requests = 0
        """Number of requests that wait or are being processed."""

    def __enter__(self) -> float:
        """Enter the queue; return the deadline of the request. Raises Refusal."""
        with self._lock:
            if self.requests >= self._limits.queue:
                raise Refusal(503, "Too many requests are waiting.", "Try again in a moment.")
            self.requests += 1
        return time.monotonic() + self._limits.seconds

    def __exit__(self, *fault: object) -> None:
        with self._lock:
            self.requests -= 1

    def run(self, work: Callable[[], Result], deadline: float) -> Result:
        """Do the `work` and return its result. Raises Refusal at the deadline."""
        future: Future[Result] = self._pool.submit(work)
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
        except TookTooLong as fault:
            # Work that has begun continues, but nobody waits for it.
            future.cancel()
            raise Refusal(
                503,
                f"The request has taken more than {self._limits.seconds:g} s.",
                "Send less at once, or try again when fewer are using this server.",
            ) from fault

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Line:
    """A line that one system translates, and its events."""

    def __init__(self, system: int, translator: StreamTranslator) -> None:
        self._system = system
        self._text = LineText(translator)
        self._line = self._text.stream
        self._tokens = 0

    def read(self, word: str) -> Iterator[list[Event]]:
        """Take a word unit by unit; yield the events of each unit."""
        before, steps = len(self._line.source), self._line.feed(word)
        first = next(steps)
        units = self._line.latest_units
        read = self._event("read", word=word, units=units, reads=before + len(units))
        yield [read, *self._written(first)]
        for words in steps:
            yield self._written(words)

    def end(self) -> list[Event]:
        """Take the line's end; return its events."""
        events = self._written(self._line.end())
        return [*events, self._summary()]

    def _event(self, event: str, **values: Any) -> Event:
        return {"system": self._system, **values, "event": event}

    def _written(self, words: Sequence[str]) -> list[Event]:
        events: list[Event] = []
        for token in self._line.new_tokens():
            shares = token.alignment
            if shares is not None:
                shares = [round(share, _SHARE_DIGITS) for share in shares]
            events.append(
                self._event(
                    "write",
                    index=self._tokens,
                    unit=token.unit,
                    probability=round(math.exp(token.log_probability), _DIGITS),
                    reads=token.reads,
                    exit=token.exit,
                    alignment=shares,
                    seconds=round(token.seconds, _DIGITS),
                    is_end=token.is_end,
                )
            )
            self._tokens += 1
        if text := self._text.grow(words):
            events.append(self._event("text", text=text))
        return events

    def _summary(self) -> Event:
        line, text = self._line, self._text.text
        delays = line.token_delays() if line.source else []
        words = line.word_delays() if line.source else []
        count = BlockCount.of([line.hypothesis()] if line.source else [])
        seconds = (line.seconds or [0.0])[-1] if line.source else 0.0
        return self._event(
            "end",
            text=text,
            average_lagging=_lagging(delays, len(line.source)),
            average_lagging_words=_lagging(words, len(line.word_sizes)),
            seconds=round(seconds, _DIGITS),
            seconds_per_word=round(seconds / len(words), _DIGITS) if words else None,
            average_exit=count.average,
            trace=trace_values(self._text.trace(1)),
        )


def trace_values(trace: Trace) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(trace.to_line())
    # A checksum of the text: other programs write the same numbers differently, such as 1 for 1.0.
    del values[LINE_CHECKSUM]
    return values


def _lagging(delays: Sequence[int], length: int) -> float | None:
    """Return the average lagging of a sentence, None if undefined."""
    value = latency([delays], [length]).al
    return None if math.isnan(value) else round(value, _DIGITS)


class Stream:
    """A source that arrives word by word, and its translation by each system."""

    def __init__(
        self, systems: Sequence[System], worker: Worker, limits: Limits, idle: float
    ) -> None:
        """`idle` is the number of seconds without a request before it may be dropped."""
        self.idle = idle
        self.id = secrets.token_urlsafe(12)
        self.systems = list(systems)
        self.events: list[Event] = []
        """All events so far."""
        self.used = time.monotonic()
        self._lines = [_Line(n, system.translator) for n, system in enumerate(systems)]
        self._worker, self._limits = worker, limits
        self._words = self._characters = 0
        self._has_ended = False
        self._lock = threading.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether a request is being processed."""
        return self._lock.locked()

    def feed(self, text: str, end: bool = False) -> Generator[list[Event], None, None]:
        """Read the words of `text`, and with `end` the line's end; yield events as they happen.

        Nothing is read if this raises Refusal before the first events: for too long a text, for a
        line that has ended, and while another request feeds the stream. If it breaks off later, the
        stream cannot be continued.
        """
        words = [word for word in text.replace("\0", "\ufffd").split() if not is_invisible(word)]
        if not self._lock.acquire(blocking=False):
            raise Refusal(409, "The stream is still reading.", "Wait for the answer, then go on.")
        try:
            self._check(words)
            with self._worker as deadline:
                self._words += len(words)
                self._characters += sum(map(len, words))
                self._has_ended = True  # unless all of it is read
                steps = self._steps(words, end)
                while (events := self._worker.run(lambda: next(steps, None), deadline)) is not None:
                    self.events += events
                    yield events
                self._has_ended = end
        finally:
            self.used = time.monotonic()
            self._lock.release()

    def _steps(self, words: Sequence[str], end: bool) -> Iterator[list[Event]]:
        """Do the work unit by unit; yield the events of each unit."""
        for word in words:
            for line in self._lines:
                yield from line.read(word)
        for line in self._lines if end else ():
            yield line.end()

    def _check(self, words: Sequence[str]) -> None:
        limits = self._limits
        if self._has_ended:
            raise Refusal(409, "The stream has ended.", "Open another one.")
        if self._words + len(words) > limits.words:
            raise Refusal(413, f"A stream has at most {limits.words:,} words.", "End it here.")
        if self._characters + sum(map(len, words)) > limits.characters:
            raise Refusal(
                413, f"A stream has at most {limits.characters:,} characters.", "End it here."
            )


class Streams:
    """The streams that are open, by their id."""

    def __init__(self, worker: Worker, limits: Limits) -> None:
        self._worker, self._limits = worker, limits
        self._streams: dict[str, Stream] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, systems: Sequence[System], idle: float | None) -> Stream:
        """Return a new stream, dropped after `idle` seconds (at most the limit's) without use.

        Raises Refusal if there are too many, ConfigError if a model cannot translate streams so.
        """
        if not 1 <= len(systems) <= self._limits.systems:
            raise Refusal(400, f"A stream has from 1 to {self._limits.systems} systems.")
        self.close_idle()
        self._check_room()
        limits = self._limits
        idle = limits.idle if idle is None else min(idle, limits.idle)
        with self._worker as deadline:
            stream = self._worker.run(lambda: Stream(systems, self._worker, limits, idle), deadline)
        with self._lock:
            self._check_room()
            self._streams[stream.id] = stream
        return stream

    def _check_room(self) -> None:
        if len(self._streams) >= self._limits.streams:
            raise Refusal(
                503,
                f"{self._limits.streams} streams are open, which is the maximum.",
                "Try again when others have ended.",
            )

    def get(self, id: str) -> Stream:
        """Return an open stream. Raises Refusal for an unknown id."""
        stream = self._streams.get(id)
        if stream is None:
            raise Refusal(404, "There is no such stream; it may have been idle.", "Open another.")
        stream.used = time.monotonic()
        return stream

    def close(self, id: str) -> None:
        """Drop a stream; raises as `get` does."""
        self.get(id)
        self._streams.pop(id, None)

    def close_idle(self) -> None:
        """Drop the streams that have been idle for too long."""
        now = time.monotonic()
        with self._lock:
            for id, stream in list(self._streams.items()):
                if stream.used < now - stream.idle and not stream.is_busy:
                    del self._streams[id]
