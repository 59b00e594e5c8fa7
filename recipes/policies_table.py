"""The table of recipes/policies.sh and online.sh: all settings of all systems, over seeds.

python -m recipes.policies_table FOLDER... [--start NAME] [--data DIR] --out PREFIX
    FOLDERs are outputs of `online-eval --out`, called NAME-seedN. --start is the model that readers
    were trained from (pervasive). --data is the dataset with the references for the paired
    bootstrap (default: the one that the results name). Writes PREFIX.md and PREFIX.json.
"""

from __future__ import annotations

import argparse
import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.analysis.latency import AREA_METRICS
from nmtgrid.base.errors import NmtgridError
from nmtgrid.data.dataset import Dataset
from nmtgrid.metrics.areas import Area, SettingScores, areas
from nmtgrid.metrics.latency import sentence_latency, token_delays
from nmtgrid.metrics.ngrams import bleu_counts, words
from nmtgrid.metrics.quality import spread, tokenizer
from nmtgrid.online.settings import KINDS, Setting
from nmtgrid.search.traces import read_traces
from nmtgrid.text.scripts import bleu_tokenizer
from recipes.seeds import PART
from recipes.tables import read_json, write_table

Values = dict[str, Any]
MECHANISMS = ("mma", "itst", "wait-info")
"""Models compared with `transformer`; readers are compared with `--start`."""
FIGURES = ("bleu_tokenized", "al", "dal", "laal", "yaal", "ap", "cw", "erasure")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--start", default="pervasive")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    results = {folder: read_json(folder / "results.json") for folder in options.folders}
    rows = [*settings_rows(results.values()), *area_rows(results.values())]
    try:
        systems = [System(folder, result, options.data) for folder, result in results.items()]
        rows += [*start_rows(systems, options.start), *reader_rows(systems)]
    except NmtgridError as error:
        raise SystemExit(f"error: {error}") from None
    write_table(rows, options.out)


class System:
    """Output of `online-eval --out` for one model and seed: results, and traces by setting."""

    def __init__(self, folder: Path, result: Values, data: Path | None = None) -> None:
        """Set the dataset folder to `data`, by default the one that the results name."""
        self.name, self.seed = folder.name.rsplit("-seed", 1)
        self.settings = [setting_of(row) for row in result["settings"]]
        self._folder = folder
        self._data, self._split = data or Path(result["data"]), result["split"]

    @functools.cached_property
    def wait_k(self) -> list[SettingScores]:
        """Scores of wait-k, a setting for each k except offline."""
        chosen = [each for each in self.settings if each.policy == "wait-k" and not each.is_offline]
        return self._scores(chosen)

    @functools.cached_property
    def others(self) -> list[SettingScores]:
        """Scores of all settings that are not wait-k."""
        return self._scores([each for each in self.settings if each.policy != "wait-k"])

    def _scores(self, settings: Sequence[Setting]) -> list[SettingScores]:
        """Return BLEU statistics and latencies (in tokens) by sentence, for each setting."""
        dataset = Dataset.open(self._data)
        split, language = dataset.split(self._split), dataset.pipeline.target
        name = bleu_tokenizer(dataset.pipeline.facts.target_lang, split.raw_target(), "none")
        cut = tokenizer(name)
        vocabulary: dict[str, int] = {}
        references = [cut(line) for line in split.tokenized_target()]
        scores = []
        for setting in settings:
            traces = list(read_traces(self._folder / f"{setting.slug}.traces.jsonl"))
            hypotheses = [cut(language.join(trace.target)) for trace in traces]
            sizes = [len(trace.source) for trace in traces]
            delays = [
                token_delays(trace.reads or (), size, len(trace.target))
                for trace, size in zip(traces, sizes, strict=True)
            ]
            latency = sentence_latency(delays, sizes)
            scores.append(
                SettingScores(
                    # An evaluation with `--sentences` has only the first lines of the split.
                    bleu_counts(
                        words(hypotheses, vocabulary), words(references[: len(traces)], vocabulary)
                    ),
                    {metric: getattr(latency, metric) for metric in AREA_METRICS},
                )
            )
        return scores


def settings_rows(results: Iterable[Values]) -> list[Values]:
    """Return a row for each system and setting: means and deviations over seeds."""
    groups: dict[tuple[str, str], list[Values]] = {}
    for result in results:
        for row in result["settings"]:
            groups.setdefault((row["system"], setting_of(row).title), []).append(row)
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


