"""Latency of simultaneous translation: AP, AL, DAL, CW, max-CW, LAAL, YAAL (section 4.5).

Delays may be of tokens or of words; `word_delays` computes the latter from the former. The mark of
subwords, the joiner, shows which of them make a word (see `base/subword_marks.py`). Source words
are those of the raw line, which arrive whole: if a part of a word has been read, it counts as read.
Target words are the tokenised ones, written with their last subword, or, with SentencePiece, with
the next one, which shows that the word has ended.

A user-defined metric is a function of a sentence (`Metric`) in an imported file (`--import FILE`).

Sentences are sorted by length and scored in padded blocks [B, T] of numpy arrays, not one by one.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy
from numpy.typing import NDArray

from nmtgrid.base.errors import ConfigError, nearest
from nmtgrid.base.io.atomic import nan_to_none
from nmtgrid.base.own_code import ADVICE, definition_line, imported_name, own_definitions
from nmtgrid.base.spans import shortened
from nmtgrid.base.subword_marks import SPACE, joined_words, word_numbers

Convention = Literal["thesis", "simuleval"]
CONVENTIONS: dict[Convention, str] = {
    "thesis": "thesis convention", "simuleval": "SimulEval convention",
}  # fmt: skip
"""The names of the conventions in texts."""
TARGET_LENGTHS: dict[Convention, str] = {
    "thesis": "|y| = hypothesis", "simuleval": "|y| = reference in AP and AL",
}  # fmt: skip
"""The target length that each convention uses."""
Unit = Literal["token", "word"]
Numbers = NDArray[numpy.float64]

Metric = Callable[[Sequence[float], float, float], float]
"""A user-defined metric: the latency of a sentence (NaN: none) from its delays, its source length,
and its target length, that of the hypothesis or the reference depending on the convention."""

METRICS = ("ap", "al", "dal", "cw", "max_cw", "laal", "yaal")
_BLOCK = 1 << 20  # padded cells that are processed at a time
_TRIAL = ([1.0, 2.0, 2.0], 2.0, 3.0)


def heading(metric: str) -> str:
    return "max-CW" if metric == "max_cw" else metric.upper()


@dataclasses.dataclass(frozen=True)
class Latency:
    """Macro averages over the sentences of a corpus; NaN if no sentence has a value.

    AP is a share of the source, `length_ratio` the units of all hypotheses over those of all
    references; all others count source units. `skipped` sentences have no latency at all;
    `yaal_skipped` sentences (including these) wrote nothing before the whole source was read. `own`
    are averages of user-defined metrics.
    """

    ap: float
    al: float
    dal: float
    cw: float
    max_cw: float
    laal: float
    yaal: float
    length_ratio: float
    sentences: int
    skipped: int
    yaal_skipped: int
    unit: Unit
    convention: Convention
    own: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """Return everything as JSON keys, with None for NaN."""
        values: dict[str, Any] = nan_to_none(dataclasses.asdict(self))
        if not self.own:
            del values["own"]
        return values


@dataclasses.dataclass(frozen=True)
class SentenceLatency:
    """The latency of each sentence [B]; NaN if undefined."""

    ap: Numbers
    al: Numbers
    dal: Numbers
    cw: Numbers
    max_cw: Numbers
    laal: Numbers
    yaal: Numbers
    hypothesis_lengths: Numbers
    reference_lengths: Numbers
    unit: Unit
    convention: Convention
    own: Mapping[str, Numbers] = dataclasses.field(default_factory=dict)

    def mean(self) -> Latency:
        written, references = self.hypothesis_lengths.sum(), self.reference_lengths.sum()
        return Latency(
            **{name: _mean(getattr(self, name)) for name in METRICS},
            length_ratio=float(written / references) if references else math.nan,
            sentences=len(self.al),
            skipped=int(numpy.isnan(self.al).sum()),
            yaal_skipped=int(numpy.isnan(self.yaal).sum()),
            unit=self.unit,
            convention=self.convention,
            own={name: _mean(values) for name, values in self.own.items()},
        )


def _mean(values: Numbers) -> float:
    """Return the mean of the values that are not NaN, or NaN if there are none."""
    known = values[~numpy.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def latency(
    delays: Sequence[Sequence[float]],
    source_lengths: Sequence[float],
    reference_lengths: Sequence[int] | None = None,
    *,
    unit: Unit = "token",
    convention: Convention = "thesis",
    own: Mapping[str, Metric] | None = None,
) -> Latency:
    """Return the averages of `sentence_latency`."""
    return sentence_latency(
        delays, source_lengths, reference_lengths, unit=unit, convention=convention, own=own
    ).mean()


def sentence_latency(
    delays: Sequence[Sequence[float]],
    source_lengths: Sequence[float],
    reference_lengths: Sequence[int] | None = None,
    *,
    unit: Unit = "token",
    convention: Convention = "thesis",
    own: Mapping[str, Metric] | None = None,
) -> SentenceLatency:
    """Return the latency of each sentence. Eq. (4.47)-(4.50), and also LAAL and YAAL.

    All lengths are in `unit`s, without end symbols. Without `reference_lengths` those of the
    hypotheses are used. In the convention "simuleval" an empty reference counts as one word, as in
    SimulEval. `own` are user-defined metrics by name; their delays are capped at the source length
    except in the convention "simuleval". Raises ValueError if the numbers of sentences differ, for
    delays that decrease or are not numbers, for other units and conventions, and for the
    convention "simuleval" on tokens; ConfigError if a user-defined metric fails.
    """
    _check_name("unit", unit, Unit)
    _check_name("convention", convention, Convention)
    if convention == "simuleval" and unit != "word":
        raise ValueError("SimulEval's convention counts words")
    hypotheses = numpy.array([len(row) for row in delays], dtype=numpy.float64)
    sources = numpy.asarray(source_lengths, dtype=numpy.float64).reshape(-1)
    references = hypotheses
    if reference_lengths is not None:
        references = numpy.asarray(reference_lengths, dtype=numpy.float64).reshape(-1)
    if not len(hypotheses) == len(sources) == len(references):
        raise ValueError("a sentence needs delays, a source length and a reference length")
    if convention == "simuleval":
        references = numpy.maximum(references, 1)
    columns = {name: numpy.full(len(hypotheses), numpy.nan) for name in METRICS}
    # Without source or hypothesis no metric is defined: such sentences stay NaN.
    scored = numpy.flatnonzero((hypotheses > 0) & (sources > 0))
    for rows in _blocks(scored, hypotheses):
        z = _padded([delays[index] for index in rows])
        block = _Block(z, hypotheses[rows], sources[rows], references[rows], convention)
        for name, column in columns.items():
            column[rows] = getattr(block, name)()
    own_columns = {}
    for name, metric in (own or {}).items():
        column = own_columns[name] = numpy.full(len(hypotheses), numpy.nan)
        # Undefined without source or hypothesis, as above.
        for index in scored.tolist():
            row, source, target = delays[index], float(sources[index]), float(len(delays[index]))
            most = source
            if convention == "simuleval":
                most, target = math.inf, float(references[index])
            capped = [float(min(delay, most)) for delay in row]
            column[index] = own_latency(
                name, metric, capped, source, target, f"sentence {index + 1}"
            )
    return SentenceLatency(
        **columns,
        hypothesis_lengths=hypotheses,
        reference_lengths=references,
        unit=unit,
        convention=convention,
        own=own_columns,
    )


def _check_name(name: str, value: str, known: Any) -> None:
    if value not in get_args(known):
        names = " or ".join(map(repr, get_args(known)))
        raise ValueError(f"{name} must be {names}, but is {value!r}")


def own_latency(
    name: str,
    metric: Metric,
    delays: Sequence[float],
    source_length: float,
    target_length: float,
    where: str,
) -> float:
    """Return a user-defined metric. Raises ConfigError if it fails or is not a number."""
    try:
        value = float(metric(delays, source_length, target_length))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".rstrip(".: ")
        raise ConfigError(
            f"The latency metric `{name}` failed at {where}: {reason}.",
            "It is called as `f(delays, source_length, target_length)` and returns a number; "
            "the traceback (`--debug` on the command line) shows where it failed.",
        ) from error
    if math.isinf(value):
        raise ConfigError(
            f"The latency metric `{name}` is infinite at {where}.",
            "Return NaN for sentences without such a latency; averages exclude them.",
        )
    return value


def read_metrics(names: Iterable[str]) -> dict[str, Metric]:
    """Return the metrics with these names, which may have the form FILE.py:function.

    Each is tried on the delays 1, 2, 2, a source length of 2 and a target length of 3. Raises
    ConfigError that names every fault: a function that does not exist or that fails, and a name
    that is taken.
    """
    metrics: dict[str, Metric] = {}
    faults: list[str] = []
    for text in names:
        try:
            name, functions = imported_name(text), own_definitions(inspect.isfunction)
            if name not in functions:
                if line := definition_line(name):
                    raise ConfigError(
                        f"{line}`{name}` is not a latency metric: it must be a function.",
                        f"Write `def {name}(delays, source_length, target_length)`.",
                    )
                advice = f"{nearest(name, functions)} {ADVICE}".strip()
                raise ConfigError(f"There is no latency metric `{shortened(name)}`.", advice)
            metric: Metric = functions[name]
            if metrics.get(name) is metric:
                raise ConfigError(f"The latency metric `{name}` is given twice.", "Give it once.")
            if name in metrics or name in METRICS:
                raise ConfigError(f"There are two latency metrics `{name}`.", "Rename yours.")
            own_latency(name, metric, *_TRIAL, "a trial, delays 1, 2, 2 of 2 source units")
            metrics[name] = metric
        except ConfigError as error:
            faults.append(str(error))
    if faults:
        raise ConfigError(faults)
    return metrics


class _Block:
    """Sentences of similar length; every method returns one value per sentence [B]."""

    def __init__(
        self, z: Numbers, y: Numbers, x: Numbers, reference: Numbers, convention: Convention
    ) -> None:
        """`z` [B, T] are the delays, padded; `y`, `x` and `reference` [B] the lengths."""
        # The conventions differ in two points: SimulEval divides by the reference's length, and
        # lets delays exceed |x| (the thesis does not count the READ of the end symbol).
        self.y, self.x, self.longest = y, x, numpy.maximum(y, reference)
        self.target = reference if convention == "simuleval" else y
        self.z = z if convention == "simuleval" else numpy.minimum(z, x[:, None])
        self.steps = numpy.arange(z.shape[1], dtype=numpy.float64)  # t - 1
        self.written = self.steps < y[:, None]
        # AL's cut-off tau: the first token written with the whole source read, itself included.
        read_all = (self.z >= x[:, None]) & self.written
        first = numpy.where(read_all.any(1), read_all.argmax(1) + 1, y)
        self.before_cut = self.steps < first[:, None]

    def ap(self) -> Numbers:
        """Return average proportion. Eq. (4.47)."""
        return numpy.asarray(numpy.where(self.written, self.z, 0).sum(1) / (self.x * self.target))

    def al(self) -> Numbers:
        """Return average lagging. Eq. (4.49)."""
        return self._lagging(self.target)

    def laal(self) -> Numbers:
        """Return length-adaptive average lagging.

        Papi et al. (2022), "Over-Generation Cannot Be Rewarded", and Polák et al. (2022): AL with
        the rate |x| / max(|y_hyp|, |y_ref|), the mean up to tau of z_t - rate (t - 1).
        """
        return self._lagging(self.longest)

    def dal(self) -> Numbers:
        """Return differentiable average lagging. Eq. (4.50).

        Cherry and Foster (2019), "Thinking Slow about Latency Evaluation for Simultaneous Machine
        Translation"; Arivazhagan et al. (2019), "Monotonic Infinite Lookback Attention". The mean
        over all t of z'_t - r (t-1), with r = |x|/|y| and z'_t = max(z_t, z'_{t-1} + r), which
        makes z'_t - r (t-1) the greatest z_s - r (s-1) up to t.
        """
        lags = numpy.maximum.accumulate(self._lags(self.y), axis=1)
        return _average(lags, self.written)

    def yaal(self) -> Numbers:
        """Return the average lagging of tokens written before all was read, with LAAL's rate.

        Polák et al. (2025), "Better Late Than Never", as in OmniSTEval: the mean of
        z_t - rate (t - 1) over the t with z_t < |x|, with rate = |x| / max(|y_hyp|, |y_ref|).
        """
        unread = self.written & (self.z < self.x[:, None])
        return _average(self._lags(self.longest), unread)

    def cw(self) -> Numbers:
        """Return the consecutive wait: source units per run of READs (0 if nothing is read).

        Gu et al. (2017), "Learning to Translate in Real-time with Neural Machine Translation":
        z_|y| divided by the number of writes that follow a READ, those t with z_t > z_{t-1} and
        z_0 = 0. READs after the last write do not count.

        Departs: The text averages z_t - z_{t-1} over all t, which is z_|y| / |y| for every path.
        Here only writes that follow a read are counted.
        """
        runs = (self._increments() > 0).sum(1)
        last = numpy.where(self.written, self.z, 0).max(1)
        return numpy.asarray(last / numpy.maximum(runs, 1))

    def max_cw(self) -> Numbers:
        """Return the longest run of reads before a write: the maximum of z_t - z_{t-1}."""
        return numpy.asarray(self._increments().max(1))

    def _lags(self, target: Numbers) -> Numbers:
        return numpy.asarray(self.z - (self.x / target)[:, None] * self.steps)

    def _lagging(self, target: Numbers) -> Numbers:
        # Only SimulEval's convention leaves delays beyond |x| in `z`: if the first delay is one, it
        # is the lagging.
        late = self.z[:, 0] > self.x
        return numpy.where(late, self.z[:, 0], _average(self._lags(target), self.before_cut))

    def _increments(self) -> Numbers:
        return numpy.where(self.written, numpy.diff(self.z, axis=1, prepend=0), 0)


def reference_words(reference: str) -> int:
    """Return a reference's length as counted by SimulEval: split at single spaces, at least 1."""
    return len(reference.split(" "))


def _blocks(rows: NDArray[numpy.intp], lengths: Numbers) -> Iterator[NDArray[numpy.intp]]:
    """Yield the sentences, short ones first, in blocks that pad to a bounded size."""
    order = rows[numpy.argsort(lengths[rows], kind="stable")]
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * lengths[order[stop]] <= _BLOCK:
            stop += 1
        yield order[start:stop]
        start = stop


def _padded(rows: Sequence[Sequence[float]]) -> Numbers:
    """Return the rows as [B, T], padded with the last value of each."""
    width = max(len(row) for row in rows)
    z = numpy.empty((len(rows), width))
    for index, row in enumerate(rows):
        z[index, : len(row)] = row
        z[index, len(row) :] = row[-1]
    if not numpy.isfinite(z).all() or (z < 0).any() or (numpy.diff(z, axis=1) < 0).any():
        raise ValueError("delays must be finite, at least 0 and non-decreasing")
    return z


def _average(values: Numbers, where: NDArray[numpy.bool_]) -> Numbers:
    """Return the mean of each row's True values, NaN if there are none."""
    # Zeros, not NaN, are summed, so that padding takes no part; the divisor avoids a warning.
    counts = where.sum(1)
    sums = numpy.where(where, values, 0).sum(1)
    return numpy.where(counts > 0, sums / numpy.maximum(counts, 1), numpy.nan)


def words_arrived(word_sizes: Sequence[int]) -> list[int]:
    """Return [S + 2]: the words that have arrived once 0, 1, ..., S units and the end are read.

    `word_sizes` has the number of units of each source word. A word without units arrives with
    the next one.
    """
    counts = [0]
    for word, size in enumerate(word_sizes, start=1):
        counts += [word] * size
    return [*counts, len(word_sizes)]


def token_delays(reads: Sequence[int], source_size: int, target_size: int) -> list[int]:
    """Return the delay of each target token in source tokens; end symbols count on neither side."""
    return [min(count, source_size) for count in reads[:target_size]]


def word_delays(
    delays: Sequence[int], word_sizes: Sequence[int], target_units: Sequence[str], joiner: str
) -> list[int]:
    """Return the delay of each target word, in source words, from delays of units in source units.

    `delays` has one for each target unit, and may have that of the end symbol too: a last unit
    that needs a further one is final only then. The source's end symbol is read after its units;
    greater delays count as the whole source. Raises ValueError unless each target unit has a
    delay.
    """
    counts = words_arrived(word_sizes)
    ends = word_ends(len(delays), target_units, joiner)
    return [counts[min(delays[end], len(counts) - 1)] for end in ends]


def word_ends(count: int, target_units: Sequence[str], joiner: str) -> list[int]:
    """Return the index, from 0, of the write out of `count` that makes each target word final.

    There is a write for each unit, and perhaps that of the end symbol; see `word_delays`. Raises
    ValueError if there are more or fewer.
    """
    if count - len(target_units) not in (0, 1):
        raise ValueError(f"{count} delays for {len(target_units)} target units")
    # SentencePiece marks without letters are not words: the text is empty.
    if not any(joined_words(target_units, joiner)):
        return []
    numbers = word_numbers(target_units, joiner)
    # The first unit of each word but the first.
    begins = [i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1]]
    if joiner == SPACE:
        # The next unit, or the end symbol, shows that a word has ended.
        return [*begins, count - 1]
    goes_on = bool(joiner) and target_units[-1].endswith(joiner)
    return [*(begin - 1 for begin in begins), count - 1 if goes_on else len(numbers) - 1]


def seconds_per_token(written: Iterable[Sequence[float]]) -> dict[str, float | None]:
    """Return the mean `seconds_per_token` and the 95th percentile, `seconds_per_token_p95`.

    `written` has for each sentence the seconds from its beginning to each write, end symbols
    included; the time of a token is that since the previous write. Both are None if nothing was
    written.
    """
    steps = [numpy.diff(numpy.asarray(seconds, dtype=float), prepend=0) for seconds in written]
    every = numpy.concatenate([numpy.zeros(0), *steps])
    mean, most = (every.mean(), numpy.percentile(every, 95)) if len(every) else (math.nan,) * 2
    values = {"seconds_per_token": float(mean), "seconds_per_token_p95": float(most)}
    return {name: None if math.isnan(value) else value for name, value in values.items()}
