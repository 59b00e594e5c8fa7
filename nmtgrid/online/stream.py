"""Streaming decoding: translates sentences while they arrive, with a prefix-safe model.

`TokenStream` works on ids, greedily; `Stream` and `LineStream` on words; `LineText` on text;
`StreamTranslator` starts them. `nmtgrid decode --stream`, `nmtgrid demo` and the SimulEval agent
use it.

The state grows by a column with each READ and by a row with each WRITE; nothing is computed twice.
An invariant test checks that a stream writes the same tokens after the same reads as a batched
search (search/engine.py, beam 1) with the same agent.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nmtgrid.base.devices import autocast, without_gradients
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.spans import shortened
from nmtgrid.base.subword_marks import JOINER, SPACE, begins_word
from nmtgrid.metrics.latency import token_delays, word_delays
from nmtgrid.models.api import Halt, Step, TranslationModel, Verified, check_step, with_exits
from nmtgrid.online.policies import Bounded
from nmtgrid.online.policy_presets import Conditions, choose_policy
from nmtgrid.online.retranslation import PrefixDecoder, PrefixPolicy, PrefixStream, WrittenTokens
from nmtgrid.search import engine
from nmtgrid.search.api import Agent, Hypothesis, Proposal, SearchPlan, Translation
from nmtgrid.search.constraints import ForbidEnd, Rules
from nmtgrid.search.long_sources import OnlineSplitter, SourceLimits, join
from nmtgrid.search.precision import check_stream_precision
from nmtgrid.search.steps import Averaged
from nmtgrid.search.traces import Trace
from nmtgrid.search.translate import Translator
from nmtgrid.text.incremental import IncrementalDetokenizer, IncrementalPieces
from nmtgrid.text.pipeline import Pipeline
from nmtgrid.text.vocabulary import BEGIN, END, SPECIALS


def stream_plan(plan: SearchPlan) -> SearchPlan:
    """Return a search plan for streams, which are decoded greedily: words are never revised."""
    return dataclasses.replace(plan, beam=1, nbest=1, sample=False, coverage_penalty=0.0)


class TokenStream(WrittenTokens):
    """A sentence being translated, in ids: takes source tokens, returns target tokens."""

    def __init__(
        self,
        models: Sequence[TranslationModel],
        agent: Agent,
        plan: SearchPlan,
        *,
        device: torch.device | str = "cpu",
        bf16: bool = False,
        halt: Halt | Verified | None = None,
        align: bool = False,
    ) -> None:
        """`models` are in evaluation mode, on `device`; only the plan's length settings apply.

        `halt` decides where tokens exit the decoder early (None: nowhere); `align` keeps each
        token's alignment. Raises ConfigError if a model, the agent or the halt cannot be used in
        streaming, or if a model yields no alignment.
        """
        # A coverage penalty needs attention over the whole source; the plan's may be a default.
        engine.check(models, dataclasses.replace(plan, coverage_penalty=0.0), align, agent, halt)
        super().__init__(plan)
        self._models = list(models)
        self._end_is_hidden = engine.hides_source_end(models)
        self._device, self._bf16 = torch.device(device), bf16
        # A batched search knows the source's length; `Bounded` makes both decide alike without it.
        self._agent = Bounded(agent, plan, self._end_is_hidden)
        assert not isinstance(halt, Verified), "refused by the check"
        self._halt, self._align = halt, align
        self._first = torch.zeros(1, dtype=torch.long, device=self._device)
        empty = torch.zeros(1, 0, dtype=torch.long, device=self._device)
        self._states = [engine.begin(model, empty, self._first, agent) for model in models]
        self._waiting: deque[int] = deque()
        self._columns = 0
        self._source_has_ended = self._is_considered = self._is_fed = False
        # The next prediction, given the columns so far; None: not computed yet.
        self._proposed: Averaged | None = None
        if halt is not None:
            self.exits, self._num_exits = [], models[0].traits.num_exits
        if align:
            self.alignments = []

    def read(self, tokens: Iterable[int]) -> list[int]:
        """Take newly arrived source tokens; return the target tokens written in response."""
        self._waiting.extend(tokens)
        # READ and WRITE alternate until the agent wants a token that has not arrived.
        before = len(self.tokens)
        with autocast(self._device, self._bf16), without_gradients():
            while not self.is_finished:
                if not self._wants_more():
                    self._write()
                elif self._waiting:
                    token = self._waiting.popleft()
                    column = self._first + token  # `_first` is a zero [1] on the device
                    self._states = [model.extend(column, state) for model, state in self._pairs()]
                    self._columns += 1
                    self._proposed = None
                    self._source_has_ended = token == END
                else:
                    break
        return self.tokens[before:]

    def end(self) -> list[int]:
        """Take the source's end; return the rest of the translation."""
        return self.read([END])

    def _alignment(self) -> Tensor | None:
        """Return [T + 1, S], 0 for source tokens that were read later or not at all."""
        if not self.alignments:
            return None
        whole = torch.zeros(len(self.alignments), self._columns + len(self._waiting))
        for row, shares in zip(whole, self.alignments, strict=True):
            row[: len(shares)] = shares
        return whole

    def _wants_more(self) -> bool:
        """Whether the agent reads before the next write; never after the source's end."""
        if not self._columns or self._source_has_ended:
            return not self._columns
        rho = self._reading() if self._agent.wants_reading else None
        # One column more than there are: an agent that returns this length wants to read.
        before = self._first + (self.reads[-1] if self.reads else 1)
        length = self._first + self._columns + 1
        next_reads = self._agent.next_reads(len(self.tokens), self._first, before, length, rho)
        if int(next_reads) > self._columns:
            return True
        if not self._agent.wants_proposals:
            return False
        step, reads = len(self.tokens), self._first + self._columns
        proposal = Proposal(step, self._first, reads, *self._propose())
        return not bool(self._agent.writes(proposal))

    def _propose(self) -> Averaged:
        """Return the models' next prediction, given the columns so far."""
        if not self._is_fed:
            last = self._last_token()
            self._states = [model.feed(last, state) for model, state in self._pairs()]
            self._is_fed = True
        if self._proposed is None:
            reads = self._first + self._columns
            align = self._align or self._agent.wants_alignment
            steps = [model.propose(state, reads, align=align) for model, state in self._pairs()]
            self._states = [step.state for step in steps]
            self._proposed = Averaged.of(steps)
        return self._proposed

    def _reading(self) -> Tensor:
        """Return [1, S]: the probability of READ in each column of the current row."""
        # The reader's row is fed once for each written token; later READs extend it by columns.
        if not self._is_considered:
            last = self._last_token()
            self._states = [model.consider(last, state) for model, state in self._pairs()]
            self._is_considered = True
        rows = [model.reading_row(state).float().sigmoid() for model, state in self._pairs()]
        return torch.stack(rows).mean(0)

    def _write(self) -> None:
        if self._agent.wants_reading:
            self._reading()  # the reader has to see every token, even if nothing is left to read
        following = self._constrain(self._predict())
        value, token = following.max(1)
        self.log_probabilities.append(float(value))
        self.reads.append(self._columns)
        self._is_considered = self._is_fed = False
        self._proposed = None
        self.is_finished = int(token) == END
        self.written_at.append(time.perf_counter())
        if self.is_finished:
            self._states = []  # a line may have thousands of segments
        else:
            self.tokens.append(int(token))

    def _predict(self) -> Tensor:
        """Return the next token's log-probabilities [1, V]; the states then wait for the token."""
        if self._agent.wants_proposals:
            proposed = self._propose()
            self._states = [model.accept(state) for model, state in self._pairs()]
            self._keep_alignment(proposed)
            return proposed.log_probabilities
        last = self._last_token()
        steps = [self._step(model, last, state) for model, state in self._pairs()]
        self._states = [step.state for step in steps]
        # An ensemble averages probabilities, as the batched search does.
        averaged = Averaged.of(steps)
        self._keep_alignment(averaged)
        return averaged.log_probabilities

    def _keep_alignment(self, predicted: Averaged) -> None:
        if self.alignments is not None and predicted.alignment is not None:
            self.alignments.append(predicted.alignment[0, : self._columns].cpu())

    def _step(self, model: TranslationModel, last: Tensor, state: Any) -> Step:
        """Return the model's step, and store the exit if there is a halting mechanism."""
        if self._halt is None or self.exits is None:
            step = model.step(last, state, align=self._align)
            check_step(model, step, len(last))
            return step
        step = with_exits(model).step(last, state, align=self._align, halt=self._halt)
        assert step.exits is not None
        self.exits.append(int(step.exits))
        if step.scores is not None:
            self._exit_scores.append(step.scores)
        return step

    def _constrain(self, following: Tensor) -> Tensor:
        """Mask the tokens that must not follow, as the search does."""
        # The minimum length of the source, including its end symbol; `Bounded` ensures that no more
        # needs to be known.
        length = self._first + self._columns + (not self._source_has_ended)
        early = self._agent.finish_reading and not self._source_has_ended
        constraints = [ForbidEnd(torch.ones_like(self._first, dtype=torch.bool))] if early else []
        hidden, step = self._end_is_hidden, len(self.tokens)
        rules = Rules.of(self._plan, length, constraints, end_is_hidden=hidden)
        return rules.apply(following, step, self._first, at_limit=int(rules.limits) <= step)

    def _pairs(self) -> Iterable[tuple[TranslationModel, Any]]:
        return zip(self._models, self._states, strict=True)

    def _last_token(self) -> Tensor:
        return self._first + (self.tokens[-1] if self.tokens else BEGIN)


