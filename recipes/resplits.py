"""Failure rate of the guarantee of `online-eval --allow-loss`, over many random splits.

python -m recipes.resplits pool PREFIX --sentences N
    Write N sentence pairs of the toy grammar, from the distribution of its training pairs, to
    PREFIX.qa and PREFIX.qb.
python -m recipes.resplits MODEL --data DATA --split NAME --policy TEXT... --out PREFIX
    Translate the split with all settings once; then, many times, choose one of them on a random
    sample of the sentences, as the command does, and measure its loss on the others. Write
    PREFIX.md and PREFIX.json.

A guarantee fails if the mean loss of the certified setting exceeds the bound on all sentences but
those that determined the order of tests. Given these, the sentences of the test are a random sample
of the others, so that at most a share of 1 - confidence should fail, up to sampling noise.
`tolerance` is the number of failures that is exceeded with a probability of at most 0.001.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nmtgrid.data.dataset import Dataset
from nmtgrid.data.toy.corpus import ToyGrammar
from nmtgrid.metrics.risk_control import Guarantee, Risk, binomial_cdf, halves
from nmtgrid.online.calibrate import OFFLINE, losses, safest_first
from nmtgrid.online.evaluate import OnlineDecoder, read_sentences, sentence_latencies
from nmtgrid.online.settings import Setting, read_settings
from nmtgrid.search.translate import load
from recipes.seeds import PART
from recipes.tables import write_table

RISKS: tuple[Risk, ...] = ("bleu", "agreement")
STREAM = 3
"""Random stream of the toy grammar; its splits use the streams below."""
SURE = 0.999


@dataclasses.dataclass(frozen=True)
class Measured:
    """Settings [C] of a policy on the pool [N]: AL and losses (as fractions) [C, N] by risk."""

    settings: Sequence[Setting]
    latencies: NDArray[Any]
    losses: dict[Risk, NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Resplit:
    """The setting chosen in one resplit (None: none certified), its loss on the others, its AL.

    `naive` is the loss on the others of the fastest setting whose mean loss on the test sentences
    is within the bound, chosen without a statistical test.
    """

    chosen: int | None
    loss: float
    latency: float
    naive: float


def resplit(measured: Measured, guarantee: Guarantee, count: int, seed: int) -> Resplit:
    """Choose a setting on `count` sentences of the pool."""
    table = measured.losses[guarantee.risk]
    draw = numpy.random.default_rng(seed)
    sample = draw.permutation(table.shape[1])[:count].tolist()
    first, second = halves(sample, seed)
    others = numpy.setdiff1d(numpy.arange(table.shape[1]), first)
    latencies = numpy.nanmean(measured.latencies[:, first], 1)
    order = safest_first(latencies.tolist(), table[:, first].mean(1).tolist())
    passed = guarantee.test(order, lambda index: table[index, second], len(second)).passed
    chosen = passed[-1].candidate if passed else None
    below = [index for index in order if table[index, second].mean() <= guarantee.allowed / 100]
    return Resplit(
        chosen,
        0.0 if chosen is None else float(table[chosen, others].mean()),
        float("nan") if chosen is None else float(numpy.nanmean(measured.latencies[chosen])),
        float(table[below[-1], others].mean()) if below else 0.0,
    )


def tolerance(resplits: int, confidence: float) -> int:
    """Return the most resplits that may fail: more do with a probability of at most 1 - SURE."""
    return next(
        failures
        for failures in range(resplits + 1)
        if binomial_cdf(failures, resplits, 1 - confidence) >= SURE
    )


def row(
    policy: str, measured: Measured, guarantee: Guarantee, count: int, resplits: int
) -> dict[str, Any]:
    """Return the row of all resplits of one policy, bound and number of sentences."""
    runs = [resplit(measured, guarantee, count, seed) for seed in range(1, resplits + 1)]
    certified = [run for run in runs if run.chosen is not None]
    bound = guarantee.allowed / 100
    return {
        PART: f"{resplits}_resplits,_confidence_{guarantee.confidence:g}",
        "policy": policy,
        "risk": guarantee.risk,
        "allow_loss": guarantee.allowed,
        "sentences": count,
        "certified": len(certified),
        "failed": sum(run.loss > bound for run in runs),
        "tolerance": tolerance(resplits, guarantee.confidence),
        "failed_without_a_test": sum(run.naive > bound for run in runs),
        "al": float(numpy.mean([run.latency for run in certified])) if certified else None,
        "loss": 100 * float(numpy.mean([run.loss for run in certified])) if certified else None,
    }


def measure(options: argparse.Namespace) -> dict[str, Measured]:
    """Translate the pool with all settings; return the measurements by policy."""
    translator = load(options.model, beam=1)
    decoder = OnlineDecoder(translator)
    split = Dataset.open(options.data).split(options.split)
    pipeline, limits = translator.pipeline, translator.limits
    read = read_sentences(pipeline, split, options.sentences, limits)
    sentences = [sentence for sentence in read if sentence.source]
    (offline,) = decoder.run(sentences, [OFFLINE])
    results = {}
    for text in options.policy:
        settings = read_settings(None, None, None, [text])
        latencies, tables = [], {risk: list[NDArray[Any]]() for risk in RISKS}
        for decoded in decoder.run(sentences, settings):
            of_sentence = sentence_latencies(sentences, decoded.outcomes, pipeline.target_joiner)
            latencies.append(of_sentence["token", "thesis"].al)
            for risk in RISKS:
                lost = losses(risk, offline, decoded, sentences, pipeline.facts.target_lang)
                tables[risk].append(lost)
            means = ", ".join(f"{risk} {100 * tables[risk][-1].mean():.2f}" for risk in RISKS)
            print(f"{decoded.setting.title}: AL {numpy.nanmean(latencies[-1]):.2f}, {means}")
        results[settings[0].curve_label] = Measured(
            settings,
            numpy.array(latencies),
            {risk: numpy.array(table) for risk, table in tables.items()},
        )
    return results


def write_pool(prefix: Path, count: int) -> None:
    """Write sentence pairs from a random stream of the toy grammar that no split uses."""
    pairs = ToyGrammar(stream=STREAM).sample(count)
    for suffix, lines in (
        (".qa", [pair.source for pair in pairs]),
        (".qb", [pair.target for pair in pairs]),
    ):
        Path(f"{prefix}{suffix}").write_text("\n".join([*lines, ""]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a model directory, or `pool`")
    parser.add_argument("prefix", nargs="?", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--policy", action="append", default=[])
    parser.add_argument("--sentences", type=int)
    parser.add_argument("--allow", nargs="+", type=float, default=[1, 2, 5, 10])
    parser.add_argument("--confidence", type=float, default=0.9)
    parser.add_argument("--counts", nargs="+", type=int, default=[400, 1000])
    parser.add_argument("--resplits", type=int, default=100)
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.model == "pool":
        write_pool(options.prefix, options.sentences)
        return
    rows = [
        row(policy, measured, Guarantee(risk, allowed, options.confidence), count, options.resplits)
        for policy, measured in measure(options).items()
        for risk in RISKS
        for count in options.counts
        for allowed in options.allow
    ]
    write_table(rows, options.out)


if __name__ == "__main__":
    main()