def setting_of(row: Values) -> Setting:
    """Return the setting of a row."""
    parameter = row.get("parameter") or KINDS[row["policy"]].sweep
    value = row.get("value", row.get(parameter))
    options = tuple(row.get("options", {}).items())
    return Setting(row["policy"], float("inf") if value is None else value, options, parameter)


def area_rows(results: Iterable[Values]) -> list[Values]:
    """Return a row for each curve and metric: the area to wait-k, per seed and on average."""
    groups: dict[tuple[str, str, str, str], list[Values]] = {}
    for result in results:
        for row in result.get("areas", []):
            key = (row["system"], row["curve"], row["metric"], row.get("baseline", ""))
            groups.setdefault(key, []).append(row)
    rows = []
    for (system, curve, metric, baseline), group in groups.items():
        rows.append(
            {
                PART: f"area_between_a_curve_and_wait-k's_of_{baseline or 'the_same_weights'},"
                "_in_BLEU_at_equal_latency",
                "system": system,
                "curve": curve,
                "latency": metric.upper(),
                **over_seeds([(row["difference"], row["p_value"]) for row in group]),
            }
        )
    return rows


def over_seeds(values: Sequence[tuple[float | None, float | None]]) -> Values:
    """Return the columns of an area: difference and p-value of each seed, mean difference."""
    differences = [number for number, _ in values if number is not None]
    p_values = [value for _, value in values if value is not None]
    return {
        "seeds": len(values),
        "difference": spread(differences) if differences else None,
        "of_each_seed": ", ".join(f"{number:+.1f}" for number in differences),
        "p_of_each_seed": ", ".join(f"{value:.3f}" for value in p_values),
    }


def start_rows(systems: Sequence[System], first: str = "pervasive") -> list[Values]:
    """Return a row for each trained reader: the area to wait-k of the model without a reader.

    Training a reader may make wait-k with the same weights worse, so this compares with wait-k of
    the model `first` that readers start from, or of the Transformer without a reading mechanism.
    The oracle paths of `first` are compared like a reader.
    """
    starts = {(system.name, system.seed): system for system in systems}
    groups: dict[tuple[str, str], list[Area]] = {}
    for system in systems:
        start = starts.get(("transformer" if system.name in MECHANISMS else first, system.seed))
        if start is None or system.name in (first, "transformer"):
            continue
        for metric in AREA_METRICS:
            areas_of_seeds = groups.setdefault((system.name, metric), [])
            areas_of_seeds += areas([system.others], start.wait_k, metric)
    return _rows("the_same_beside_wait-k_of_the_model_without_a_trained_reader", groups)


def reader_rows(systems: Iterable[System]) -> list[Values]:
    """Return a row for each kind of trained reader: the area between `marginal` and its curve.

    A curve joins the points of all delay weights of a kind, since that of one weight is short.
    """
    curves: dict[str, dict[str, list[SettingScores]]] = {}
    for system in systems:
        if any(setting.policy == "threshold" for setting in system.settings):
            kind = re.sub(r"-[\d.]+$", "", system.name)
            curves.setdefault(system.seed, {}).setdefault(kind, []).extend(system.others)
    groups: dict[tuple[str, str], list[Area]] = {}
    for kinds in curves.values():
        marginal = kinds.pop("marginal", None)
        if marginal is None:
            continue
        for kind, curve in kinds.items():
            for metric in AREA_METRICS:
                areas_of_seeds = groups.setdefault((f"marginal against {kind}", metric), [])
                areas_of_seeds += areas([marginal], curve, metric)
    return _rows(
        "area_between_the_curves_of_two_readers,_each_with_all_its_delay_weights,_in_BLEU_at_equal"
        "_latency",
        groups,
    )


def _rows(part: str, groups: Mapping[tuple[str, str], Sequence[Area]]) -> list[Values]:
    """Return a row for each system and latency metric with a common range for some seed."""
    known = {
        key: [each for each in seeds if not math.isnan(each.difference)]
        for key, seeds in groups.items()
    }
    return [
        {
            PART: part,
            "system": system,
            "latency": metric.upper(),
            **over_seeds([(each.difference, each.p_value) for each in seeds]),
        }
        for (system, metric), seeds in known.items()
        if seeds
    ]


if __name__ == "__main__":
    main()