@dataclasses.dataclass(frozen=True)
class WrittenToken:
    """A target unit of a line, as soon as it has been written.

    `reads` is the number of source units of the line read by then, including the end symbol,
    `seconds` the computation time since the line began. `alignment` has a weight for each source
    unit read, and for the end symbol once it is read; None if the model yields none. `is_end` marks
    the end symbol.
    """

    unit: str
    log_probability: float
    reads: int
    exit: int | None
    alignment: list[float] | None
    seconds: float
    is_end: bool = False


class Stream:
    """A segment of a line being translated: takes words in units, returns tokenised target words.

    A target word is returned once it is final: with its last unit, or with the next one if only
    that shows that the word has ended.
    """

    def __init__(self, stream: TokenStream | PrefixStream, pipeline: Pipeline) -> None:
        self._stream, self._pipeline = stream, pipeline
        self._units: list[str] = []
        self.source: list[str] = []
        """Source units that have arrived."""
        self.word_sizes: list[int] = []
        """Number of units of each raw source word."""
        self.target: list[str] = []
        """Target units that have been written."""

    @property
    def is_finished(self) -> bool:
        """Whether the translation has ended; units that arrive later are not read."""
        return self._stream.is_finished

    def read(self, units: list[str]) -> Iterator[list[str]]:
        """Take the units of a raw word; yield after each the target words that it makes final."""
        self.source += units
        self.word_sizes.append(len(units))
        for token in self._pipeline.source_vocabulary.encode(units):
            yield self._words(self._stream.read([token]))

    def end(self) -> list[str]:
        """Take the sentence's end; return the rest of the translation, nothing without a source."""
        if not self.source:
            return []
        return self._words(self._stream.end())

    @property
    def written_at(self) -> list[float]:
        """Times at which the units and the end symbol were written, by `time.perf_counter`."""
        return self._stream.written_at

    def written(self, index: int) -> WrittenToken:
        """Return a written unit, the end symbol being the last one; its reads are the segment's.

        Its seconds are 0, because they are measured for the whole line.
        """
        stream, is_end = self._stream, index == len(self.target)
        rows = stream.alignments
        return WrittenToken(
            SPECIALS[END] if is_end else self.target[index],
            stream.log_probabilities[index],
            stream.reads[index],
            None if stream.exits is None else stream.exits[index],
            None if rows is None else rows[index].tolist(),
            0.0,
            is_end,
        )

    def hypothesis(self) -> Hypothesis:
        """Return the finished translation as a search would."""
        return self._stream.hypothesis()

    def _words(self, tokens: list[int]) -> list[str]:
        """Return the words that `tokens` complete."""
        mark = self._pipeline.target_joiner
        words: list[str] = []
        for unit in self._pipeline.target_vocabulary.decode(tokens):
            if mark == SPACE and begins_word(unit, mark, "".join(self._units)):
                words += self._take_word()
            self.target.append(unit)
            self._units.append(unit)
            if mark != SPACE and not (mark and unit.endswith(JOINER)):
                words += self._take_word()
        # The end symbol makes the last word final, even if it could continue.
        if self.is_finished:
            words += self._take_word()
        return words

    def _take_word(self) -> list[str]:
        """Return the word of the buffered units, nothing if there are none; clear the buffer."""
        units, self._units = self._units, []
        return self._pipeline.target.join(units).split()


