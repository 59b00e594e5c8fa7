"""Speedups of early exits: all decoding methods of a model, interleaved in one process.

python -m recipes.adaptive_speed [NAME=]MODEL... --data DATA --out TABLE.json
    Decode the first sentences of a split greedily, in batches of each size, with all methods
    interleaved for several rounds. For each method write the median over rounds of its speedup over
    the full stack in processor time, BLEU, average exit (blocks run per token) and MFLOPs.
    Thresholds on confidence, or on a geometric predictor, are chosen on `--tune-split` for each
    average exit in `--exits`: "confidence 1.5". "free decisions" exits where the last of these
    thresholds does, at no cost: an upper bound for any cheaper criterion. "free, by batch" lets all
    rows of a batch exit with the last of them. A model with a predictor is also decoded with it;
    "sequence, mixed" keeps its sentences in the given batches instead of sorting them by exit.
    "one pass" scores the translations of the full stack at all positions at once, padding included:
    about the gain of verified exits if drafts cost nothing and all were accepted. BLEU is reported
    if all `--sentences` are decoded, not for the few at batch size 1. Weights are packed and memory
    is kept, as in `nmtgrid decode`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtgrid.adaptive.halting import FixedExit, GivenExits, Thresholds, halt_by
from nmtgrid.adaptive.measure import (
    Decoded,
    DecodeSetup,
    Sample,
    System,
    batches,
    decode,
    measure,
    read_samples,
)
from nmtgrid.adaptive.tune import Budgets, Recorded, draw_thresholds, finalists, record_samples
from nmtgrid.base.devices import keep_memory
from nmtgrid.base.io.atomic import folder_name, split_label
from nmtgrid.data.batches import collate
from nmtgrid.data.dataset import Dataset
from nmtgrid.models.api import ExitModel, Verified, with_exits
from nmtgrid.models.directory import load_model
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.forced import forced_log_probabilities
from nmtgrid.search.precision import prepare


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="+", metavar="[NAME=]MODEL")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--tune-split", default="valid")
    parser.add_argument("--tune", type=int, default=300, help="sentences of `--tune-split`")
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--alone", type=int, default=48, help="sentences at batch size 1")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 1])
    parser.add_argument("--exits", type=float, nargs="+", default=[1.5, 2.0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    keep_memory()
    rows = []
    for text in arguments.models:
        label, path = split_label(text)
        rows += of_model(label or folder_name(path), path, arguments)
    arguments.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


def of_model(name: str, path: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of one model."""
    loaded = load_model(path)
    model = with_exits(prepare([loaded.model.eval()], "fp32")[0][0])
    dataset = Dataset.open(arguments.data)
    count = model.traits.num_exits
    tuning = read_samples(loaded.pipeline, dataset.split(arguments.tune_split), arguments.tune)
    every = read_samples(loaded.pipeline, dataset.split(arguments.split), arguments.sentences)
    halting, tuned = model.traits.halting, by_thresholds(model, tuning, arguments.exits)
    rows = []
    for size in arguments.batches:
        samples = every if size > 1 else every[: arguments.alone]
        setup = DecodeSetup(SearchPlan(), size, 1, "processor")
        systems = [System("full stack", model)]
        systems += [System(f"exit {n}", model, FixedExit(n)) for n in range(1, count)]
        systems += tuned
        if halting == "none":
            systems += free_decisions(model, systems[-1], samples, setup)
            for exit in range(1, min(count, 4)):
                systems.append(System(f"verified {exit}", model, Verified(exit)))
        else:
            halt = halt_by(halting, (0.5,) * (count - 1))
            systems.append(System(f"{halting} predictor", model, halt))
        if halting == "sequence":
            table, keys = exits_of(systems[-1], samples, setup)
            systems.append(System("sequence, mixed", model, GivenExits(table, keys)))
        rounds = []
        for _ in range(arguments.rounds):
            rounds.append(decode(systems, samples, setup))
            rounds[-1].append(one_pass(rounds[-1][0], samples, setup))
        for turn in range(len(systems) + 1):
            decoded = [every_system[turn] for every_system in rounds]
            row = summary(decoded, [every_system[0] for every_system in rounds])
            measured = measure(decoded[0], samples, loaded.pipeline)
            flops = measured.flops_per_token
            rows.append(
                {
                    "model": name, "batch": size, "method": decoded[0].system.name, **row,
                    "bleu": measured.bleu if len(samples) == len(every) else None,
                    "signature_bleu": measured.signature,
                    "average_exit": measured.average_exit,
                    "mflops": None if flops is None else flops / 1e6, "sentences": len(samples),
                }
            )  # fmt: skip
            print(json.dumps(rows[-1]))
    return rows


