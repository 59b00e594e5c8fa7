"""SimulEval's logs: read, scored in both conventions, and written for `simuleval --score-only`.

A log is a folder with `instances.log`, one JSON object for each sentence, and `config.yaml`, which
says that source and target are text. Units are words: as many delays as the prediction has words,
each the number of source words read when the word was written.

    {"index": 0, "prediction": "...", "delays": [2, 3], "elapsed": [0, 0],
     "prediction_length": 2, "reference": "...", "source": "...", "source_length": 3}
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.base.errors import InputError
from nmtgrid.base.io.atomic import make_folder, write_text
from nmtgrid.base.io.records import Number, Record, parse_record
from nmtgrid.base.io.text import read_lines
from nmtgrid.metrics.latency import Latency, latency, reference_words

LOG, CONFIG = "instances.log", "config.yaml"

_END = "</s>"
_ADVICE = "Give the `instances.log` of a text-to-text run with latency in words."
_THESIS = ("ap", "al", "dal", "cw", "max_cw")
_SIMULEVAL = ("ap", "al", "dal", "laal")


@dataclasses.dataclass(frozen=True)
class Instance:
    """One sentence of a log; `delays` in source words, one for each word of the prediction."""

    index: int
    prediction: str
    delays: Sequence[float]
    source_length: int
    source: str = ""
    reference: str | None = None

    @property
    def reference_length(self) -> int:
        """The reference's words as SimulEval counts them, without one the prediction's."""
        return len(self.delays) if self.reference is None else reference_words(self.reference)


@dataclasses.dataclass(frozen=True)
class LogScore:
    """The latency of a log in both conventions."""

    thesis: Latency
    simuleval: Latency

    def values(self) -> dict[str, Any]:
        """Return the figures as JSON keys; YAAL is the same in both conventions."""
        thesis, simuleval = self.thesis.values(), self.simuleval.values()
        return {
            "thesis": {name: thesis[name] for name in _THESIS},
            "simuleval": {name: simuleval[name] for name in _SIMULEVAL},
            **{
                name: simuleval[name]
                for name in ("yaal", "length_ratio", "sentences", "skipped", "yaal_skipped", "unit")
            },
        }


def score(instances: Sequence[Instance]) -> LogScore:
    """Return the latency of a log's sentences.

    SimulEval skips sentences without a prediction as well; it cannot score a log with an empty
    source, where this function skips it.
    """
    columns = (
        [instance.delays for instance in instances],
        [instance.source_length for instance in instances],
        [instance.reference_length for instance in instances],
    )
    return LogScore(
        latency(*columns, unit="word"),
        latency(*columns, unit="word", convention="simuleval"),
    )


def read_log(path: str | Path) -> list[Instance]:
    """Return the sentences of an `instances.log` (or of the folder that holds one), in its order.

    Logs of SimulEval before 1.0 end a prediction with `</s>` and give it a delay: both are taken
    away, and reading the source's end does not count. Raises InputError with the file and the line
    for what is no JSON object, lacks something, contradicts itself, or is of speech.
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
                    f"`index` {instance.index} stands in line {lines[instance.index]} already."
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
    or words for an empty source. StorageError when the disk refuses.
    """
    # All sentences are checked before the first byte is written: a half log is worse than none.
    lines = []
    for instance in instances:
        try:
            _check_delays(list(instance.delays), instance.prediction)
            if instance.reference is None:
                raise ValueError("it has no reference.")
            if instance.delays and not instance.source_length:
                raise ValueError("it has words for an empty source, which SimulEval cannot score.")
        except ValueError as fault:
            raise InputError(f"Sentence {instance.index + 1}: {fault}") from fault
        record = {
            "index": instance.index,
            "prediction": " ".join(instance.prediction.split()),
            "delays": list(instance.delays),
            "elapsed": [0] * len(instance.delays),
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
    """A sentence as the file has it; numbers may be written as floats."""

    index: Number
    prediction: str
    delays: list[Number]
    reference: str | None
    source: str = ""
    source_length: Number | None = None
    metric: Any = None

    def instance(self) -> Instance:
        """Return the sentence. Raises ValueError where its fields contradict each other."""
        prediction, delays = self.prediction, self.delays
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
            delays = [min(delay, length) for delay in delays[:-1]]
        _check_delays(delays, prediction)
        return Instance(index, prediction, delays, length, self.source, self.reference)


def _check_delays(delays: Sequence[float], prediction: str) -> None:
    for before, after in itertools.pairwise(delays):
        if after < before:
            raise ValueError(f"delays never shrink, but {after:g} follows {before:g}.")
    # Words may hold separators of Unicode: those that SimulEval splits at, or blanks only.
    counts = {len(prediction.split()), sum(map(bool, prediction.split(" ")))}
    if len(delays) not in counts:
        raise ValueError(f"there are {len(delays):,} delays for {max(counts):,} predicted words.")


def _whole(name: str, value: float) -> int:
    if value != value // 1:
        raise ValueError(f"`{name}` must be a whole number, but is `{value}`.")
    return int(value)
