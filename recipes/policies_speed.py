"""Processor time of reading policies relative to wait-k, for recipes/policies.sh.

python -m recipes.policies_speed MODEL --data DATA --policy TEXT... [--sentences N] [--rounds R]
        --out PREFIX
    Translate N sentences of the test split greedily with each setting, R times, alternating
    between settings every hundred sentences. All run in one process, whose oneDNN primitive cache
    is enlarged to fit all settings (the default fits a run of one setting). A row for each setting:
    the median processor time per token written, its ratio to that of the wait-k setting with the
    closest delay (DAL), and the number of predictions per token, since a policy that depends on
    predictions makes one before each READ. Writes PREFIX.md and PREFIX.json.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from nmtgrid.data.dataset import Dataset
from nmtgrid.models.api import TranslationModel
from nmtgrid.online.evaluate import OnlineDecoder, Outcome, read_sentences, sentence_latencies
from nmtgrid.online.settings import Setting, read_policy
from nmtgrid.search.translate import TranslationOptions, load
from recipes.tables import write_table

_PART = 100
"""Number of sentences that each setting translates before the next setting runs."""


def _count_predictions(models: Sequence[TranslationModel]) -> Counter[str]:
    """Return a counter to which each model adds the number of rows whose token it predicts."""
    counter: Counter[str] = Counter()

    def counting(classify: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def classified(features: Tensor, *options: Any) -> Tensor:
            counter["rows"] += features.shape[:-1].numel()
            return classify(features, *options)

        return classified

    for model in models:
        setattr(model, "classify", counting(model.classify))  # noqa: B010
    return counter


def rows_of(
    model: str, data: str, settings: Sequence[Setting], count: int, rounds: int
) -> list[dict[str, Any]]:
    """Return a row for each setting."""
    options = TranslationOptions(batch_tokens=2000)
    translator = load(model, device="cpu", beam=1, coverage_penalty=0.0, options=options)
    decoder = OnlineDecoder(translator)
    predictions = _count_predictions(translator.models)
    dataset = Dataset.open(data)
    sentences = read_sentences(translator.pipeline, dataset.split("test"), count)
    settings = [setting for setting in settings if not decoder.faults([setting])]
    seconds: dict[Setting, list[float]] = {setting: [] for setting in settings}
    tokens: dict[Setting, int] = {}
    predicted: dict[Setting, int] = {}
    delays: dict[Setting, float] = {}
    joiner = translator.pipeline.target_joiner
    for turn in range(rounds):
        # In small parts and alternating order, since the speed of the machine drifts.
        spent = dict.fromkeys(settings, 0.0)
        outcomes: dict[Setting, list[Outcome]] = {setting: [] for setting in settings}
        tokens, predicted = dict.fromkeys(settings, 0), dict.fromkeys(settings, 0)
        for first in range(0, len(sentences), _PART):
            part = sentences[first : first + _PART]
            for setting in settings if turn % 2 == 0 else reversed(settings):
                before, began = predictions.total(), time.process_time()
                (decoded,) = decoder.run(part, [setting])
                spent[setting] += time.process_time() - began
                predicted[setting] += predictions.total() - before
                tokens[setting] += decoded.target_tokens
                outcomes[setting] += decoded.outcomes
        for setting in settings:
            seconds[setting].append(spent[setting])
            latencies = sentence_latencies(sentences, outcomes[setting], joiner)
            delays[setting] = latencies["token", "thesis"].mean().dal
    cost = {s: 1000 * statistics.median(seconds[s]) / max(tokens[s], 1) for s in settings}
    wait_k = [s for s in settings if s.policy == "wait-k" and not math.isnan(delays[s])]
    rows = []
    for setting in settings:
        # If all translations are empty, delay and time per token are undefined.
        is_defined = not math.isnan(delays[setting])
        row = {
            "setting": setting.title,
            "dal": delays[setting] if is_defined else None,
            "predictions_per_token": predicted[setting] / max(tokens[setting], 1),
            "ms_per_token": cost[setting],
        }
        compared = dict.fromkeys(("beside", "ratio", "least", "most"))
        if wait_k and is_defined:
            nearest = min(wait_k, key=lambda other: abs(delays[other] - delays[setting]))
            ratios = [
                (spent / tokens[setting]) / (other / tokens[nearest])
                for spent, other in zip(seconds[setting], seconds[nearest], strict=True)
            ]
            values = (nearest.title, statistics.median(ratios), min(ratios), max(ratios))
            compared = dict(zip(compared, values, strict=True))
        rows.append({**row, **compared, "rounds": rounds})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--policy", action="append", required=True)
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    settings = [setting for text in options.policy for setting in read_policy(text)]
    # Interleaved settings would otherwise evict each other's primitives from oneDNN's cache.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16384")
    rows = rows_of(options.model, options.data, settings, options.sentences, options.rounds)
    write_table(rows, str(options.out))


if __name__ == "__main__":
    main()
