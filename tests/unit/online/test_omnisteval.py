"""OmniSTEval, the scorer of the IWSLT evaluation, gives the scores of `online-eval --log`.

    NMTGRID_FUZZED_LOGS=10000 python -m pytest -n 0 -q tests/unit/online/test_omnisteval.py

compares 10,000 logs, which takes minutes.
"""

import json
import logging
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.online.simuleval import LOG, LogScore, Tokenizer, read_log, score

scoring = pytest.importorskip("omnisteval.scoring", reason="OmniSTEval is not installed")
loading = pytest.importorskip("omnisteval.io", reason="OmniSTEval is not installed")

LOGS = int(os.environ.get("NMTGRID_FUZZED_LOGS", "300"))
WORDS = ("the", "a", "cat", "dog", "sat", "ran", "on", "mat", "3.5", "it's", "end.", ",", ".", "…")


def _text(source: random.Random, most: int) -> str:
    blanks = source.choice([" ", " ", "  "])
    return blanks.join(source.choice(WORDS) for _ in range(source.randint(1, most)))


def _sentence(source: random.Random, index: int, measured: bool) -> dict[str, Any]:
    """Return a sentence of any path: none written, beyond the source, never all read, all read."""
    length = source.choice([1, 1, 2, 5, 12, 30])
    reference = _text(source, 15)
    prediction = source.choice([reference, _text(source, 15), _text(source, 15), ""])
    top = source.choice([length, length, length + 3, length // 2])
    low = source.choice([0, 0, 0, top])
    delays = sorted(source.randint(low, top) for _ in prediction.split())
    elapsed, seconds = [], 0.0
    for delay in delays:
        seconds += measured * source.random()
        elapsed.append(delay + seconds)
    return {
        "index": index, "prediction": prediction, "delays": delays,
        "elapsed": elapsed if measured else [0] * len(delays), "prediction_length": len(delays),
        "reference": reference, "source": " ".join(["s"] * length), "source_length": length,
    }  # fmt: skip


def _compare(path: Path, tokenizer: Tokenizer) -> LogScore:
    ours = score(read_log(path), tokenizer)
    instances = loading.load_shortform_instances(str(path), None, "delays", "elapsed")
    theirs, *_ = scoring.evaluate_instances(
        instances,
        is_longform=False,
        bleu_tokenizer=tokenizer,
        compute_quality=ours.bleu is not None,
    )
    pairs = [(getattr(ours.simuleval, name), theirs.get(name, math.nan))
             for name in ("al", "laal", "yaal", "ap", "dal")]  # fmt: skip
    if ours.bleu is not None:
        pairs.append((ours.bleu.value, theirs["bleu"]))
    if ours.computation_aware is not None:
        pairs += [(getattr(ours.computation_aware, name), theirs[f"ca_{name}"])
                  for name in ("al", "laal", "yaal", "ap", "dal")]  # fmt: skip
    # Without a single prediction OmniSTEval has no latency at all; ours is not a number.
    for value, expected in pairs:
        assert value == pytest.approx(expected, abs=1e-9, nan_ok=True)
    return ours


def test_the_same_scores(tmp_path: Path) -> None:
    """OmniSTEval's empty `elapsed` mean that nothing was measured; here zeros do so too."""
    logging.disable(logging.WARNING)
    source, path = random.Random(20), tmp_path / LOG
    scores = []
    try:
        for number in range(LOGS):
            measured = source.random() < 0.3
            sentences = [
                _sentence(source, index, measured) for index in range(source.randint(1, 6))
            ]
            path.write_text("".join(json.dumps(sentence) + "\n" for sentence in sentences))
            scores.append(_compare(path, "none" if number % 4 == 0 else "13a"))
    finally:
        logging.disable(logging.NOTSET)
    # What is compared is there: figures of each kind, and logs without any.
    assert sum(log.bleu is not None and 0 < log.bleu.value < 100 for log in scores) > LOGS / 5
    assert sum(log.computation_aware is not None for log in scores) > LOGS / 10
    assert sum(math.isnan(log.simuleval.yaal) for log in scores) > 0
    assert sum(log.thesis.skipped > 0 for log in scores) > LOGS / 10