@dataclasses.dataclass(frozen=True)
class StreamTranslator:
    """The common parts of all sentences: models, text, agent and plan; see `TokenStream`."""

    models: Sequence[TranslationModel]
    pipeline: Pipeline
    agent: Agent | PrefixPolicy
    plan: SearchPlan
    device: torch.device | str = "cpu"
    bf16: bool = False
    halt: Halt | Verified | None = None
    limits: SourceLimits = dataclasses.field(default_factory=SourceLimits)
    align: bool = False

    @classmethod
    def of(
        cls, translator: Translator, agent: Agent | PrefixPolicy, *, align: bool = False
    ) -> StreamTranslator:
        """Return a translator of streams that decodes like `translator`, but greedily."""
        return cls(
            translator.models, translator.pipeline, agent, stream_plan(translator.plan),
            translator.device, translator.bf16, translator.halt, translator.limits, align,
        )  # fmt: skip

    def begin(self) -> LineStream:
        """Return a new line. Raises ConfigError if a model cannot translate simultaneously."""
        return LineStream(self)

    def begin_segment(self) -> Stream:
        """Return a new segment of a line; raises as `begin` does."""
        if isinstance(self.agent, PrefixPolicy):
            decoder = PrefixDecoder(
                self.models, self.plan, self.agent,
                device=self.device, bf16=self.bf16, halt=self.halt, align=self.align,
            )  # fmt: skip
            stream: TokenStream | PrefixStream = PrefixStream(decoder)
        else:
            stream = TokenStream(
                self.models, self.agent, self.plan,
                device=self.device, bf16=self.bf16, halt=self.halt, align=self.align,
            )  # fmt: skip
        return Stream(stream, self.pipeline)


