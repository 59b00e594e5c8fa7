"""The page of claims: claims of the thesis, our measurements, and reasons for differences.

A claim names the record that tests it; without that record it is listed as not tested, with the
command that would test it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from recipes.seeds import Record, seeds_of
from recipes.tables import Row, areas_of, find, gain_of, markdown, mean_of, signed

INTRODUCTION = """\
# Claims of the thesis: what we could and could not reproduce

Each of our figures comes from the record in `recipes/records` that is named after it;
`python -m recipes.results write` generates the page. The thesis' figures are for its corpora and
model sizes (at least the 133,000 training pairs of IWSLT'15 En-Vi, at least 50,000 updates, on one
to 128 GPUs), ours for models that two CPU cores can train: a claim that fails here may hold there.
Errors in printed formulas are listed in [departures.md](../docs/departures.md), full tables are in
[RESULTS.md](RESULTS.md).
"""


@dataclass(frozen=True)
class Evidence:
    """Evidence from a record for or against a claim: verdict, figures, and an explanation."""

    record: str
    setting: str
    verdict: str
    figures: Callable[[Sequence[Row]], str]
    why: str


@dataclass(frozen=True)
class Claim:
    """A claim of the thesis: its source there, its figures, and how it is tested here."""

    text: str
    source: str
    published: str
    command: str
    evidence: Evidence | None = None
    also: tuple[Evidence, ...] = ()
    """Further evidence with separate verdicts; `evidence.verdict` takes it into account."""


VERDICTS = ("reproduced", "in part", "not reproduced", "no difference seen", "not tested")


def page(records: Mapping[str, Record]) -> str:
    """Return the page: per chapter verdicts, each tested claim, then the claims not tested."""
    verdicts = {claim: _verdict(claim, records) for _, claims in CHAPTERS for claim in claims}
    counts = Counter(verdicts.values())
    parts = [INTRODUCTION]
    parts.append(", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name]) + ".\n")
    for chapter, claims in CHAPTERS:
        tested = [claim for claim in claims if verdicts[claim] != "not tested"]
        lines = [["claim", "in the thesis", "verdict"], ["---"] * 3]
        lines += [[claim.text, claim.source, verdicts[claim]] for claim in tested]
        parts.append(f"## {chapter}\n")
        parts += [markdown(lines)] if tested else []
        parts += [_details(claim, records) for claim in tested]
        others = [
            f"* {claim.text} ({_where(claim)}): `{claim.command}`\n"
            for claim in claims
            if claim not in tested
        ]
        parts += ["Not tested here:\n\n" + "".join(others)] if others else []
    return "\n".join(parts)


def _where(claim: Claim) -> str:
    return f"{claim.source}: {claim.published}" if claim.published else claim.source


def _verdict(claim: Claim, records: Mapping[str, Record]) -> str:
    evidence = claim.evidence
    return evidence.verdict if evidence and evidence.record in records else "not tested"


def _details(claim: Claim, records: Mapping[str, Record]) -> str:
    evidence = claim.evidence
    assert evidence is not None
    text = (
        f"**{claim.text}** ({claim.source}): *{evidence.verdict}*.\n\n"
        f"* Thesis: {claim.published}.\n"
    )
    for tested in (evidence, *claim.also):
        record = records[tested.record]
        figures = tested.figures(record["rows"])
        seeds = len(seeds_of(record))
        setting = tested.setting.format(seeds="one seed" if seeds == 1 else f"{seeds} seeds")
        if tested is not evidence:
            setting += f", *{tested.verdict}*"
        text += f"* Here, {setting}: {figures} (`{tested.record}`).\n* {tested.why}\n"
    return text


def _sizes(rows: Sequence[Row]) -> str:
    return ", ".join(f"{row['model']} {row['parameters'] / 1e6:.1f}M" for row in rows)


def _scored(column: str, what: str, name: str = "model") -> Callable[[Sequence[Row]], str]:
    """Return a function that lists BLEU of each row, with the baseline of the p-values first."""

    def figures(rows: Sequence[Row]) -> str:
        shown = [
            f"{row[name].rpartition(': ')[2]} {mean_of(row[column]):.1f}"
            + (f" (p = {row['p_of_bleu']})" if "p_of_bleu" in row else "")
            for row in sorted(rows, key=lambda row: "p_of_bleu" in row)
        ]
        return f"{what} {', '.join(shown)}"

    return figures


def _receptive_fields(rows: Sequence[Row]) -> str:
    """Return BLEU of the models with the most common receptive field, then of the best model."""
    fields = Counter(row["target_tokens_seen"] for row in rows)
    shared = max(fields, key=lambda field: (fields[field], field))
    alike = [row for row in rows if row["target_tokens_seen"] == shared]
    best = max(rows, key=lambda row: mean_of(row["valid_beam1"]))
    shown = (
        f"k={row['kernel']}, N={row['depth']} {mean_of(row['valid_beam1']):.1f}"
        for row in sorted(alike, key=lambda row: int(row["depth"]))
    )
    return (
        f"validation BLEU, greedy, with a receptive field of {shared} target tokens: "
        f"{', '.join(shown)}; the best of {len(rows)} is k={best['kernel']}, N={best['depth']} "
        f"with {mean_of(best['valid_beam1']):.1f}"
    )


def _difficulties(first: str, second: str, what: str) -> Callable[[Sequence[Row]], str]:
    """Return a function that lists the loss of two reading policies, by difficulty."""

    def figures(rows: Sequence[Row]) -> str:
        shown = (
            f"{row['bucket']} {mean_of(row[first]) - mean_of(row['offline']):+.1f} and "
            f"{mean_of(row[second]) - mean_of(row['offline']):+.1f} "
            f"({row['sentences']} sentences)"
            for row in rows
            if row["sentences"] >= 30
        )
        title = f"sentence BLEU minus that of reading everything first, {what}, by difficulty"
        return f"{title}: {', '.join(shown)}"

    return figures


def _alignments(rows: Sequence[Row]) -> str:
    names = {"max": "max-pooling", "attention": "self-attention"}
    by_title = {title: find(rows, model=name) for name, title in names.items()}
    shown = (
        f"{title} {mean_of(row['entropy']):.2f} and {mean_of(row['coverage']):.2f}"
        + (f" (AER {mean_of(row['aer']):.2f})" if "aer" in row else "")
        for title, row in by_title.items()
    )
    return f"entropy (nats) and coverage, teacher forced: {', '.join(shown)}"


def _lengths(rows: Sequence[Row]) -> str:
    shown = (
        f"{row['bucket']} words {mean_of(row['pervasive']):.1f} against "
        f"{mean_of(row['transformer']):.1f} ({row['sentences']:,} sentences)"
        for row in rows
        if row["by"] == "reference-length" and row["sentences"] >= 30
    )
    return f"test BLEU of Pervasive Attention and the Transformer: {', '.join(shown)}"


def _encoders(rows: Sequence[Row]) -> str:
    uni, bi = rows
    text = (
        f"test BLEU, beam 5: bi-directional {mean_of(bi['test_beam5']):.1f}, uni-directional "
        f"{mean_of(uni['test_beam5']):.1f}"
    )
    return f"{text} (p = {bi['p_of_bleu']})" if "p_of_bleu" in bi else text


def _perplexities(name: str) -> Callable[[Sequence[Row]], str]:
    """Return a function that lists the validation perplexity of each model (column `name`)."""

    def figures(rows: Sequence[Row]) -> str:
        shown = (f"{row[name]} {mean_of(row['valid_perplexity']):.2f}" for row in rows)
        return f"validation perplexity at the end: {', '.join(shown)}"

    return figures


def _gains(areas: Mapping[str, Row]) -> list[str]:
    """Return the mean gain in BLEU at equal latency for each metric, with its p-values."""
    return [
        f"{signed(row['difference'])} at equal {latency} (p = {row['p_of_each_seed']})"
        for latency, row in areas.items()
    ]


def _against_baseline(**systems: str) -> Callable[[Sequence[Row]], str]:
    """Return a function that lists the gains of the systems' wait-k over the baseline's."""

    def figures(rows: Sequence[Row]) -> str:
        parts = []
        for name, title in systems.items():
            areas = areas_of(rows, name.replace("_", "-"), "wait-k")
            parts.append(f"{title} {' and '.join(_gains(areas))}")
        return f"mean BLEU above the baseline's wait-k curve: {'; '.join(parts)}"

    return figures


def _along_wait_k(rows: Sequence[Row]) -> str:
    """Return BLEU of each model for each k."""
    curves: dict[str, dict[str, str]] = {}
    for row in rows:
        if row.get("setting"):
            bleu = f"{mean_of(row['bleu_tokenized']):.1f}"
            curves.setdefault(row["system"], {})[row["setting"].removeprefix("k = ")] = bleu
    (names, *_) = curves.values()
    parts = (f"{system} {', '.join(curve.values())}" for system, curve in curves.items())
    return f"test BLEU, greedy, for k = {', '.join(names)}: {'; '.join(parts)}"


def _above(*losses: str) -> Callable[[Sequence[Row]], str]:
    """Return a function that lists the gains of losses over maximum likelihood, in BLEU."""

    def figures(rows: Sequence[Row]) -> str:
        gains = (f"{name} {gain_of(find(rows, loss=name))}" for name in losses)
        what = "BLEU gain over maximum likelihood with the same seed, mean and deviation of three"
        return f"{what}: {', '.join(gains)}"

    return figures


def _lazy(rows: Sequence[Row]) -> str:
    likelihood, lazy = (
        mean_of(find(rows, loss=loss)["minutes_per_epoch"])
        for loss in ("mle", "lazy-hamming-batch")
    )
    return (
        _above("lazy-hamming-all", "lazy-hamming-batch", "lazy-hamming-refs")(rows)
        + f"; {lazy / likelihood:.1f} times the time per epoch of maximum likelihood"
    )


def _dynamic(agents: Mapping[str, str]) -> Callable[[Sequence[Row]], str]:
    """Return a function that lists the gains of agents over wait-k, by the text before each."""

    def figures(rows: Sequence[Row]) -> str:
        shown = []
        for before, agent in agents.items():
            own, start = (areas_of(rows, agent, curve) for curve in ("agent", None))
            same = ", ".join(_gains(own))
            other = ", ".join(
                f"{signed(row['difference'])} by {latency}" for latency, row in start.items()
            )
            shown.append(
                f"{before}mean BLEU above wait-k of the same weights {same}; above wait-k of the "
                f"model that the agent was initialised from {other}"
            )
        return "; ".join(shown)

    return figures


def _oracle_of(start: str) -> Callable[[Sequence[Row]], str]:
    """Return a function that lists the gain of oracle paths over wait-k of the model `start`."""

    def figures(rows: Sequence[Row]) -> str:
        gains = " and ".join(_gains(areas_of(rows, f"{start}-oracle", None)))
        return f"mean BLEU above wait-k of the same weights {gains}"

    return figures


def _as_good_as_offline(rows: Sequence[Row]) -> str:
    """Return BLEU and AL of the agent with the most reading, and of the offline model."""
    agent = find(rows, system="dynamic-0.5", setting="τ = 0.1")
    offline = find(rows, system="pervasive", setting="k = ∞")
    shown = (
        f"{mean_of(row['bleu_tokenized']):.1f} BLEU at AL {mean_of(row['al']):.1f}"
        for row in (agent, offline)
    )
    less = 1 - mean_of(agent["al"]) / mean_of(offline["al"])
    return f"{' against '.join(shown)} ({less:.0%} less lagging)"


def _agents_of(start: str) -> Callable[[Sequence[Row]], str]:
    """Return a function as `_dynamic` does, for the agents of figure 4.14 started from `start`."""
    return _dynamic({f"lambda = {weight}: ": f"{start}-agent{weight}" for weight in (0, 1)})


def _exits(rows: Sequence[Row]) -> str:
    """Return BLEU of the last exit and the mean over all exits, for each training method."""
    shown = []
    for row in rows[1:]:  # the first row has models without exits
        last = max((key for key in row if key.isdigit()), key=int)
        shown.append(f"{row['system']} {mean_of(row[last]):.1f} and {mean_of(row['mean']):.1f}")
    what = "validation BLEU, greedy, of the last exit and of all exits on average"
    return f"{what}: {', '.join(shown)}"


def _against_separate(rows: Sequence[Row]) -> str:
    """Return test BLEU of each exit, and of separate decoders of each depth."""
    shown = []
    for row in (find(rows, system="aligned"), find(rows, system="baselines")):
        exits = ", ".join(f"{mean_of(row[key]):.1f}" for key in sorted(filter(str.isdigit, row)))
        shown.append(f"{exits} (mean {mean_of(row['mean']):.1f})")
    return f"test BLEU, greedy, of 1 to 6 blocks: one decoder {shown[0]}, separate ones {shown[1]}"


def _few_blocks(rows: Sequence[Row]) -> str:
    """Return test BLEU and average exit of tuned thresholds, and of all blocks."""
    parts = []
    for model, mechanism in (("aligned", "confidence"), ("geometric", "geometric")):
        own = [row for row in rows if row["model"] == model and row["batch"] == 64]
        points = [row for row in own if re.fullmatch(rf"{mechanism} [0-9.]+", row["method"])]
        points.append(find(own, method="full stack"))
        shown = (
            f"{mean_of(row['bleu']):.2f} at {mean_of(row['average_exit']):.2f}" for row in points
        )
        parts.append(f"{mechanism} {', '.join(shown)}")
    return f"test BLEU at an average exit (6: all blocks): {'; '.join(parts)}"


def _tuned_for_two(rows: Sequence[Row]) -> str:
    """Return test BLEU of systems tuned for at most two blocks per token, and of all blocks."""
    tuned = [row for row in rows if row["label"] == "2"]
    shown = (
        f"{row['system']} {mean_of(row['bleu']):.1f} at {mean_of(row['average_exit']):.2f}"
        for row in tuned
        if row["system"].startswith(("confidence", "Tok-"))
    )
    full, alone = (
        mean_of(find(rows, system=name, label="6")["bleu"])
        for name in ("fixed exits", "decoders trained separately")
    )
    return (
        f"test BLEU at an average exit: {', '.join(shown)}, all six blocks {full:.1f}; six blocks "
        f"trained without exits {alone:.1f}"
    )


def _kinds_of_predictors(rows: Sequence[Row]) -> str:
    """Return test BLEU of each kind of predictor at its smallest number of blocks."""
    shown = (
        f"{row['system']} {mean_of(row['bleu']):.1f} at {mean_of(row['average_exit']):.2f}"
        for row in rows
        if row["label"] == "1.5" and row["system"].startswith("Tok-")
    )
    fixed = find(rows, system="fixed exits", label="1")
    return (
        f"test BLEU at an average exit: {', '.join(shown)}, the fixed exit 1 "
        f"{mean_of(fixed['bleu']):.1f}"
    )


def _sweep(rows: Sequence[Row]) -> str:
    """Return the average exits by lambda without smoothing, and by sigma for each lambda."""
    names = ("lambda", "sigma", "average_exit")
    points = sorted(tuple(mean_of(row[name]) for name in names) for row in rows)

    def along(what: str, pairs: Sequence[tuple[float, float]]) -> str:
        settings = ", ".join(f"{setting:g}" for setting, _ in pairs)
        return f"{what} = {settings}: " + ", ".join(f"{exit:.2f}" for _, exit in pairs)

    sharp = [(penalty, exit) for penalty, sigma, exit in points if sigma == 0]
    text = "average exits for " + along("λ", sharp)
    for penalty in sorted({penalty for penalty, sigma, _ in points if sigma > 0}):
        smoothed = [(sigma, exit) for weight, sigma, exit in points if weight == penalty]
        text += f"; with λ = {penalty:g} for " + along("σ", smoothed)
    return text


def _confidence(rows: Sequence[Row]) -> str:
    model = rows[0]["model"]
    row, full = (
        find(rows, model=model, method=method, batch=64)
        for method in ("confidence 2", "full stack")
    )
    average_exit, faster = mean_of(row["average_exit"]), mean_of(row["speedup"])
    share = mean_of(row["mflops"]) / mean_of(full["mflops"])
    return (
        f"average exit {average_exit:.2f} of 6 takes {share:.2f} of the full stack's FLOPs and "
        f"decodes {faster:.2f} times as fast (batches of 64)"
    )


_TABLE_3 = "bash recipes/pervasive.sh table-3.{}"
_IWSLT14 = "ON=iwslt14-de-en MINUTES=110 bash recipes/zoo.sh"
_FIGURE_4 = "bash recipes/online.sh {}"
_TABLE_5 = "bash recipes/adaptive.sh {}"
_SMOOTHING = "bash recipes/smoothing.sh"
_SHORT = "Models are far from converged (1.5 to 2.1 epochs): this compares the speed of learning."
_BILSTM = "Multi30k De-En, Bi-LSTM, 1,500 updates"
_TEN_MINUTES = "Multi30k De-En, N=5, d=96, 10 minutes of one core each, {seeds}"
_EIGHT_MINUTES = "Multi30k De-En, N=5, d=96, 8 minutes of one core each, {seeds}"
_SIX_MINUTES = "Multi30k De-En, Transformer, 6 minutes of one core each, {seeds}"
_PERVASIVE_SIX_MINUTES = (
    "Multi30k De-En, Pervasive Attention, max-pooling, 6 minutes of one core each, {seeds}"
)
_IWSLT = "IWSLT'14 De-En (45,424 pairs), Pervasive Attention, 2,500 updates"

CHAPTERS = (
    (
        "Chapter 3: Pervasive Attention",
        (
            Claim(
                "Pervasive Attention needs fewer parameters than ConvS2S and the Transformer",
                "table 3.7",
                "Bi-LSTM 8.5M, ConvS2S 19.5M, Transformer 15.0M, Pervasive Attention 12.9M",
                _TABLE_3.format(1),
                Evidence(
                    "table-3.1",
                    "the published vocabularies",
                    "reproduced",
                    _sizes,
                    "The presets have the published sizes.",
                ),
            ),
            Claim(
                "Pervasive Attention translates IWSLT'14 De-En better than all three baselines",
                "table 3.7",
                "34.67 against 34.53 (Transformer), 32.66 (ConvS2S), 31.03 (Bi-LSTM)",
                _IWSLT14,
                Evidence(
                    "zoo-iwslt14-de-en",
                    "45,623 of the training pairs, presets `iwslt14-de-en-small`, 110 minutes of "
                    "one core each, {seeds}",
                    "in part",
                    _scored("beam5", "test BLEU, beam 5:", "system"),
                    "At equal time, Pervasive Attention is ahead of the Transformer, with fewer "
                    "parameters and a quarter of its epochs. The Bi-LSTM and ConvS2S, which train "
                    "on three and five times as many tokens in that time, are ahead of both at "
                    "each sentence length. All were tuned on Multi30k, not on this corpus. On "
                    "Multi30k, whose captions are shorter, ConvS2S is significantly better after "
                    "13 minutes (`table-3.7-multi30k`); after 30 minutes on a faster machine, none "
                    "of the three differs significantly from Pervasive Attention (`zoo-multi30k`). "
                    "After 114 processor minutes, Pervasive Attention is about one BLEU ahead of "
                    "the Transformer and ConvS2S (`one-model-half-multi30k`, "
                    "`one-model-transformer-multi30k`, `one-model-convs2s-multi30k`; not tested "
                    "for significance), whose presets were tuned for shorter runs and whose "
                    "validation loss stopped improving before. "
                    "After an equal number of updates, Pervasive Attention is five BLEU ahead of "
                    "the Transformer and not significantly ahead of ConvS2S and the Bi-LSTM, with "
                    "less than half of their parameters (`zoo-updates-multi30k`). With 7,250 "
                    "training pairs it is ahead of all three, but significantly only of the "
                    "Transformer (`zoo-pairs7250-merges4000-multi30k`). With 2,500 pairs it is "
                    "behind the Bi-LSTM and ConvS2S with the dropout of the presets "
                    "(`zoo-pairs2500-merges2000-multi30k`), and ahead of all three with more "
                    "dropout, significantly of the Bi-LSTM and the Transformer "
                    "(`zoo-updates-pairs2500-dropout0.3-multi30k`).",
                ),
            ),
            Claim(
                "Accumulated and gated residual connections beat plain ones, which beat dense ones",
                "table 3.4",
                "35.2, 34.8, 34.5",
                _TABLE_3.format(4),
                Evidence(
                    "table-3.4-multi30k",
                    _TEN_MINUTES,
                    "in part",
                    _scored("valid_beam1", "validation BLEU, greedy:"),
                    "Dense connections are behind residual ones, as in the thesis. Accumulated "
                    "connections do not differ from plain ones in a network of five blocks, and "
                    "gates reduce the number of updates within the time limit by a quarter.",
                ),
                (
                    Evidence(
                        "table-3.4-updates-multi30k",
                        "Multi30k De-En, N=5, d=96, 500 updates each, {seeds}",
                        "not reproduced",
                        _scored("valid_beam1", "validation BLEU, greedy, means:"),
                        "After a fifth of the updates, the same number for all, accumulated and "
                        "gated connections are behind plain ones with each seed. Dense ones, which "
                        "had fewer updates in the time above, are behind with one seed only. As "
                        "for table 3.5, this measures the speed of learning.",
                    ),
                ),
            ),
            Claim(
                "Max-pooling beats the average; gates and self-attention add a little",
                "table 3.5",
                "35.5, 34.8, 35.7 (gated), 35.6 (self-attention)",
                _TABLE_3.format(5),
                Evidence(
                    "table-3.5-multi30k",
                    _TEN_MINUTES,
                    "in part",
                    _scored("valid_beam1", "validation BLEU, greedy:"),
                    "Max-pooling is ahead of the average, and self-attention of both, by more than "
                    "in the thesis. The gates do not improve BLEU here.",
                ),
                (
                    Evidence(
                        "table-3.5-updates-multi30k",
                        "Multi30k De-En, N=5, d=96, 500 updates each, {seeds}",
                        "in part",
                        _scored("valid_beam1", "validation BLEU, greedy, means:"),
                        "After a fifth of the updates, the same number for all, averages and "
                        "self-attention differ from max-pooling in the same direction, with each "
                        "seed and by more; gates are behind with two of three seeds. So far from "
                        "the end of training, this measures the speed of learning rather than the "
                        "final quality.",
                    ),
                ),
            ),
            Claim(
                "Depth with small kernels beats large kernels at an equal receptive field",
                "figure 3.8",
                "for a receptive field of 41 target tokens, k=5, N=20 is best and k=11, N=8 worst",
                "bash recipes/pervasive.sh figure-3.8",
                Evidence(
                    "figure-3.8-multi30k",
                    _PERVASIVE_SIX_MINUTES,
                    "not reproduced",
                    _receptive_fields,
                    "The order is reversed at equal time, this early in training: an update with "
                    "ten blocks takes three times as long as one with two, so that the deepest "
                    "networks were trained for one to two epochs and the shallowest for four to "
                    "five. At equal depth, kernels of 5 are at least as good as those of 3 and 11.",
                ),
            ),
            Claim(
                "Max-pooling gives alignments of lower entropy, self-attention better coverage",
                "table 3.6",
                "entropy 1.17 and 2.06, coverage 0.78 and 0.82",
                _TABLE_3.format(6),
                Evidence(
                    "table-3.6-multi30k",
                    _TEN_MINUTES,
                    "no difference seen",
                    _alignments,
                    "Max-pooling has the lower entropy here, but not in a second run of 8 minutes, "
                    "in which its coverage and its agreement with a statistical aligner are better "
                    "than those of self-attention. One run each cannot separate the two.",
                ),
                (
                    Evidence(
                        "table-3.6-aer-multi30k",
                        _EIGHT_MINUTES,
                        "no difference seen",
                        _alignments,
                        "The attention of the Bi-LSTM agrees best with the aligner.",
                    ),
                ),
            ),
            Claim(
                "Pervasive Attention beats the Transformer on the shortest and longest sentences",
                "figure 3.10",
                "a figure",
                _IWSLT14,
                Evidence(
                    "zoo-lengths-iwslt14-de-en",
                    "45,623 of the training pairs, presets `iwslt14-de-en-small`, 110 minutes of "
                    "one core each, {seeds}",
                    "in part",
                    _lengths,
                    "Pervasive Attention is ahead on sentences of 20 words or more and behind on "
                    "shorter ones. On Multi30k, which has few long captions, it is ahead on those "
                    "of 10 words or more after 13 minutes (`figure-3.10-multi30k`), and after 30 "
                    "minutes in each bucket with more than two sentences (`zoo-lengths-multi30k`).",
                ),
            ),
            Claim(
                "Cumulative and gated connections converge faster",
                "figure A.1",
                "a figure",
                "bash recipes/activations.sh",
                Evidence(
                    "figure-A.1-multi30k",
                    _TEN_MINUTES,
                    "not reproduced",
                    _perplexities("name"),
                    "Networks of five blocks are shallow: plain residual connections converge as "
                    "fast as cumulative ones, and gates do not make up for their cost.",
                ),
                (
                    Evidence(
                        "table-3.4-updates-multi30k",
                        "Multi30k De-En, N=5, d=96, 500 updates each, {seeds}",
                        "not reproduced",
                        _perplexities("model"),
                        "After the same number of updates, so that the cost of an update does not "
                        "count, cumulative and gated connections are behind plain ones.",
                    ),
                ),
            ),
            Claim(
                "Pervasive Attention equals Transformers on En-Vi and En-Ro, not on WMT'15 De-En",
                "table 3.8",
                "30.49 against 30.17, 33.54 against 33.46, 29.61 against 32.80",
                _TABLE_3.format(8),
            ),
            Claim(
                "DenseNet: max-pooling beats averages and attention; max with attention is best",
                "CoNLL paper, table 1",
                "33.70, 31.57, 32.07; 33.81",
                "bash recipes/pervasive.sh conll",
                Evidence(
                    "conll-updates-multi30k",
                    "Multi30k De-En, ten layers of growth 20, 500 updates each, {seeds}",
                    "in part",
                    _scored("test_beam1", "test BLEU, greedy:"),
                    "Max-pooling is far ahead of averages, but attention is ahead of both, after "
                    "less than two epochs, when all have learnt little. Max-pooling and attention "
                    "combined are slightly ahead of max-pooling, and behind attention. There is no "
                    "significance test.",
                ),
            ),
        ),
    ),
    (
        "Chapter 4: simultaneous translation",
        (
            Claim(
                "Offline, a bi-directional encoder is better",
                "table 4.2",
                "by 0.65 (Pervasive Attention) and 1.1 BLEU (Transformer) on average",
                _FIGURE_4.format("4.2"),
                Evidence(
                    "table-4.2-multi30k",
                    _SIX_MINUTES,
                    "no difference seen",
                    _encoders,
                    "The uni-directional encoder is ahead with the one seed that was tried. The "
                    "standard deviation of such a Transformer over seeds is 0.8 BLEU "
                    "(`policies-transformer-multi30k`, k = ∞), so that this may be chance; there "
                    "is no significance test. After eight epochs, training is far from its end.",
                ),
                (
                    Evidence(
                        "table-4.2-pervasive-multi30k",
                        "Multi30k De-En, Pervasive Attention, 9 minutes of one core each, {seeds}",
                        "no difference seen",
                        _encoders,
                        "Pervasive Attention that sees the whole source is ahead, but not "
                        "significantly, after at most four epochs.",
                    ),
                ),
            ),
            Claim(
                "Online, a bi-directional encoder is worse",
                "figure 4.9",
                "De-En, trained for wait-7: 28.32 at AL 4.01 against 29.62 at AL 4.25 (table D.1)",
                _FIGURE_4.format("4.9"),
                Evidence(
                    "figure-4.9-k7-updates-multi30k",
                    "Multi30k De-En, Transformer, 500 updates each, {seeds}",
                    "reproduced",
                    _against_baseline(tf_k7="a uni-directional encoder, both trained for k = 7,"),
                    "The baseline is bi-directional. It is significantly behind after the same "
                    "number of updates, which take four times as long. Both are far from the end "
                    "of their training.",
                ),
                (
                    Evidence(
                        "figure-4.9-k7-multi30k",
                        _SIX_MINUTES,
                        "reproduced",
                        _against_baseline(
                            tf_k7="a uni-directional encoder, both trained for k = 7,"
                        ),
                        "At equal time the difference is larger: the bi-directional encoder "
                        "re-encodes every prefix, and so has far fewer updates.",
                    ),
                    Evidence(
                        "figure-4.9-k1-multi30k",
                        _SIX_MINUTES,
                        "reproduced",
                        _against_baseline(
                            tf_k1="a uni-directional encoder, both trained for k = 1,"
                        ),
                        "The same with models for wait-1.",
                    ),
                ),
            ),
            Claim(
                "Max-pooling of the row is the best aggregation online",
                "figure 4.10",
                "De-En, trained for wait-7 and decoded with k = 1 and 9: maxima 19.98 and 31.14, "
                "gated 21.11 and 31.18, self-attention 18.95 and 31.04, no aggregation 17.73 and "
                "29.98; trained for wait-1, maxima 20.63 and 26.80, self-attention 18.88 and "
                "18.40 (table D.2)",
                _FIGURE_4.format("4.10"),
                Evidence(
                    "figure-4.10-k7-multi30k",
                    "Multi30k De-En, Pervasive Attention trained for k = 7, 6 minutes of one core "
                    "each, {seeds}",
                    "not reproduced",
                    _against_baseline(
                        pa_attention_k7="self-attention",
                        pa_gated_max_k7="gated maxima",
                        pa_cell_k7="no aggregation",
                    ),
                    "The baseline is max-pooling. Self-attention is significantly above it "
                    "(p < 0.01), as it is offline at equal time (table 3.5). After three epochs, a "
                    "single cell has hardly learnt to represent the source before it. The thesis "
                    "finds max-pooling far ahead in models for wait-1, which were not trained here "
                    "(`ONLY_K=1`).",
                ),
            ),
            Claim(
                "A model trained for wait-7 works for all k, especially Pervasive Attention",
                "figure 4.11",
                "De-En, decoded with k = 1, 5 and 9: Pervasive Attention for wait-7 19.98, 28.93 "
                "and 31.14, for wait-1 20.63, 25.96 and 26.80; the Transformer for wait-7 22.93, "
                "29.62 and 31.02, for wait-1 18.89, 20.81 and 17.24 (table D.3)",
                _FIGURE_4.format("4.11"),
                Evidence(
                    "figure-4.12-transformer-multi30k",
                    _SIX_MINUTES,
                    "in part",
                    _against_baseline(
                        tf_k1="trained for k = 1", tf_k3="for k = 3", tf_k7="for k = 7",
                        tf_uni_inf="offline",
                    ),
                    "The baseline is trained on sampled paths. A Transformer trained for wait-7 "
                    "works for all k, and so does one trained offline. Trained for wait-1, it "
                    "falls from 31.6 BLEU with k = 1 to 17.1 with k = 7.",
                ),
                (
                    Evidence(
                        "figure-4.11-pervasive-multi30k",
                        "Multi30k De-En, Pervasive Attention, 9 minutes of one core each, {seeds}",
                        "in part",
                        _along_wait_k,
                        "Pervasive Attention trained for wait-7 is ahead of the offline model up "
                        "to k = 5, with up to 0.8 tokens more lagging, and within half a point of "
                        "it for larger k. Trained for wait-1, it works for no other k: with k = 7 "
                        "it falls as far as the Transformer, whereas the thesis finds that it "
                        "generalises better. There is no significance test.",
                    ),
                ),
            ),
            Claim(
                "Training on all paths is as good as choosing the best one",
                "figure 4.12",
                "De-En, decoded with k = 7: Transformer 30.84 against 31.00 (trained for wait-9), "
                "Pervasive Attention 30.44 against 30.45 (wait-7; table D.3)",
                _FIGURE_4.format("4.12"),
                Evidence(
                    "figure-4.12-transformer-multi30k",
                    _SIX_MINUTES,
                    "in part",
                    _against_baseline(tf_k7="trained for k = 7, the best one,"),
                    "The baseline is trained on sampled paths; no model trained for one k is above "
                    "it.",
                ),
                (
                    Evidence(
                        "figure-4.12-pervasive-multi30k",
                        "Multi30k De-En, Pervasive Attention, 9 minutes of one core each, {seeds}",
                        "not reproduced",
                        _against_baseline(pa_k7="trained for k = 7", pa_uni_inf="offline"),
                        "The baseline is trained on all paths at once. At equal time it is behind, "
                        "with 812 updates instead of 1,365 and 1,413.",
                    ),
                    Evidence(
                        "figure-4.12-pervasive-updates-multi30k",
                        "Multi30k De-En, Pervasive Attention, 700 updates each, {seeds}",
                        "reproduced",
                        _against_baseline(pa_k7="trained for k = 7", pa_uni_inf="offline"),
                        "After the same number of updates, which take nearly twice as long for all "
                        "paths, the model for all paths is as good as the others with one seed and "
                        "ahead with the other: at equal time it is behind because it has fewer "
                        "updates. With k = 1 and 3 it is 2.4 and 1.3 BLEU ahead of the model for "
                        "wait-7.",
                    ),
                ),
            ),
            Claim(
                "Agents supervised by the oracle beat wait-k at equal delay",
                "figure 4.14",
                "by up to 3 BLEU, by AL",
                "bash recipes/policies.sh",
                Evidence(
                    "policies-multi30k",
                    "Multi30k De-En, Pervasive Attention, {seeds}",
                    "in part",
                    _dynamic({"": "dynamic-0.5"}),
                    "At equal AL, the gain is smaller than in the thesis, and significant with two "
                    "of three seeds. There is none at equal DAL, which penalises words written in "
                    "bursts, nor over the model that the agent was initialised from. Trained with "
                    "the learning rate of the model (`policies-rate-0.004-multi30k`, one seed), "
                    "the agent gains more over wait-k of the same weights, +1.1 by AL (p = 0.002) "
                    "and +0.4 by DAL (p = 0.008), but that wait-k is about half a BLEU lower than "
                    "before with k = 2 and 3; the gain over the model that it was initialised from "
                    "is +0.5 by AL and -0.1 by DAL.",
                ),
                (
                    Evidence(
                        "figure-4.14-pa-uni-inf-updates-multi30k",
                        "Multi30k De-En, Pervasive Attention, 700 updates offline and 350 with the "
                        "agent, {seeds}",
                        "in part",
                        _agents_of("pa-uni-inf"),
                        "With lambda = 1, which weights delay in the oracle's labels, the agent "
                        "is significantly above wait-k of the same weights by AL, with both seeds, "
                        "and not by DAL; its large gain over the model that it was initialised "
                        "from is in part due to its additional updates. With lambda = 0 it is "
                        "below, by AL with one of two seeds.",
                    ),
                    Evidence(
                        "figure-4.14-pa-k7-updates-multi30k",
                        "Multi30k De-En, Pervasive Attention, 700 updates with k = 7 and 350 with "
                        "the agent, {seeds}",
                        "not reproduced",
                        _agents_of("pa-k7"),
                        "Initialised from a model for wait-7, the agent with lambda = 1 is not "
                        "significantly above wait-k of the same weights, and the one with "
                        "lambda = 0 is below it.",
                    ),
                    Evidence(
                        "figure-4.14-pa-area-updates-multi30k",
                        "Multi30k De-En, Pervasive Attention, 700 updates on all paths and 350 "
                        "with the agent, {seeds}",
                        "in part",
                        _agents_of("pa-area"),
                        "Initialised from a model for all paths, the agents behave as from an "
                        "offline one: with lambda = 1 significantly above wait-k of the same "
                        "weights by AL and not by DAL, with lambda = 0 below it.",
                    ),
                ),
            ),
            Claim(
                "Oracle paths beat wait-k, most with models trained for low delay",
                "figure 4.14",
                "De-En, offline model: 32.57 at an AL of 5.05, against 28.84 at 4.45 of wait-5 "
                "(table D.8)",
                "bash recipes/online.sh 4.14",
                Evidence(
                    "figure-4.14-pa-uni-inf-updates-multi30k",
                    "Multi30k De-En, Pervasive Attention, 700 updates offline, {seeds}",
                    "reproduced",
                    _oracle_of("pa-uni-inf"),
                    "At equal AL, as in the thesis; at equal DAL, which penalises words written in "
                    "bursts, the oracle gains nothing with the offline model.",
                ),
                (
                    Evidence(
                        "figure-4.14-pa-k7-updates-multi30k",
                        "Multi30k De-En, Pervasive Attention, 700 updates with k = 7, {seeds}",
                        "reproduced",
                        _oracle_of("pa-k7"),
                        "With a model for wait-7 it gains more, by both metrics.",
                    ),
                    Evidence(
                        "figure-4.14-pa-area-updates-multi30k",
                        "Multi30k De-En, Pervasive Attention, 700 updates on all paths, {seeds}",
                        "reproduced",
                        _oracle_of("pa-area"),
                        "With a model for all paths it gains a little more than with the offline "
                        "model.",
                    ),
                ),
            ),
            Claim(
                "An agent matches the offline model with far less lagging",
                "section 4.7",
                "up to 70 % less, on IWSLT'14 De-En and IWSLT'15 En-Vi, in both directions",
                "bash recipes/policies.sh",
                Evidence(
                    "policies-multi30k",
                    "Multi30k De-En, Pervasive Attention, {seeds}",
                    "in part",
                    _as_good_as_offline,
                    "It does, but so does wait-k of the same weights with only slightly more "
                    "lagging: with k = 5 it has 38.3 BLEU at an AL of 4.8. With weak models of "
                    "IWSLT'14 De-En, the agent that reads most is 0.8 BLEU behind "
                    "(`policies-iwslt14-de-en`).",
                ),
            ),
            Claim(
                "Agents lose less than wait-k on difficult sentences",
                "figure 4.16",
                "a figure: better than wait-7 at every difficulty; De-En worse than offline from "
                "4 on",
                _FIGURE_4.format("4.16"),
                Evidence(
                    "figure-4.16-multi30k",
                    "Multi30k De-En, Pervasive Attention, 10 minutes of one core each and 5 for "
                    "the agent, {seeds}",
                    "in part",
                    _difficulties("agent", "offline-wait-k", "agent and wait-k"),
                    "Wait-k is the offline model with k = 3, which lags half a token less than the "
                    "agent. The agent loses less in the three buckets with 30 sentences or more, "
                    "and more on the 27 sentences of difficulty 3 to 6; there is no significance "
                    "test. The Transformer trained for wait-7, with which the thesis compares, is "
                    "the better model after ten minutes: 36.6 BLEU against 35.8 of the agent at "
                    "equal AL.",
                ),
                (
                    Evidence(
                        "figure-4.16-updates-multi30k",
                        "Multi30k De-En, 700 updates offline and 350 for the agent, {seeds}",
                        "in part",
                        _difficulties("agent", "offline-wait-k", "agent and wait-k"),
                        "Wait-k is the offline model with k = 1, which lags 1.5 tokens less than "
                        "the agent (with k = 3 it lags 0.7 more); its larger loss is in part due "
                        "to that. The agent loses less in every bucket with more than one "
                        "sentence, but it was trained further than the offline model.",
                    ),
                ),
            ),
            Claim(
                "Wait-k trained on many paths is better than STACL and SL and as good as MILk",
                "figure 4.13c",
                "WMT'15 De-En, a figure",
                "ON=wmt15-de-en " + _FIGURE_4.format("4.13"),
            ),
            Claim(
                "Training Transformers on many paths is as good as choosing the best one",
                "figure 4.13",
                "WMT'15 De-En, decoded with k = 5: 26.36 at AL 3.69 against 26.97 at AL 3.87; the "
                "offline model, 23.64 at AL 5.81, is far behind (table D.7)",
                _FIGURE_4.format("4.13"),
                Evidence(
                    "figure-4.13-updates-multi30k",
                    "Multi30k De-En, Transformer, 500 updates each, {seeds}",
                    "in part",
                    _against_baseline(
                        tf_k1="trained for k = 1", tf_k3="for k = 3", tf_k5="for k = 5",
                        tf_k7="for k = 7", tf_k9="for k = 9", tf_uni_inf="offline",
                    ),
                    "The baseline is trained on sampled paths. Among models trained for one k, "
                    "only those for k = 1 and 3, which do not work for larger k, differ from it "
                    "significantly. But with the k that they are trained for, those for k = 3 to 9 "
                    "are 0.7 to 1.0 BLEU ahead of it, at the same or smaller lagging. The offline "
                    "model is not behind here, nor is it in the thesis on IWSLT'14.",
                ),
            ),
            Claim(
                "Wait-1 loses more on difficult sentences, less so after training on many paths",
                "figure 4.15",
                "a figure, on WMT'15 De-En",
                _FIGURE_4.format("4.15"),
                Evidence(
                    "figure-4.15-multi30k",
                    _SIX_MINUTES,
                    "not reproduced",
                    _difficulties(
                        "offline-wait-1",
                        "many-paths-wait-1",
                        "wait-1 of the same model and of one trained on many paths",
                    ),
                    "The loss of wait-1 does not clearly depend on the difficulty of these short "
                    "captions, of which 30 in a thousand have a difficulty above 3; intervals "
                    "overlap. Lengths are as in the thesis: with wait-1, the output of the offline "
                    "model is too long, that of the other model less so.",
                ),
            ),
            Claim(
                "Reading on to the end of the source costs quality, in training or in evaluation",
                "figure C.1",
                "wait-3 has 3.2 to 5.3 BLEU more than wait-1 that reads on, at a comparable delay",
                _FIGURE_4.format("C.1"),
                Evidence(
                    "figure-C.1-multi30k",
                    _SIX_MINUTES,
                    "in part",
                    _along_wait_k,
                    "All are trained for wait-3. A model that must read the whole source before it "
                    "ends loses 2.2 BLEU with wait-1 and 0.9 with wait-3 at the same DAL, and at "
                    "most 0.1 for k of 5 or more. A model that was trained to read on and may end "
                    "early is no worse up to k = 5, and 0.4 and 0.7 behind with k = 7 and 9: since "
                    "captions have similar lengths on both sides, little of the source is left to "
                    "read. There is no significance test.",
                ),
            ),
            Claim(
                "The source needs an end symbol; adding a first symbol or a zero helps",
                "figure C.2",
                "up to 8 BLEU are lost without an end symbol, up to 1.5 gained with a first "
                "symbol or an added zero, the most with wait-1",
                _FIGURE_4.format("C.2"),
                Evidence(
                    "figure-C.2-multi30k",
                    _SIX_MINUTES,
                    "in part",
                    _along_wait_k,
                    "All are trained for wait-3. Without an end symbol, when translations are made "
                    "as long as their sources, 1.6 to 2.8 BLEU are lost. A first symbol gains "
                    "0.8 and 1.0 with k = 3 and 5, and between -0.3 and 0.4 with the others; an "
                    "added zero gains nothing. There is no significance test.",
                ),
            ),
        ),
    ),
    (
        "Chapter 5: early exits",
        (
            Claim(
                "Aligned training beats mixed training",
                "table 5.2",
                "36.18 against 35.94 (six sequences), 35.54 (three) and 34.49 (one) at the last "
                "exit, 35.62 against 35.50, 35.15 and 34.19 on average",
                _TABLE_5.format("5.2"),
                Evidence(
                    "table-5.2-seeds-multi30k",
                    "Multi30k De-En, Transformer, 6 minutes of one busy core each, {seeds}",
                    "in part",
                    _exits,
                    "This compares at equal time, whereas the thesis compares at equal updates, "
                    "and far from the end of training. Mixed training with one sampled sequence of "
                    "exits classifies each token once, whereas aligned training does so at every "
                    "exit, and so has more updates. Aligned training with one earlier exit per "
                    "update, in rotation (`rotation1`), makes up for most of that. With three or "
                    "six sequences, mixed training is behind (`table-5.2-multi30k`, one seed).",
                ),
                (
                    Evidence(
                        "table-5.2-updates-multi30k",
                        "Multi30k De-En, Transformer, 500 updates each, {seeds}",
                        "not reproduced",
                        _exits,
                        "After the same number of updates, as in the thesis but far from the end "
                        "of training, aligned training is ahead of one sequence and behind three "
                        "and six, which learn most from an update and take 1.3 and 2 times as long "
                        "for it. Six, which the thesis calls the most comparable, are far ahead.",
                    ),
                    Evidence(
                        "table-5.2-updates-seeds-multi30k",
                        "Multi30k De-En, Transformer, 500 updates each, {seeds}",
                        "in part",
                        _exits,
                        "The same with a second seed, without six sequences: the order is the "
                        "same, and three sequences vary most between the seeds.",
                    ),
                ),
            ),
            Claim(
                "Equal weights for all exits are best on average",
                "table 5.3",
                "35.62 against 35.24 to 35.52",
                _TABLE_5.format("5.3"),
                Evidence(
                    "table-5.3-seeds-multi30k",
                    "Multi30k De-En, Transformer, 4 minutes of one busy core each, {seeds}",
                    "in part",
                    _exits,
                    "Equal weights have the best mean over three seeds, and with one seed and five "
                    "minutes (`table-5.3-multi30k`). They are ahead of n because of the first "
                    "exit, and ahead of 1/n, which is best at the first exit as in the thesis, by "
                    "little more than the variation between seeds. Two of the thesis' four other "
                    "weights were tried.",
                ),
            ),
            Claim(
                "Unscaled gradients are best",
                "table 5.4",
                "35.62 against 35.13 to 35.44",
                _TABLE_5.format("5.4"),
                Evidence(
                    "table-5.4-seeds-multi30k",
                    "Multi30k De-En, Transformer, 4 minutes of one busy core each, {seeds}",
                    "in part",
                    _exits,
                    "At equal time, unscaled gradients are best with each of three seeds (and "
                    "with one seed and five minutes, `table-5.4-multi30k`). But scaled gradients "
                    "had only 313 and 305 updates in that time instead of 438.",
                ),
                (
                    Evidence(
                        "table-5.4-updates-multi30k",
                        "Multi30k De-En, Transformer, 500 updates each, {seeds}",
                        "no difference seen",
                        _exits,
                        "After the same number of updates, scaled gradients are no worse: they are "
                        "ahead by 0.6 on average, about the difference between two seeds "
                        "(`table-5.2-updates-seeds-multi30k`), and as in the thesis the first "
                        "exit gains most (aligned 19.2, 0.5 20.8, 1.1 21.4). At equal time they "
                        "are behind because they have fewer updates.",
                    ),
                ),
            ),
            Claim(
                "Six classifiers make training only marginally slower",
                "section 5.4.2",
                "by about 1 %, WMT'14 En-Fr",
                _TABLE_5.format("5.5"),
                Evidence(
                    "table-5.5-updates-multi30k",
                    "Multi30k De-En, Transformer, 500 updates each, {seeds}",
                    "not reproduced",
                    lambda _: "11.6 minutes with six classifiers, 7.0 with one",
                    "Blocks of 128 units are small compared with a vocabulary of thousands: here "
                    "classifiers take most of the time of an update, on one core. Rotation "
                    "(`objective.rotation=1`), which trains two exits per update, is cheaper.",
                ),
            ),
            Claim(
                "A quarter of the blocks per token suffices for full quality",
                "figure 5.6",
                "34.73 at an average exit of 1.42, 34.77 with six blocks trained without exits, "
                "34.86 with all six blocks of the same decoder",
                _TABLE_5.format("5.6"),
                Evidence(
                    "speed-256-multi30k",
                    "Multi30k De-En, Transformer of d=256, 36 minutes of one core",
                    "in part",
                    _few_blocks,
                    "A quarter of the blocks is enough for exits by confidence, which the thesis "
                    "found too expensive; at batch size 1 it is not. A geometric predictor, from "
                    "which the figures of the thesis are, was fine-tuned for seven minutes and is "
                    "behind; in batches neither is faster than a fixed exit.",
                ),
                (
                    Evidence(
                        "figure-5.6-multi30k",
                        "Multi30k De-En, Transformer of d=128, 24 minutes of one core, {seeds}",
                        "in part",
                        _tuned_for_two,
                        "At equal time the decoder without exits is far ahead: each exit "
                        "classifies every token, so that the aligned decoder had 2,195 updates "
                        "instead of 4,990.",
                    ),
                    Evidence(
                        "speed-distilled-rotation-multi30k",
                        "the same, trained on a teacher's translations, one earlier exit per "
                        "update, {seeds}",
                        "in part",
                        _few_blocks,
                        "Confidence loses 0.2 BLEU at an average exit of 1.67 and nothing at "
                        "2.08. The geometric predictor is one BLEU behind with fewer than two "
                        "blocks; the fixed exit 2, at 39.45, is ahead of it.",
                    ),
                    Evidence(
                        "figure-5.6-start-multi30k",
                        "the same, 12 minutes without exits and 12 of aligned training, {seeds}",
                        "in part",
                        _tuned_for_two,
                        "Initialised from a decoder without exits, every point is better. "
                        "Confidence is within 0.2 of the full stack at an average exit of 3.3, a "
                        "geometric predictor at 3.2.",
                    ),
                ),
            ),
            Claim(
                "Geometric predictors trade speed for quality better than multinomial ones",
                "figure 5.6",
                "a figure",
                _TABLE_5.format("5.6"),
                Evidence(
                    "figure-5.6-multi30k",
                    "Multi30k De-En, Transformer of d=128, 24 minutes of one core, {seeds}",
                    "in part",
                    _kinds_of_predictors,
                    "With the one cost per block that was tried, multinomial predictors chose the "
                    "first exit for nearly every token, so that each has a single point, near the "
                    "fixed exit 1; geometric predictors can be tuned for any average exit.",
                ),
            ),
            Claim(
                "Tokens exit earlier with a higher cost per block, and later with wider kernels",
                "figure 5.7",
                "a figure: average exits on the development set",
                _TABLE_5.format("5.7"),
                Evidence(
                    "figure-5.7-multi30k",
                    "Multi30k De-En, Transformer of d=128, 24 minutes of one core, each predictor "
                    "fine-tuned for 2, {seeds}",
                    "reproduced",
                    _sweep,
                    "The average exit falls with λ and rises with σ. BLEU hardly changes down to "
                    "an average exit of 1.6.",
                ),
            ),
            Claim(
                "The classifier behind every block makes confidence thresholds expensive",
                "figure 5.8",
                "a figure",
                _TABLE_5.format("speed"),
                Evidence(
                    "speed-multi30k",
                    "Multi30k De-En, d=128, one CPU core",
                    "reproduced",
                    _confidence,
                    "The thesis only counts FLOPs; in time, confidence is slower than the full "
                    "stack in batches, since rows exit at different blocks.",
                ),
            ),
            Claim(
                "One aligned decoder is as good as separate decoders of each depth",
                "table 5.5",
                "34.51 against 34.33 on average",
                _TABLE_5.format("5.5"),
                Evidence(
                    "table-5.5-updates-multi30k",
                    "Multi30k De-En, Transformer, 500 updates each, {seeds}",
                    "not reproduced",
                    _against_separate,
                    "After the same number of updates, far from the end of training, the one "
                    "decoder is behind the separate ones at each depth, least at three blocks; "
                    "there is no significance test. Its training took 11.6 minutes, theirs 26.4 "
                    "in total.",
                ),
            ),
        ),
    ),
    (
        "Appendix E: loss smoothing",
        (
            Claim(
                "Sequence-level smoothing beats maximum likelihood",
                "table E.3",
                "27.98 to 28.56 against 27.55 (IWSLT'14), Bi-LSTM",
                _SMOOTHING,
                Evidence(
                    "table-E.3-iwslt14-de-en",
                    "IWSLT'14 De-En (45,616 pairs), Bi-LSTM, 2,500 updates",
                    "not reproduced",
                    _above("seq-hamming-all", "seq-hamming-batch", "seq-hamming-refs"),
                    "The Bi-LSTM, as used in the thesis, gains nothing here, nor on Multi30k "
                    "(`table-E.3-multi30k`). Pervasive Attention gains on both corpora "
                    "(`table-E.3-iwslt14-de-en-pervasive`, `table-E.3-multi30k-pervasive`), but on "
                    "IWSLT'14 a second pass with another dropout mask and no smoothing (`twice`) "
                    f"gains as much: smoothing is not the cause there. {_SHORT}",
                ),
            ),
            Claim(
                "Both levels together, with a reward of BLEU, are best",
                "table E.3",
                "28.74 (28.70 with Hamming distance) against 28.56 (sequence level) and 27.55 "
                "(maximum likelihood)",
                _SMOOTHING,
                Evidence(
                    "table-E.3-multi30k",
                    _BILSTM,
                    "in part",
                    _above("both-bleu-batch", "both-hamming-batch", "seq-bleu-batch", "twice"),
                    "This is the only loss ahead of `twice`. With the Hamming distance as the "
                    "reward, which the other three records use instead of BLEU, both levels "
                    "together are not best: they are behind the sequence level with Pervasive "
                    "Attention (`table-E.3-multi30k-pervasive`, "
                    "`table-E.3-iwslt14-de-en-pervasive`) and gain nothing with the Bi-LSTM on "
                    f"IWSLT'14 (`table-E.3-iwslt14-de-en`). {_SHORT}",
                ),
            ),
            Claim(
                "Token-level smoothing helps, more so where rare tokens are promoted",
                "table E.3",
                "27.69 and 27.83 against 27.55",
                _SMOOTHING,
                Evidence(
                    "table-E.3-multi30k",
                    _BILSTM,
                    "no difference seen",
                    _above("tok", "tok-freq", "twice"),
                    f"The gain is about as large as its standard deviation. {_SHORT}",
                ),
            ),
            Claim(
                "Substitutes from the batch or the references beat the whole vocabulary",
                "tables E.1 and E.3",
                "28.54 against 27.98",
                _SMOOTHING,
                Evidence(
                    "table-E.3-iwslt14-de-en-pervasive",
                    _IWSLT,
                    "no difference seen",
                    _above("seq-hamming-all", "seq-hamming-batch", "seq-hamming-refs"),
                    f"The differences are within the variation of three seeds. {_SHORT}",
                ),
            ),
            Claim(
                "Lazy smoothing is as good as the exact form, in the time of maximum likelihood",
                "table E.1",
                "a table of captions",
                _SMOOTHING,
                Evidence(
                    "table-E.3-iwslt14-de-en-pervasive",
                    _IWSLT,
                    "not reproduced",
                    _lazy,
                    f"The time is reproduced, the gain is not. {_SHORT}",
                ),
            ),
            Claim(
                "Entropy regularisation gives little",
                "table E.1",
                "a table of captions",
                _SMOOTHING,
                Evidence(
                    "table-E.3-multi30k",
                    _BILSTM,
                    "no difference seen",
                    _above("mle-entropy", "tok", "twice"),
                    "It helps as much as the token level, and is within one standard deviation of "
                    "`twice`; the task differs from the thesis', and the training is shorter. "
                    f"{_SHORT}",
                ),
            ),
            Claim(
                "Smoothing improves captions, most with both levels and the rewards of references",
                "table E.1",
                "CIDEr 99.92 against 93.59",
                "bash recipes/captions.sh",
            ),
            Claim(
                "Sequence-level smoothing beats maximum likelihood on WMT'14 En-Fr",
                "table E.3",
                "31.29 against 30.03",
                "ON=wmt14-en-fr " + _SMOOTHING,
            ),
        ),
    ),
)  # fmt: skip
