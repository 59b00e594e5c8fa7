"""The table of recipes/policies.sh and online.sh: each setting of each system, over the seeds.

python recipes/policies_table.py FOLDER... [--start NAME] --out PREFIX
    FOLDERs are what `online-eval --out` wrote, NAME-seedN. Write PREFIX.md and PREFIX.json. Readers
    are trained from the model NAME (pervasive).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nmtgrid.metrics.areas import area
from nmtgrid.metrics.quality import spread
from nmtgrid.online.settings import Setting
from recipes.results import PART, write_table

Values = dict[str, Any]
MECHANISMS = ("mma", "itst", "wait-info")
"""Transformers that are compared with `transformer`; readers are compared with `--start`."""
PARAMETERS = {"wait-k": "k", "threshold": "threshold", "oracle": "lambda"}
FIGURES = ("bleu_tokenized", "al", "dal", "laal", "ap", "cw", "erasure")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--start", default="pervasive")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    results = [
        json.loads((folder / "results.json").read_text(encoding="utf-8"))
        for folder in options.folders
    ]
    rows = [*settings_rows(results), *area_rows(results)]
    named = {folder.name: result for folder, result in zip(options.folders, results, strict=True)}
    write_table([*rows, *start_rows(named, options.start)], options.out)


def settings_rows(results: Iterable[Values]) -> list[Values]:
    """Return a row for each system and setting: means over the seeds, and deviations."""
    groups: dict[tuple[str, str], list[Values]] = {}
    for result in results:
        for row in result["settings"]:
            groups.setdefault((row["system"], title_of(row)), []).append(row)
    rows = []
    for (system, title), group in groups.items():
        shown: Values = {
            PART: "settings",
            "system": system,
            "setting": title,
            "seeds": len(group),
        }
        for name in FIGURES:
            values = [each[name] for each in group if each.get(name) is not None]
            shown[name] = spread(values) if values else None
        seconds, tokens = (
            sum(each[name] for each in group) for name in ("seconds", "target_tokens")
        )
        shown["ms_per_token"] = 1000 * seconds / max(tokens, 1)
        shown["signature_bleu_tokenized"] = group[0]["signature_bleu_tokenized"]
        rows.append(shown)
    return rows


def title_of(row: Values) -> str:
    """Return what the setting of a row is called."""
    parameter = row.get("parameter") or PARAMETERS[row["policy"]]
    value = row.get("value", row.get(parameter))
    options = tuple(row.get("options", {}).items())
    return Setting(
        row["policy"], float("inf") if value is None else value, options, parameter
    ).title


def area_rows(results: Iterable[Values]) -> list[Values]:
    """Return a row for each curve and metric: the area to wait-k's, mean and of each seed."""
    groups: dict[tuple[str, str, str, str], list[Values]] = {}
    for result in results:
        for row in result.get("areas", []):
            key = (row["system"], row["curve"], row["metric"], row.get("baseline", ""))
            groups.setdefault(key, []).append(row)
    rows = []
    for (system, curve, metric, baseline), group in groups.items():
        numbers = [row["difference"] for row in group if row["difference"] is not None]
        p_values = [row["p_value"] for row in group if row["p_value"] is not None]
        rows.append(
            {
                PART: f"area_between_a_curve_and_wait-k's_of_{baseline or 'the_same_weights'},"
                "_in_BLEU_at_equal_latency",
                "system": system,
                "curve": curve,
                "latency": metric.upper(),
                "seeds": len(group),
                "difference": spread(numbers) if numbers else None,
                "of_each_seed": ", ".join(f"{number:+.1f}" for number in numbers),
                "p_of_each_seed": ", ".join(f"{value:.3f}" for value in p_values),
            }
        )
    return rows


def start_rows(results: Mapping[str, Values], first: str = "pervasive") -> list[Values]:
    """Return a row for each trained reader: the area to wait-k's of the model without one.

    Training a reader may make wait-k with the same weights worse; this is against wait-k of the
    model `first` that readers start from, or of the Transformer without a reading mechanism. The
    oracle along which `first` decodes is compared like a reader.
    """
    groups: dict[tuple[str, str], list[float]] = {}
    for folder, result in results.items():
        name, seed = folder.rsplit("-seed", 1)
        start = results.get(f"{'transformer' if name in MECHANISMS else first}-seed{seed}")
        if start is None or result is start or name == "transformer":
            continue
        for metric in ("al", "dal"):
            curves = (
                ([row[metric] for row in rows], [row["bleu_tokenized"] for row in rows])
                for rows in (
                    [row for row in result["settings"] if row["policy"] != "wait-k"],
                    [row for row in start["settings"] if row["policy"] == "wait-k" and row["k"]],
                )
            )
            (latency, bleu), (other_latency, other_bleu) = curves
            difference = area(latency, bleu, other_latency, other_bleu).difference
            if not math.isnan(difference):
                groups.setdefault((name, metric), []).append(difference)
    return [
        {
            PART: "the_same_beside_wait-k_of_the_model_without_a_trained_reader",
            "system": system,
            "latency": metric.upper(),
            "seeds": len(numbers),
            "difference": spread(numbers),
            "of_each_seed": ", ".join(f"{number:+.1f}" for number in numbers),
        }
        for (system, metric), numbers in groups.items()
    ]


if __name__ == "__main__":
    main()
