"""Reading policies with a statistical guarantee: the least latency with a bounded loss.

The loss is against offline translation by the same model, which reads the whole source first. Half
of the sentences order the settings, the other half tests them (metrics/risk_control.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from nmtgrid.base.io.atomic import nan_to_none
from nmtgrid.metrics.risk_control import (
    Calibration,
    Guarantee,
    Risk,
    Tested,
    halves,
    sentence_losses,
)
from nmtgrid.online.evaluate import Decoded, OnlineDecoder, Sentence
from nmtgrid.online.settings import Setting
from nmtgrid.text.scripts import bleu_tokenizer

OFFLINE = Setting("wait-k", math.inf)
"""The baseline of all comparisons: it reads the whole source before the first write."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A setting with its mean latency and loss (a share) on the half that orders candidates."""

    setting: Setting
    latency: float
    loss: float

    def values(self) -> dict[str, Any]:
        """Return JSON keys; the loss is in percent."""
        return {
            "setting": self.setting.text,
            "latency": nan_to_none(self.latency),
            "ordering_loss": 100 * self.loss,
        }


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """All candidates, the results of their tests, and the latency of offline translation."""

    candidates: list[Candidate]
    offline_latency: float
    ordering_sentences: int
    calibration: Calibration[Candidate]

    @property
    def chosen(self) -> Tested[Candidate] | None:
        """The candidate with the guarantee and the least latency; None if no candidate passed."""
        # Candidates were tested from the slowest to the fastest, up to the first failure.
        return max(self.calibration.passed, key=self.calibration.tested.index, default=None)

    def values(self) -> dict[str, Any]:
        """Return JSON keys."""
        return {
            **self.calibration.values(self.chosen, Candidate.values),
            "ordering_sentences": self.ordering_sentences,
            "offline_latency": nan_to_none(self.offline_latency),
            "candidates": [candidate.values() for candidate in self.candidates],
        }


def refused_candidates(settings: Sequence[Setting]) -> list[str]:
    """Return the reasons why some settings cannot have a guarantee, one sentence each."""
    faults = []
    policies = {setting.policy for setting in settings}
    if "oracle" in policies:
        faults.append("The oracle needs the reference, so it gives no guarantee for new sentences.")
    if "re-translation" in policies:
        faults.append(
            "The final output of `re-translation` is always the offline translation, so its loss "
            "is 0 and needs no guarantee."
        )
    if settings and all(setting.is_offline for setting in settings):
        faults.append(
            "All settings read the whole source first: they are the offline translation that "
            "others are compared with."
        )
    return faults


def losses(
    risk: Risk,
    offline: Decoded,
    online: Decoded,
    sentences: Sequence[Sentence],
    language: str = "",
) -> NDArray[Any]:
    """Return the loss in [0, 1] of each sentence with a source; `language`: the target's."""
    baseline, translations = (
        [
            (outcome.units, outcome.words)
            for outcome, sentence in zip(decoded.outcomes, sentences, strict=True)
            if sentence.source
        ]
        for decoded in (offline, online)
    )
    usable = [sentence for sentence in sentences if sentence.source]
    references = [sentence.reference for sentence in usable]
    tokenize = bleu_tokenizer(language, [sentence.raw_reference for sentence in usable], "none")
    return sentence_losses(risk, baseline, translations, references, tokenize)


def safest_first(latencies: Sequence[float], losses: Sequence[float]) -> list[int]:
    """Return the candidates that are worth a test, from the slowest to the fastest.

    Candidates that another one beats in latency or loss, without being worse in the other, are left
    out; among the rest a faster one loses more. A candidate without latency (NaN) wrote nothing,
    and is the fastest.
    """
    fastest_first = sorted(
        range(len(losses)),
        key=lambda index: (
            -math.inf if math.isnan(latencies[index]) else latencies[index],
            losses[index],
        ),
    )
    chosen: list[int] = []
    for index in fastest_first:
        if not chosen or losses[index] < losses[chosen[-1]]:
            chosen.append(index)
    return chosen[::-1]


def calibrate(
    decoder: OnlineDecoder,
    settings: Sequence[Setting],
    sentences: Sequence[Sentence],
    guarantee: Guarantee,
    latency: Callable[[Sequence[Sentence], Decoded], float],
    seed: int = 1,
    on_progress: Callable[[str, Setting, int], None] = lambda stage, setting, lines: None,
    language: str = "",
) -> Calibrated:
    """Calibrate the settings and return the results; offline settings are not candidates.

    `latency` returns the mean latency of a decoding, `seed` determines the random halves, and
    `on_progress` receives the stage ("ordering" or "testing") with the setting and the number of
    sentences of each batch; `language` is that of the target. Raises ConfigError if there are too
    few sentences for any candidate to pass.
    """
    # Sentences without a source are in neither half: they have nothing to lose.
    first, second = halves([sentence for sentence in sentences if sentence.source], seed)
    guarantee.check(len(second))

    def decode(stage: str, setting: Setting, half: Sequence[Sentence]) -> Decoded:
        def count(setting: Setting, lines: int, tokens: int) -> None:
            on_progress(stage, setting, lines)

        (decoded,) = decoder.run(half, [setting], count)
        return decoded

    whole = decode("ordering", OFFLINE, first)
    candidates = []
    for setting in settings:
        if not setting.is_offline:
            early = decode("ordering", setting, first)
            loss = float(losses(guarantee.risk, whole, early, first, language).mean())
            candidates.append(Candidate(setting, latency(first, early), loss))
    order = safest_first(
        [candidate.latency for candidate in candidates],
        [candidate.loss for candidate in candidates],
    )
    baseline = decode("testing", OFFLINE, second)

    def losses_of(candidate: Candidate) -> NDArray[Any]:
        early = decode("testing", candidate.setting, second)
        return losses(guarantee.risk, baseline, early, second, language)

    calibration = guarantee.test([candidates[index] for index in order], losses_of, len(second))
    return Calibrated(candidates, latency(first, whole), len(first), calibration)