class LineStream:
    """A raw line being translated: one stream, or several in succession for a long line.

    Takes raw words and returns tokenised target words, as `Stream` does. A word with more units
    than a segment may have counts as several words.
    """

    def __init__(self, translator: StreamTranslator) -> None:
        self._translator = translator
        self._splitter = OnlineSplitter(translator.limits, translator.pipeline.source.moses)
        self.segments: list[Stream] = [translator.begin_segment()]
        self.latest_units: list[str] = []
        """The units of the latest word, including those that have not been fed yet."""
        self._segment_has_ended = self._line_has_ended = False
        self._arrived = 0
        # Units that had arrived when the end of each segment was known.
        self._seen: list[int] = []
        # Computation time in seconds: so far, and at each write of each segment.
        self._worked = 0.0
        self._seconds: list[list[float]] = []
        # State of `new_tokens`: the last segment, its number of tokens returned, and their reads.
        self._returned = (0, 0)
        self._latest = 0

    @property
    def is_finished(self) -> bool:
        """Whether all that was read is translated; a long line may go on with another segment."""
        return self.segments[-1].is_finished

    def read(self, word: str) -> list[str]:
        """Take a raw word; return the target words that have become final.

        Raises TypeError if `word` is not a string, ConfigError for several words and for a word
        after the line's end.
        """
        return [written for words in self.feed(word) for written in words]

    def feed(self, word: str) -> Iterator[list[str]]:
        """Take a raw word unit by unit; yield the target words that are final by each unit.

        A word without units is one step too. The time that the caller spends between two steps is
        not counted; all steps must be finished before the next word. Raises what `read` does.
        """
        if not isinstance(word, str):
            raise TypeError(f"word must be a string, but is {word!r}.")
        if self._line_has_ended:
            raise ConfigError("The line has ended.", "Call `begin()` for another line.")
        if len(word.split()) > 1:
            raise ConfigError(
                f"`{shortened(word)}` is more than one word.",
                "Hand over its words one by one: delays count words.",
            )
        began = time.perf_counter()
        parts = self._translator.limits.parts(word, self._translator.pipeline.source)
        self.latest_units = [unit for _, units in parts for unit in units]
        for words in self._steps(parts):
            self._take_times(began)
            yield words
            began = time.perf_counter()

    def _take_times(self, began: float) -> None:
        """Record the time of words written since `began`; time between calls does not count."""
        for index in range(max(0, len(self._seconds) - 1), len(self.segments)):
            if index == len(self._seconds):
                self._seconds.append([])
            known, stamps = self._seconds[index], self.segments[index].written_at
            known += [self._worked + stamp - began for stamp in stamps[len(known) :]]
        self._worked += time.perf_counter() - began

    def _steps(self, parts: Iterable[tuple[str, list[str]]]) -> Iterator[list[str]]:
        for word, units in parts:
            words: list[str] = []
            size = len(units)
            self._arrived += size
            if self._splitter.begins_segment(size) and not self._segment_has_ended:
                words += self._end_segment()
            is_end = self._splitter.add(word, size)
            if self._segment_has_ended and size:
                self.segments.append(self._translator.begin_segment())
                self._segment_has_ended = False
            for count, following in enumerate(self.segments[-1].read(units), start=1):
                words += following
                if is_end and count == size:
                    words += self._end_segment()
                yield words
                words = []
            if not units:
                yield words

    def end(self) -> list[str]:
        """Take the line's end; return the rest of the translation, nothing without a source."""
        self._line_has_ended = True
        began = time.perf_counter()
        words = [] if self._segment_has_ended else self._end_segment()
        self._take_times(began)
        return words

    def _end_segment(self) -> list[str]:
        self._segment_has_ended = True
        self._seen.append(self._arrived)
        return self.segments[-1].end()

    @property
    def source(self) -> list[str]:
        """Source units that have arrived."""
        return [unit for segment in self.segments for unit in segment.source]

    @property
    def target(self) -> list[str]:
        """Target units that have been written."""
        return [unit for segment in self.segments for unit in segment.target]

    @property
    def word_sizes(self) -> list[int]:
        """Number of units of each raw source word."""
        return [size for segment in self.segments for size in segment.word_sizes]

    @property
    def seconds(self) -> list[float]:
        """Computation time from the line's start to each write, without waiting for words.

        There are as many as reads of the line's hypothesis.
        """
        inner = [second for segment in self._seconds[:-1] for second in segment[:-1]]
        return [*inner, *(self._seconds[-1] if self._seconds else ())]

    def new_tokens(self) -> Iterator[WrittenToken]:
        """Yield what has been written since the last call, with the reads of the line.

        The end symbol comes only with the line's end, because another segment may follow before.
        """
        index, count = self._returned
        before = sum(len(segment.source) for segment in self.segments[:index])
        for number, segment in enumerate(self.segments[index:], start=index):
            is_last = self._line_has_ended and number + 1 == len(self.segments)
            stop = len(segment.written_at) - (segment.is_finished and not is_last)
            for position in range(count, stop):
                token, size = segment.written(position), len(segment.source)
                # As in `hypothesis`: the end of a segment was only known from the units after it.
                reads = before + token.reads
                if token.reads > size:
                    reads = self._arrived + 1 if is_last else self._seen[number]
                self._latest = max(self._latest, reads)
                alignment = token.alignment
                if alignment is not None:
                    # An inner end symbol has no column in the line.
                    alignment = [0.0] * before + alignment[: size + is_last]
                yield dataclasses.replace(
                    token, reads=self._latest, alignment=alignment,
                    seconds=self._seconds[number][position],
                )  # fmt: skip
            self._returned, count = (number, max(count, stop)), 0
            before += len(segment.source)

    def token_delays(self) -> list[int]:
        """Return the number of source units read before each target unit was written."""
        return token_delays(self.hypothesis().reads or [], len(self.source), len(self.target))

    def word_delays(self) -> list[int]:
        """Return the number of raw source words that had arrived before each target word."""
        joiner = self._translator.pipeline.target_joiner
        return word_delays(self.hypothesis().reads or [], self.word_sizes, self.target, joiner)

    def hypothesis(self) -> Hypothesis:
        """Return the finished translation of the whole line as a search would."""
        sizes = [len(segment.source) for segment in self.segments]
        # The last segment ends with the line's end symbol.
        seen = [*self._seen[: len(sizes) - 1], self._arrived + 1]
        segments = [segment.hypothesis() for segment in self.segments]
        return join(segments, self._translator.plan, sizes, seen)

    def trace(self, line: int, text: str) -> Trace:
        """Return the record of a line that has ended; `text` is the translation in raw words."""
        if not self.source:
            return Trace(line, [], [], "", [], 0.0, 0.0, reads=[])
        whole = [self.hypothesis()]
        return Trace.of(Translation(line, self.source, whole, [text], "", self.target))


