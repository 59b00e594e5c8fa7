"""OmniSTEval, the scorer of the IWSLT evaluation, gives nmtgrid's figures.

Those of `online-eval --log` for random logs, of which `python -m tests.fuzz.latency_logs` compares
10,000, and those of `online-eval` for each reading policy.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtgrid.online.evaluate import Decoded, OnlineDecoder, Sentence, instances, measure
from nmtgrid.online.settings import KINDS, Setting, read_policy
from nmtgrid.online.simuleval import LOG, write_log
from nmtgrid.search.translate import Translator
from tests.unit.helpers.tiny_online import sentences, translator

pytest.importorskip("omnisteval.scoring", reason="OmniSTEval is not installed")
LOGS = 300
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "reader": ("pervasive", {"reader": "own"}),
    **{
        reader: ("transformer", {"reader": reader})
        for reader in ("monotonic", "transport", "information")
    },
}
MODEL_OF = {"mma": "monotonic", "itst": "transport", "wait-info": "information"}
"""Models with the mechanism that a policy needs; all others work with the first one."""


def test_the_same_scores() -> None:
    from tests.fuzz.latency_logs import TOLERANCE, comparisons

    scores = []
    for comparison in comparisons(LOGS, seed=20):
        assert max(comparison.differences.values()) <= TOLERANCE, comparison
        scores.append(comparison.score)
    # What is compared is there: figures of each kind, and logs without any.
    assert sum(log.bleu is not None and 0 < log.bleu.value < 100 for log in scores) > LOGS / 5
    assert sum(log.computation_aware is not None for log in scores) > LOGS / 10
    assert sum(math.isnan(log.simuleval.yaal) for log in scores) > 0
    assert sum(log.thesis.skipped > 0 for log in scores) > LOGS / 10


def test_a_difference_is_a_difference() -> None:
    """Also where only one of two figures is a number."""
    from tests.fuzz.latency_logs import difference

    assert difference(1.5, 1.25) == difference(1.25, 1.5) == 0.25
    assert difference(math.nan, math.nan) == 0
    assert difference(math.nan, 1.0) == difference(1.0, math.nan) == math.inf


@cache
def _translator(name: str) -> Translator:
    arch, settings = MODELS[name]
    online = translator(arch, **settings)
    if arch == "transformer":
        # Weights with which the settings of a policy differ, and sentences have several words.
        torch.manual_seed(4)
        for parameter in online.models[0].parameters():
            torch.nn.init.normal_(parameter, std=0.18)
    else:
        with torch.no_grad():
            for parameter in online.models[0].parameters():
                parameter.mul_(0.5)
    return online


def _settings(policy: str) -> list[Setting]:
    """Return the lowest, the highest and a middle value of a policy's sweep."""
    if policy == "oracle":
        return [Setting("oracle", value) for value in (0.0, 1.0)]
    sweep = read_policy(policy)
    return [sweep[0], sweep[len(sweep) // 2], sweep[-1]]


def _check(pairs: Sequence[Sentence], decoded: Decoded, online: Translator, log: Path) -> None:
    from tests.fuzz.latency_logs import LATENCIES, TOLERANCE, difference, figures_of

    joiner = online.pipeline.target_joiner
    measured = measure(pairs, decoded, joiner, lowercase=False)
    write_log(log, instances(pairs, decoded.outcomes, joiner))
    theirs = figures_of(log / LOG, "none")
    ours = measured.latencies["word", "simuleval"]
    for name in LATENCIES:
        # OmniSTEval leaves out what no sentence has.
        figures = getattr(ours, name), theirs.get(name, math.nan)
        assert difference(*figures) <= TOLERANCE, (decoded.setting.title, name, figures)
    assert difference(measured.tokenized.value, theirs["bleu"]) <= TOLERANCE
    assert measured.tokenized.value > 0 and ours.dal > 0


@pytest.mark.parametrize("policy", KINDS)
def test_each_policy_of_online_eval(policy: str, tmp_path: Path) -> None:
    online = _translator(MODEL_OF.get(policy, "reader"))
    # A log cannot hold a sentence without a source.
    pairs = [pair for pair in sentences(24) if pair.source]
    results = list(OnlineDecoder(online).run(pairs, _settings(policy)))
    # Every second reference is a translation, so that BLEU is above 0.
    for index, outcome in enumerate(results[0].outcomes):
        if index % 2 and outcome.words:
            pairs[index] = dataclasses.replace(pairs[index], reference=outcome.words)
    for number, decoded in enumerate(results):
        _check(pairs, decoded, online, tmp_path / str(number))
    paths = {str([outcome.reads for outcome in decoded.outcomes]) for decoded in results}
    assert len(paths) > 1, "the settings differ"
