"""SimulEval's logs: read, scored in both conventions, and written for `simuleval --score-only`.

A log is a folder with `instances.log`, one JSON object for each sentence, and `config.yaml`, which
says that source and target are text. Units are words: there is one delay for each word of the
prediction, the number of source words read when the word was written.

    {"index": 0, "prediction": "...", "delays": [2, 3], "elapsed": [0, 0],
     "prediction_length": 2, "reference": "...", "source": "...", "source_length": 3}

`elapsed` are delays plus computation time, in the units of `source_length`; SimulEval itself does
not measure it on text and writes zeros.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from nmtgrid.base.errors import InputError
from nmtgrid.base.io.atomic import make_folder, write_text
from nmtgrid.base.io.records import Number, Record, parse_record
from nmtgrid.base.io.text import read_lines
from nmtgrid.metrics.latency import Latency, Metric, latency, reference_words
from nmtgrid.metrics.quality import Score, bleu
from nmtgrid.text.scripts import count_unspaced, is_unsegmented

LOG, CONFIG = "instances.log", "config.yaml"

_END = "</s>"
_ADVICE = "Give the `instances.log` of a text-to-text run with latency in words."
_THESIS = ("ap", "al", "dal", "cw", "max_cw")
_SIMULEVAL = ("ap", "al", "dal", "laal")
COMPUTATION_AWARE = (*_SIMULEVAL, "yaal")

Tokenizer = Literal["13a", "none", "intl", "zh", "char"]
"""SacreBLEU's tokenizers that need neither a further package nor a download."""


@dataclasses.dataclass(frozen=True)
class Instance:
    """One sentence of a log; `delays` in source words, one for each word of the prediction.

    `elapsed` are delays plus computation time; empty if that was not measured.
    """

    index: int
    prediction: str
    delays: Sequence[float]
    source_length: int
    source: str = ""
    reference: str | None = None
    elapsed: Sequence[float] = ()

    @property
    def reference_length(self) -> int:
        """Number of words in the reference, as SimulEval counts; without one in the prediction."""
        return len(self.delays) if self.reference is None else reference_words(self.reference)


@dataclasses.dataclass(frozen=True)
class LogScore:
    """The scores of a log: latency in both conventions, and BLEU.

    `computation_aware` is SimulEval's convention with `elapsed` instead of the delays, None if it
    was not measured. `bleu` is None if it cannot be computed; `notes` are messages that say why.
    """

    thesis: Latency
    simuleval: Latency
    computation_aware: Latency | None
    bleu: Score | None
    notes: Sequence[str]

    def values(self) -> dict[str, Any]:
        """Return the figures as JSON keys; YAAL is the same in both conventions."""
        thesis, simuleval = self.thesis.values(), self.simuleval.values()
        own = ["own"] if self.thesis.own else []
        values: dict[str, Any] = {
            "bleu": None if self.bleu is None else self.bleu.value,
            "signature_bleu": None if self.bleu is None else self.bleu.signature,
            "thesis": {name: thesis[name] for name in (*_THESIS, *own)},
            "simuleval": {name: simuleval[name] for name in (*_SIMULEVAL, *own)},
        }
        if self.computation_aware is not None:
            aware = self.computation_aware.values()
            values["computation_aware"] = {name: aware[name] for name in (*COMPUTATION_AWARE, *own)}
        values |= {
            name: simuleval[name]
            for name in ("yaal", "length_ratio", "sentences", "skipped", "yaal_skipped", "unit")
        }
        return {**values, "notes": [*self.notes]}