@torch.no_grad()
def one_pass(full: Decoded, samples: Sequence[Sample], setup: DecodeSetup) -> Decoded:
    """Return the full stack's translations, with the time of scoring them in one forward pass."""
    spent = 0.0
    for part in batches(samples, setup.batch):
        translated = [full.hypotheses[index] for index in part]
        batch = collate(
            [samples[index].source for index in part],
            [best.tokens if best else [] for best in translated],
        )
        busy = time.process_time()
        forced_log_probabilities([full.system.model], batch)
        spent += time.process_time() - busy
    system = System("one pass", full.system.model)
    return dataclasses.replace(full, system=system, processor_seconds=spent)


def summary(decoded: Sequence[Decoded], full: Sequence[Decoded]) -> dict[str, Any]:
    """Return the median speedup over the full stack, and the share of identical translations.

    Also the lowest and highest speedup of the rounds; "best" compares the shortest times of all
    rounds, which other load on the machine affects least.
    """
    seconds = [min(round_.processor_seconds for round_ in side) for side in (decoded, full)]
    pairs = zip(decoded, full, strict=True)
    ratios = [whole.processor_seconds / exits.processor_seconds for exits, whole in pairs]
    both = list(zip(decoded[0].hypotheses, full[0].hypotheses, strict=True))
    same = sum(a is None or b is None or a.tokens == b.tokens for a, b in both)
    return {
        "speedup": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
        "best": seconds[1] / seconds[0],
        "identical_share": same / len(both),
    }  # fmt: skip


def by_thresholds(
    model: ExitModel, samples: Sequence[Sample], exits: Sequence[float]
) -> list[System]:
    """Return the thresholds that agree best with the full stack at each of these average exits.

    Thresholds are on confidence, or on the model's geometric predictor; other predictors have none.
    """
    halting = model.traits.halting
    if halting == "multinomial" or halting == "sequence":
        return []
    mechanism: Recorded = "confidence" if halting == "none" else halting
    setup = DecodeSetup(SearchPlan())
    system = System("full stack", model)
    done = decode([system], samples, setup)[0]
    forced = [[] if best is None else best.tokens for best in done.hypotheses]
    records = record_samples(system, samples, forced, setup, mechanism)
    budgets = Budgets(0.2, model.traits.num_exits)
    drawn = draw_thresholds(10_000, model.traits.num_exits)
    best = finalists(records, drawn, budgets, 1)
    chosen = []
    for exit in exits:
        nearest = min(best, key=lambda finalist: abs(finalist.average_exit - exit))
        halt = Thresholds(mechanism, nearest.thresholds)
        chosen.append(System(f"{mechanism} {exit:g}", model, halt))
    return chosen


def exits_of(
    system: System, samples: Sequence[Sample], setup: DecodeSetup
) -> tuple[Tensor, Tensor]:
    """Return the exits of each sentence's tokens [B, T], 1 after its end, and its line [B]."""
    done = decode([system], samples, setup)[0]
    exits = [best.exits or [] if best else [] for best in done.hypotheses]
    longest = max(map(len, exits))
    table = torch.tensor([row + [1] * (longest - len(row)) for row in exits])
    return table, torch.tensor([sample.line for sample in samples])


def free_decisions(
    model: ExitModel, system: System, samples: Sequence[Sample], setup: DecodeSetup
) -> list[System]:
    """Return systems with the same exits as `system`, per row or the latest of each batch."""
    table, keys = exits_of(system, samples, setup)
    together = table.clone()
    for part in batches(samples, setup.batch):
        together[part] = table[part].amax(0)
    names = {"free decisions": table, "free, by batch": together}
    return [System(name, model, GivenExits(exits, keys)) for name, exits in names.items()]


if __name__ == "__main__":
    main()