class LineText:
    """A raw line being translated, and its text, which only grows.

    A word is shown once it is final. SentencePiece units that no tokeniser has touched are text as
    they are: they are shown as soon as they are written, also in text without spaces.
    """

    def __init__(self, translator: StreamTranslator) -> None:
        """Raise ConfigError if a model cannot translate simultaneously."""
        self.stream = translator.begin()
        side = translator.pipeline.target
        self._shows_pieces = side.mark == SPACE and not side.moses.tokenizes
        self._joined: IncrementalPieces | IncrementalDetokenizer = (
            IncrementalPieces() if self._shows_pieces else IncrementalDetokenizer(side.moses)
        )
        self._shown = 0

    @property
    def text(self) -> str:
        """All text so far."""
        return self._joined.text

    def read(self, word: str) -> str:
        """Take a raw word; return the text that follows. Raises what `LineStream.read` does."""
        return self.grow(self.stream.read(word))

    def end(self) -> str:
        """Take the line's end; return the rest of the text."""
        return self.grow(self.stream.end())

    def grow(self, words: Sequence[str]) -> str:
        """Return the text that is new after the stream has returned `words`."""
        if self._shows_pieces:
            target = self.stream.target
            words, self._shown = target[self._shown :], len(target)
        return "".join(map(self._joined.add, words))

    def trace(self, number: int) -> Trace:
        """Return the record of the line, which must have ended; `number` is its line number."""
        return self.stream.trace(number, self.text)