def score(
    instances: Sequence[Instance],
    tokenizer: Tokenizer = "13a",
    own: Mapping[str, Metric] | None = None,
) -> LogScore:
    """Return latency and BLEU of a log's sentences; `tokenizer` is SacreBLEU's.

    `own` are user-defined latency metrics.

    Latency leaves out sentences without a prediction, as SimulEval does, and those with an empty
    source, which SimulEval cannot score. BLEU counts all sentences.
    """
    source_lengths = [instance.source_length for instance in instances]
    reference_lengths = [instance.reference_length for instance in instances]
    columns = [instance.delays for instance in instances], source_lengths, reference_lengths
    notes: list[str] = []
    quality = _bleu(instances, tokenizer, notes)
    aware = None
    if _is_computation_aware(instances, notes):
        elapsed = [instance.elapsed for instance in instances]
        aware = latency(
            elapsed, source_lengths, reference_lengths, unit="word", convention="simuleval",
            own=own,
        )  # fmt: skip
    return LogScore(
        latency(*columns, unit="word", own=own),
        latency(*columns, unit="word", convention="simuleval", own=own),
        aware,
        quality,
        notes,
    )


def _bleu(instances: Sequence[Instance], tokenizer: Tokenizer, notes: list[str]) -> Score | None:
    """Return corpus BLEU; None, with a note, if it would not be that of the log."""
    count = len(instances)
    references = [instance.reference for instance in instances if instance.reference is not None]
    filled = sum(bool(reference.strip()) for reference in references)
    if not filled:
        notes.append("No BLEU: the log has no references.")
    elif len(references) < count:
        notes.append(
            f"No BLEU: {count - len(references):,} of {count:,} sentences have no reference."
        )
    elif not any(instance.prediction.strip() for instance in instances):
        notes.append("No BLEU: the log has no predictions.")
    else:
        if filled < count:
            notes.append(f"{count - filled:,} references are empty and count as such in BLEU.")
        # Most references that end in a full stop have a space before it.
        stops = [r.endswith(" .") for r in map(str.rstrip, references) if r.endswith(".")]
        if tokenizer != "none" and sum(stops) > len(stops) / 2:
            notes.append(
                "The references seem to be tokenised, and BLEU tokenises them again: "
                "`--sacrebleu-tokenizer none` prevents that."
            )
        if tokenizer not in ("zh", "char") and is_unsegmented(count_unspaced(references)):
            notes.append(
                "The references have no spaces between words, but BLEU counts words separated by "
                "spaces: `--sacrebleu-tokenizer zh` counts Chinese characters, `char` all."
            )
        return bleu([instance.prediction for instance in instances], references, tokenizer)
    return None


def _is_computation_aware(instances: Sequence[Instance], notes: list[str]) -> bool:
    """Return whether all words have an `elapsed` that is at least their delay and never decreases.

    Adds a note if only some do: averages over those would not be comparable with others.
    """
    if not any(instance.elapsed for instance in instances):
        return False
    for instance in instances:
        is_late = [e >= d for e, d in zip(instance.elapsed, instance.delays, strict=False)]
        grows = all(before <= after for before, after in itertools.pairwise(instance.elapsed))
        # `elapsed` is shorter than the delays if nothing was measured.
        if len(is_late) < len(instance.delays) or not all(is_late) or not grows:
            notes.append(
                f"No computation-aware latency: `elapsed` of index {instance.index} is not its "
                "delays plus time."
            )
            return False
    return True


def read_log(path: str | Path) -> list[Instance]:
    """Return the sentences of an `instances.log` (or of the folder that contains it), in its order.

    Logs of SimulEval before 1.0 end a prediction with `</s>` and give it a delay: both are removed,
    and reading the source's end does not count. Raises InputError with the file and the line if a
    line is not a JSON object, is incomplete or inconsistent, or is of speech.
    """
    path = path if str(path) == "-" or not Path(path).is_dir() else Path(path, LOG)
    instances: list[Instance] = []
    lines: dict[int, int] = {}
    for number, line in enumerate(read_lines(path), start=1):
        record = parse_record(line, _Line, path, number, name="a sentence of a log", advice=_ADVICE)
        try:
            instance = record.instance()
            if instance.index in lines:
                raise ValueError(
                    f"`index` {instance.index} is already in line {lines[instance.index]}."
                )
        except ValueError as fault:
            raise InputError(str(fault), _ADVICE, path=path, line=number) from fault
        lines[instance.index] = number
        instances.append(instance)
    return instances


