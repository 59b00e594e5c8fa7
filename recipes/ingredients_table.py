"""The table of recipes/ingredients.sh: training runs, each adding one technique.

python -m recipes.ingredients_table STEP... --seeds LIST --beam B [--ensemble FILE] --out P
    A row for each STEP with the model directories STEP-seedN, from `done.json` (train),
    `test-beamB.json` (decode) and `compare.json` (analyze compare, against the previous step);
    the last row is the ensemble. Writes P.md and P.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from nmtgrid.analysis.training_curves import read_run
from nmtgrid.metrics.quality import spread
from recipes.pervasive_table import p_values
from recipes.tables import Row, read_json, write_table


def row_of(step: Path, seeds: Sequence[str], beam: int) -> Row:
    """Return the scores of a step: mean and deviation over seeds."""
    models = [Path(f"{step}-seed{seed}") for seed in seeds]
    trained = [read_json(model / "done.json") for model in models]
    scored = [read_json(model / f"test-beam{beam}.json") for model in models]
    rates = [read_run(model / "metrics.jsonl", model.name).tokens_per_second for model in models]
    row: Row = {
        "step": step.name,
        "seeds": len(models),
        "minutes": spread([training["minutes"] for training in trained]),
        "updates": spread([training["updates"] for training in trained]),
        "tokens_per_second": spread([rate for rate in rates if rate is not None]),
        "valid_perplexity": spread([training["valid_perplexity"] for training in trained]),
        "bleu": spread([scores["bleu_tokenized"] for scores in scored]),
        "chrf": spread([scores["chrf"] for scores in scored]),
        "p_bleu": _p_values(models),
        "signature_bleu": scored[0]["signature_bleu_tokenized"],
    }
    return row


def _p_values(models: Sequence[Path]) -> str:
    """Return the p-value of BLEU against the previous step per seed; empty for the first step."""
    compared = [model / "compare.json" for model in models]
    values = [p for path in compared if path.is_file() for p in p_values(path).values()]
    return ", ".join(f"{p:.3f}" for p in values)


def _ensemble(path: Path, seeds: Sequence[str]) -> Row:
    scores = read_json(path)
    return {
        "step": f"ensemble of {len(seeds)}",
        "bleu": spread([scores["bleu_tokenized"]]),
        "chrf": spread([scores["chrf"]]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="+", type=Path)
    parser.add_argument("--seeds", required=True)
    parser.add_argument("--beam", type=int, required=True)
    parser.add_argument("--ensemble", type=Path)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    seeds = options.seeds.split()
    rows = [row_of(step, seeds, options.beam) for step in options.steps]
    if options.ensemble is not None:
        rows.append(_ensemble(options.ensemble, seeds))
    write_table(rows, options.out)


if __name__ == "__main__":
    main()
