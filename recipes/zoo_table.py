"""The table of recipes/zoo.sh, with a row for each trained system, as Markdown and JSON.

python -m recipes.zoo_table MODEL... [--compare FILE] --out PREFIX   writes PREFIX.md, PREFIX.json

A MODEL is a model directory of the recipe with `config.json`, `metrics.jsonl`, `done.json` (report
of `train`), `test-beam1.json`, `test-beam5.json` and `test-forced.json` (reports of `decode`). FILE
is the output of `analyze compare`: tests of each system against the first one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nmtgrid.analysis.training_curves import read_run
from recipes.pervasive_table import p_values
from recipes.tables import read_json, write_table


def row(model: Path) -> dict[str, Any]:
    """Return the row of one model directory."""
    trained, greedy = read_json(model / "done.json"), read_json(model / "test-beam1.json")
    beam5, forced = read_json(model / "test-beam5.json"), read_json(model / "test-forced.json")
    config = read_json(model / "config.json")
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