def simultaneous(
    model: Translator,
    policy: str | Agent | PrefixPolicy | None = None,
    *,
    finish_reading: bool = False,
) -> StreamTranslator:
    """Return a translator of lines whose words arrive one by one, greedily: `nmtgrid.simultaneous`.

    `policy` decides when to read: a text such as "wait-k k=3" or "confidence threshold=0.8 floor=2"
    (as for `decode --policy`, including a name stored in the model's directory), or a policy; None
    is the k that the model was trained with. With `finish_reading` no translation ends before its
    source has been read (a policy object has its own setting for that).

    Raises ConfigError for invalid policies and those that the model cannot follow, TypeError for
    arguments of another type.
    """
    if not isinstance(model, Translator):
        raise TypeError(f"model must be what `nmtgrid.load` returns, but is {model!r}.")
    if policy is not None and not isinstance(policy, (str, Agent, PrefixPolicy)):
        raise TypeError(
            f"policy must be a string such as 'wait-k k=3' or a policy, but is {policy!r}."
        )
    if finish_reading and isinstance(policy, Agent) and not policy.finish_reading:
        raise ConfigError(
            "`finish_reading` has no effect on a policy that is an object.",
            f"Make it with the setting: `{type(policy).__name__}(..., finish_reading=True)`.",
        )
    agent: Agent | PrefixPolicy
    if policy is None or isinstance(policy, str):
        chosen = choose_policy(policy, model.loaded.folder)
        agent = chosen.setting.make(finish_reading)
        ensemble = len(model.models) > 1
        conditions = Conditions(finish_reading=finish_reading, exit=model.exit, ensemble=ensemble)
        chosen.check(model.loaded, conditions, model.warn)
    else:
        agent = policy
    check_stream_precision(model.precision)
    translator = StreamTranslator.of(model, agent)
    translator.begin()  # a policy that the model cannot follow is an error now, not at a line
    return translator