def write_log(folder: str | Path, instances: Iterable[Instance]) -> None:
    """Write a folder that `simuleval --score-only --output FOLDER` scores.

    An earlier log in `folder` is replaced. Raises InputError, before anything is written,
    for a sentence that SimulEval could not read: delays that do not fit the words, no reference,
    or words for an empty source. Raises StorageError if the log cannot be written.
    """
    # All sentences are checked before the first byte is written: a partial log is worse than none.
    lines = []
    for instance in instances:
        try:
            _check_delays(list(instance.delays), instance.prediction)
            if instance.reference is None:
                raise ValueError("it has no reference.")
            if instance.delays and not instance.source_length:
                raise ValueError(
                    "there are words for an empty source, which SimulEval cannot score."
                )
        except ValueError as fault:
            raise InputError(f"Sentence {instance.index + 1}: {fault}") from fault
        record = {
            "index": instance.index,
            "prediction": " ".join(instance.prediction.split()),
            "delays": list(instance.delays),
            "elapsed": list(instance.elapsed) or [0] * len(instance.delays),
            "prediction_length": len(instance.delays),
            "reference": instance.reference,
            "source": " ".join(instance.source.split()),
            "source_length": instance.source_length,
        }
        lines.append(json.dumps(record) + "\n")
    folder = Path(folder)
    make_folder(folder)
    write_text(folder / CONFIG, "source_type: text\ntarget_type: text\n")
    write_text(folder / LOG, "".join(lines))


class _Line(Record):
    """A sentence as in the file; integers may be written as floats."""

    index: Number
    prediction: str
    delays: list[Number]
    reference: str | None
    source: str = ""
    source_length: Number | None = None
    elapsed: list[Number] | None = None
    metric: Any = None

    def instance(self) -> Instance:
        """Return the sentence. Raises ValueError if its fields contradict each other."""
        prediction, delays = self.prediction, self.delays
        # Zeros mean that nothing was measured.
        elapsed = self.elapsed if self.elapsed and any(self.elapsed) else []
        if elapsed and len(elapsed) != len(delays):
            raise ValueError(f"there are {len(elapsed):,} `elapsed` for {len(delays):,} delays.")
        if self.source_length is None and not self.source:
            raise ValueError("`source_length` is missing.")
        words = len(self.source.split())
        index = _whole("index", self.index)
        length = (
            words if self.source_length is None else _whole("source_length", self.source_length)
        )
        if self.metric is not None and prediction.split()[-1:] == [_END]:
            # Only SimulEval before 1.0 writes `metric`. Its delays count the source's end as a
            # word.
            _check_delays(delays, prediction)
            prediction = " ".join(prediction.split()[:-1])
            delays, elapsed = [min(delay, length) for delay in delays[:-1]], elapsed[:-1]
        _check_delays(delays, prediction)
        return Instance(
            index, prediction, delays, length, self.source, self.reference, elapsed or ()
        )


def _check_delays(delays: Sequence[float], prediction: str) -> None:
    for before, after in itertools.pairwise(delays):
        if after < before:
            raise ValueError(f"delays must not decrease, but {after:g} follows {before:g}.")
    # Words may contain Unicode spaces: count as SimulEval splits, or at blanks only.
    counts = {len(prediction.split()), sum(map(bool, prediction.split(" ")))}
    if len(delays) not in counts:
        raise ValueError(f"there are {len(delays):,} delays for {max(counts):,} predicted words.")


def _whole(name: str, value: float) -> int:
    if value != value // 1:
        raise ValueError(f"`{name}` must be a whole number, but is `{value}`.")
    return int(value)
