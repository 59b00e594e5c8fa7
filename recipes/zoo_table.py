"""The table of recipes/zoo.sh: one row for each trained system, as Markdown and JSON.

python recipes/zoo_table.py MODEL... [--compare FILE] --out PREFIX   writes PREFIX.md, PREFIX.json

A MODEL is a directory that holds what the recipe left: `config.json`, `metrics.jsonl`, `done.json`
(train's report), `test-beam1.json`, `test-beam5.json` and `test-forced.json` (decode's). FILE is
what `analyze compare` found: whether each system differs from the first one by more than chance.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from nmtgrid.analysis.training_curves import read_run
from recipes.pervasive_table import p_values
from recipes.results import write_table


def row(model: Path) -> dict[str, Any]:
    """Return the facts of one model directory."""
    trained, greedy = _read(model / "done.json"), _read(model / "test-beam1.json")
    beam5, forced = _read(model / "test-beam5.json"), _read(model / "test-forced.json")
    config = _read(model / "config.json")
    return {
        "system": model.name.rsplit("-seed", 1)[0],
        "arch": config["arch"],
        "preset": config["settings"].get("preset"),
        "parameters": trained["parameters"],
        "minutes": trained["minutes"],
        "updates": trained["updates"],
        "epochs": trained["epochs"],
        "valid_perplexity": trained["valid_perplexity"],
        "test_perplexity": forced["perplexity"],
        "greedy": greedy["bleu_tokenized"],
        "beam5": beam5["bleu_tokenized"],
        "chrf": beam5["chrf"],
        "training_speed": read_run(model / "metrics.jsonl", model.name).tokens_per_second,
        "decoding_speed": greedy["tokens_per_second"],
        "signature": beam5["signature_bleu_tokenized"],
    }


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise SystemExit(f"error: {path} is missing: has the recipe run through?")
    values: dict[str, Any] = json.loads(path.read_text())
    return values


def main() -> None:
    """Write the table of the models on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    rows = sorted(map(row, arguments.models), key=lambda system: -system["beam5"])
    tests = p_values(arguments.compare) if arguments.compare else {}
    for system in rows:
        if system["system"] in tests:
            system["p_of_bleu"] = f"{tests[system['system']]:.3f}"
    write_table(rows, str(arguments.out))


if __name__ == "__main__":
    main()
