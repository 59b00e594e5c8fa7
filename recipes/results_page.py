"""The pages of results, from records and published figures.

RESULTS.md has the real runs by question, SMALL.md the runs with `SMALL=1`, PUBLISHED.md the
published figures, CLAIMS.md what the thesis claims beside what was found (claims.py). The README
shows the short answers between its markers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmtgrid.base.spans import plural
from nmtgrid.online.published import CURVES
from recipes import claims
from recipes.results import (
    HERE,
    RECORDS,
    Row,
    areas_of,
    columns,
    find,
    gain_of,
    markdown,
    mean_of,
    read,
    shown,
    signed,
    table_of,
)
from recipes.seeds import PART, Record

RESULTS, SMALL, PUBLISHED, CLAIMS = (
    HERE / f"{name}.md" for name in ("RESULTS", "SMALL", "PUBLISHED", "CLAIMS")
)
README = HERE.parent / "README.md"
MAX_ROWS = 24
NAME = "name of the record"
_BLOCK = re.compile(r"(<!-- generated: results -->\n).*?(<!-- end -->)", re.DOTALL)

INTRODUCTIONS = {
    RESULTS: """\
# Results

Every figure on this page comes from a record in `recipes/records`, which a recipe wrote; above its
tables are the record's name, the command, date, machine and versions. Minutes are comparable
within a record; machines of the same name may be twice as fast as each other.
`python -m recipes.results write` generates the page. Where a figure has been published, it stands
below ours, marked *published*; unless the corpus, the model and the length of training agree, the
two are not comparable.

BLEU is sacreBLEU's, in percent, on tokenised text with the signature
`nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:2.6.0`, unless a table names another.
Latency is in source tokens, by the thesis' definitions. [CLAIMS.md](CLAIMS.md) goes through the
thesis claim by claim, [SMALL.md](SMALL.md) shows that every
experiment runs, [PUBLISHED.md](PUBLISHED.md) has all published figures, and `benchmarks/results`
the measurements of speed.
""",
    SMALL: """\
# Every experiment, run small

Each table on this page is the output of a recipe with `SMALL=1`: dozens of updates of a tiny
model on the toy corpus. **The scores mean nothing.** The page is proof that every experiment runs
from its first command to its table or figure (`bash recipes/small.sh` repeats it). Real runs are
in [RESULTS.md](RESULTS.md).
""",
    PUBLISHED: """\
# Published figures

The figures that the thesis, its papers and the cited systems report, which the recipes are meant
to reproduce. They are copied from the publications, not measured here; our own runs are in
[RESULTS.md](RESULTS.md).
""",
}


@dataclass(frozen=True)
class Answer:
    """A short answer to a question: a sentence computed from the rows of one record."""

    record: str
    setting: str
    text: Callable[[Sequence[Row]], str]
    in_readme: bool = False


@dataclass(frozen=True)
class Question:
    """A question, the experiments that bear on it (by how their names begin), and answers."""

    title: str
    experiments: tuple[str, ...]
    answers: tuple[Answer, ...] = ()


SIGNIFICANT = 0.05


def _architectures(rows: Sequence[Row]) -> str:
    """Return BLEU of each architecture, the best first, with its parameters."""
    titles = {
        "pa": "Pervasive Attention", "pervasive": "Pervasive Attention", "bilstm": "Bi-LSTM",
        "convs2s": "ConvS2S", "transformer": "Transformer",
    }  # fmt: skip
    systems = [
        (str(row.get("model", row.get("system"))), row.get("test_beam5", row.get("beam5")), row)
        for row in rows
    ]
    systems.sort(key=lambda system: -mean_of(system[1]))
    text = "test BLEU, beam 5: " + ", ".join(
        f"{titles.get(name, name)} {shown(bleu)} ({row['parameters'] / 1e6:.1f}M parameters)"
        for name, bleu, row in systems
    )
    # With each seed, against the system that has no such value.
    tested = [(name, row["p_of_bleu"]) for name, _, row in systems if "p_of_bleu" in row]
    if not tested:
        return text
    differing = [
        titles.get(name, name)
        for name, values in tested
        if max(float(p) for p in str(values).split(",")) < SIGNIFICANT
    ]
    baseline = next(name for name, _, row in systems if "p_of_bleu" not in row)
    return f"{text}; significantly different from {titles.get(baseline, baseline)}: " + (
        ", ".join(differing) or "none"
    )


def _one_model(rows: Sequence[Row]) -> str:
    row, *ensemble = rows
    millions = row["parameters"] / 1e6
    text = f"test BLEU {shown(row['test_beam5'])} with beam 5, {millions:.1f}M parameters"
    if ensemble:
        number = len(row["seeds"].split())
        text += f"; the ensemble of {number} seeds {shown(ensemble[0]['test_beam5'])}"
    return text


def _ladder(rows: Sequence[Row]) -> str:
    names = {"base": "AdamW", "muon": "Muon", "bpe-dropout": "BPE-dropout", "r-drop": "R-Drop"}
    steps = [f"{names[row['step']]} {mean_of(row['bleu']):.1f}" for row in rows]
    return f"test BLEU, beam 5, each step on top of the one before: {', '.join(steps)}"


def _distilled(rows: Sequence[Row]) -> str:
    original, distilled, teacher = (
        mean_of(find(rows, system=name)["bleu"]) for name in ("original", "distilled", "teacher")
    )
    p = mean_of(find(rows, system="distilled")["p_bleu"])
    return (
        f"test BLEU {distilled:.1f} when trained on the teacher's translations, {original:.1f} on "
        f"the references (p = {p:.3f}); the teacher has {teacher:.1f}"
    )


def _extra_data(rows: Sequence[Row]) -> str:
    alone, extra = (find(rows, model=f"{name} extra data") for name in ("without", "with"))
    return (
        f"test BLEU, beam 5, {mean_of(extra['test_beam5']):.1f} after a first stage on both "
        f"corpora, {mean_of(alone['test_beam5']):.1f} on Multi30k alone for the same time (p = "
        f"{extra['p_of_bleu']})"
    )


def _smoothing(rows: Sequence[Row]) -> str:
    both, twice = find(rows, loss="both-bleu-batch"), find(rows, loss="twice")
    sequence = find(rows, loss="seq-bleu-batch")
    times = [mean_of(row["minutes_per_epoch"]) for row in (both, find(rows, loss="mle"))]
    cost = times[0] / times[1]
    return (
        f"token and sequence level with BLEU {gain_of(both)} BLEU over maximum likelihood "
        f"({_likelihood(rows)}), at {cost:.1f} times the time per epoch; sequence level alone "
        f"{gain_of(sequence)}; a second pass without smoothing {gain_of(twice)}"
    )


def _likelihood(rows: Sequence[Row]) -> str:
    """Return BLEU of maximum likelihood, which gains are added to."""
    return f"{mean_of(find(rows, loss='mle')['bleu_tokenized']):.1f}"


def _sequence_level(rows: Sequence[Row]) -> str:
    sequence = find(rows, loss="seq-hamming-batch")
    twice = [row for row in rows if row["loss"] == "twice"]
    more = f"; a second pass without smoothing {gain_of(twice[0])}" if twice else ""
    gain = f"sequence level (Hamming, batch) {gain_of(sequence)} BLEU over maximum likelihood"
    return f"{gain} ({_likelihood(rows)}){more}"


def _policies(rows: Sequence[Row]) -> str:
    def area(system: str, curve: str | None = None) -> str:
        """Return the areas of an untrained policy, or of a system beside the one it starts from."""
        areas = areas_of(rows, system, curve)
        by_al, by_dal = (signed(areas[latency]["difference"]) for latency in ("AL", "DAL"))
        return f"{by_al} ({by_dal})"

    systems = {row["system"] for row in rows}
    base = "pervasive" if "pervasive" in systems else "transformer"
    titles = {
        "marginal-0.5": "`marginal`", "marginal-area-0.5": "`marginal` with all cells",
        "marginal-fixed-0.5": "`marginal` with the model fixed", "dynamic-0.5": "`dynamic`",
        "binary-search": "labels by binary search", "divergence": "`divergence`",
        "mma": "MMA", "itst": "ITST", "wait-info": "Wait-info",
    }  # fmt: skip
    untrained = {
        "edatt": "EDAtt", "alignatt": "AlignAtt", "confidence": "confidence",
        "re-translation": "re-translation, which revises,",
    }  # fmt: skip
    curves = {row.get("curve") for row in rows if row["system"] == base}
    trained = [f"{title} {area(name)}" for name, title in titles.items() if name in systems]
    parts = [f"with a trained reader: {', '.join(trained)}"] if trained else []
    shares = ", ".join(
        f"{title} {area(base, curve)}" for curve, title in untrained.items() if curve in curves
    )
    between = [
        f"`marginal` minus `{other}` {area(f'marginal against {other}')}"
        for other in ("dynamic", "divergence", "binary-search")
        if f"marginal against {other}" in systems
    ]
    parts += [f"without training: {shares}", *between, "the others are in the table"]
    return (
        "mean BLEU minus that of wait-k with the model that has no reader, at equal AL (in "
        f"brackets: DAL): {'; '.join(parts)}"
    )


def _guarantee(rows: Sequence[Row]) -> str:
    certified, failed = (sum(row[name] for row in rows) for name in ("certified", "failed"))
    worst = max(row["failed_without_a_test"] for row in rows)
    return (
        f"of {certified:,} certified settings {failed} exceeded the bound on held-out sentences; "
        f"chosen by the mean alone, up to {worst} of 100 do"
    )


def _tuning(rows: Sequence[Row]) -> str:
    best = {
        name: min(mean_of(row["valid_nll"]) for row in rows if row["optimiser"] == name)
        for name in ("adamw", "muon")
    }
    return f"best validation loss: AdamW {best['adamw']:.2f}, Muon {best['muon']:.2f} (nats/token)"


def _exits(rows: Sequence[Row]) -> str:
    predictors = {
        "confidence": "confidence thresholds", "geometric": "a geometric predictor",
        "sequence predictor": "a predictor for whole sentences",
    }  # fmt: skip
    batched = [row for row in rows if row["batch"] == 64]
    alone = {row["method"]: row for row in rows if row["batch"] == 1}
    rows = [row for row in rows if row["model"] == rows[0]["model"]]

    def speedup(batch: int, method: str) -> float:
        return mean_of(find(rows, batch=batch, method=method)["speedup"])

    def best(batch: int) -> float:
        methods = {row["method"] for row in rows if row["method"].startswith("verified")}
        return max(speedup(batch, method) for method in methods)

    bleu, full = (
        mean_of(find(rows, batch=64, method=method)["bleu"]) for method in ("exit 2", "full stack")
    )
    text = (
        "speed relative to the full stack, with one sentence at a time and with 64: verified "
        f"exits, which lose nothing, {best(1):.2f} and {best(64):.2f}; a fixed exit after block "
        f"2 ({bleu:.1f} instead of {full:.1f} BLEU), {speedup(1, 'exit 2'):.2f} and "
        f"{speedup(64, 'exit 2'):.2f}"
    )
    for prefix, title in predictors.items():
        points = [row for row in batched if row["method"].startswith(prefix)]
        if not points:
            continue
        row = max(points, key=lambda point: mean_of(point["bleu"]))
        speeds = [mean_of(point["speedup"]) for point in (alone[row["method"]], row)]
        text += f"; {title} (average exit {mean_of(row['average_exit']):.1f}, "
        text += f"{mean_of(row['bleu']):.1f} BLEU), {speeds[0]:.2f} and {speeds[1]:.2f}"
    return text


def _mutants(rows: Sequence[Row]) -> str:
    row = find(rows, what="mutants of the code")
    share = mean_of(row["percent_detected"])
    return (
        f"the tests detect {share:.0f} % of the mutants that they execute, of {row['cases']} drawn"
    )


def _fuzzed_commands(rows: Sequence[Row]) -> str:
    row = find(rows, what="fuzzed command lines")
    return f"{row['faults']} of {row['cases']:,} command lines were slow or ended in a traceback"


def _kills(rows: Sequence[Row]) -> str:
    row = find(rows, what="commands killed")
    disk = find(rows, what="full or too small disk")
    return (
        f"{row['cases']} commands killed at a random moment and {disk['cases']} on a full disk: "
        f"{row['faults'] + disk['faults']} lost or damaged a result"
    )


def _paragraphs(rows: Sequence[Row]) -> str:
    split, whole = (
        mean_of(find(rows, architecture="pervasive", input=f"lines as they are{how}")["bleu"])
        for how in (" (default)", ", translated whole (`--max-source 512`)")
    )
    return f"BLEU {split:.1f} with long lines split (the default), {whole:.1f} with whole lines"


QUESTIONS = (
    Question(
        "Is Pervasive Attention competitive?",
        ("table-3", "figure-3", "conll", "zoo", "one-model"),
        (
            Answer(
                "zoo-multi30k",
                "Multi30k De-En, 30 minutes of one core each",
                _architectures,
                in_readme=True,
            ),
            Answer(
                "zoo-iwslt14-de-en",
                "IWSLT'14 De-En (45,623 pairs), 110 minutes of one core each",
                _architectures,
                in_readme=True,
            ),
            Answer(
                "table-3.7-multi30k", "Multi30k De-En, 13 minutes of one core each", _architectures
            ),
            Answer("zoo-updates-multi30k", "Multi30k De-En, 1,500 updates each", _architectures),
            Answer(
                "one-model-depth-2-multi30k",
                "Multi30k De-En, Pervasive Attention of two blocks instead of five, 13 minutes of "
                "one core",
                _one_model,
            ),
            Answer(
                "one-model-depth-2-wide-multi30k",
                "Multi30k De-En, Pervasive Attention, two blocks of 192 units, 45 minutes of one "
                "slow core for each seed",
                _one_model,
            ),
            Answer(
                "one-model-muon-004-multi30k",
                "Multi30k De-En, Pervasive Attention, gated maxima, 118 minutes of one core",
                _one_model,
            ),
            Answer(
                "one-model-attention-118-multi30k",
                "Multi30k De-En, Pervasive Attention, self-attention (preset `multi30k-hour`), 118 "
                "minutes of one core for each seed",
                _one_model,
                in_readme=True,
            ),
        ),
    ),
    Question(
        "Which reading policy?",
        ("table-4", "figure-4", "figure-C", "policies", "guarantee"),
        (
            Answer(
                "policies-multi30k",
                "Multi30k De-En, Pervasive Attention",
                _policies,
                in_readme=True,
            ),
            Answer(
                "policies-readers-multi30k",
                "Multi30k De-En, Pervasive Attention, other readers",
                _policies,
            ),
            Answer("policies-multi30k-en-de", "Multi30k En-De, Pervasive Attention", _policies),
            Answer("policies-transformer-multi30k", "Multi30k De-En, Transformer", _policies),
            Answer(
                "policies-iwslt14-de-en",
                "IWSLT'14 De-En (45,623 pairs), Pervasive Attention",
                _policies,
                in_readme=True,
            ),
            Answer("policies-toy-words", "toy corpus, Pervasive Attention", _policies),
            Answer(
                "guarantee-toy-words", "toy corpus, `--allow-loss`, confidence 90 %", _guarantee
            ),
        ),
    ),
    Question(
        "Do early exits pay?",
        ("table-5", "figure-5", "exit-guarantee", "exits-clock", "speed"),
        (
            Answer("speed-multi30k", "Multi30k De-En, Transformer of 6 blocks, d=128", _exits),
            Answer(
                "speed-256-multi30k",
                "Multi30k De-En, Transformer of 6 blocks, d=256",
                _exits,
                in_readme=True,
            ),
            Answer(
                "speed-distilled-multi30k",
                "Multi30k De-En, d=128, trained on a teacher's translations",
                _exits,
            ),
            Answer("speed-iwslt14-de-en", "IWSLT'14 De-En, d=128, 40 minutes of one core", _exits),
        ),
    ),
    Question(
        "What does loss smoothing give?",
        ("table-E",),
        (
            Answer(
                "table-E.3-multi30k",
                "Multi30k De-En, Bi-LSTM, 1,500 updates",
                _smoothing,
                in_readme=True,
            ),
            Answer(
                "table-E.3-multi30k-pervasive",
                "Multi30k De-En, Pervasive Attention, 1,500 updates",
                _sequence_level,
            ),
            Answer(
                "table-E.3-iwslt14-de-en-pervasive",
                "IWSLT'14 De-En (45,424 pairs), Pervasive Attention, 2,500 updates",
                _sequence_level,
            ),
            Answer(
                "table-E.3-iwslt14-de-en",
                "IWSLT'14 De-En (45,616 pairs), Bi-LSTM, 2,500 updates",
                _sequence_level,
            ),
        ),
    ),
    Question(
        "What do ingredients and tuning give?",
        ("ingredients", "tune", "distill", "extra", "figure-A", "transparent"),
        (
            Answer(
                "tune-multi30k-3-transformer", "Multi30k De-En, Transformer, 3 minutes", _tuning
            ),
            Answer("tune-multi30k-3-convs2s", "Multi30k De-En, ConvS2S, 3 minutes", _tuning),
            Answer("tune-multi30k-3-bilstm", "Multi30k De-En, Bi-LSTM, 3 minutes", _tuning),
            Answer(
                "tune-multi30k-hour-pervasive",
                "Multi30k De-En, Pervasive Attention, 16 minutes",
                _tuning,
            ),
            Answer(
                "ingredients-pervasive-multi30k",
                "Multi30k De-En, Pervasive Attention, 10 minutes",
                _ladder,
                in_readme=True,
            ),
            Answer(
                "distill-multi30k",
                "Multi30k De-En, Transformer, 12 minutes, distilled from a ConvS2S of 12 minutes",
                _distilled,
                in_readme=True,
            ),
            Answer(
                "extra-multi30k",
                "Multi30k De-En with extra data (Tatoeba De-En), Transformer, 30 minutes",
                _extra_data,
            ),
        ),
    ),
    Question(
        "Can it be trusted?",
        ("trust", "paragraphs"),
        (
            Answer("trust-mutants", "mutation testing", _mutants, in_readme=True),
            Answer("trust-mutants", "fuzzed command lines", _fuzzed_commands),
            Answer("trust-mended", "fault injection", _kills, in_readme=True),
            Answer("paragraphs-multi30k", "several sentences in a line, Multi30k", _paragraphs),
        ),
    ),
)
OTHER = Question("Other experiments", ("",))
TITLES = {
    "conll": "CoNLL paper", "transparent": "Deep encoders, plain and transparent",
    "tune": "Tuned settings", "policies": "Reading policies",
}  # fmt: skip


def stale() -> dict[Path, str]:
    """Return the pages that are not current, with the text that they should have."""
    records = {path.stem: read(path) for path in sorted(RECORDS.glob("*.json"))}
    published = json.loads((HERE / "published.json").read_text(encoding="utf-8")) | curves()
    block = answer_table(records, readme=True)
    readme = _BLOCK.sub(lambda match: match[1] + block + match[2], README.read_text("utf-8"))
    pages = {
        RESULTS: results_page(records, published),
        SMALL: small_page(records),
        PUBLISHED: published_page(published),
        CLAIMS: claims.page(records),
        README: readme,
    }
    return {
        path: text
        for path, text in pages.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }


def results_page(records: Mapping[str, Record], published: Mapping[str, Any]) -> str:
    """Return the page of real runs by question, with published figures beside them."""
    real = _grouped({name: record for name, record in records.items() if not record["small"]})
    parts = [INTRODUCTIONS[RESULTS], "## Short answers\n", answer_table(records)]
    remaining = {*real, *published, *_grouped(records)}
    for question in (*QUESTIONS, OTHER):
        ours = sorted((e for e in remaining if e.startswith(question.experiments)), key=_order)
        remaining -= set(ours)
        if ours:
            parts.append(f"## {question.title}\n")
        parts += [_experiment(e, real[e], published.get(e)) for e in ours if e in real]
        missing = [_missing(e, records, published) for e in ours if e not in real]
        if missing:
            parts.append(f"No record of a real run yet: {', '.join(missing)}.\n")
    return "\n".join(parts)


def small_page(records: Mapping[str, Record]) -> str:
    """Return the page of runs with SMALL=1."""
    small = _grouped({name: record for name, record in records.items() if record["small"]})
    groups = [_experiment(name, small[name], None) for name in sorted(small, key=_order)]
    return "\n".join([INTRODUCTIONS[SMALL], *groups]).replace("\n### ", "\n## ")


def published_page(published: Mapping[str, Any]) -> str:
    """Return the page of published figures."""
    tables = [
        f"## {_title(name, ())}\n\n" + _published(published[name])
        for name in sorted(published, key=_order)
    ]
    return "\n".join([INTRODUCTIONS[PUBLISHED], *tables])


def answer_table(records: Mapping[str, Record], *, readme: bool = False) -> str:
    """Return the short answers, linked to their sections: all of them, or those of the README."""
    page = "recipes/RESULTS.md" if readme else ""
    lines = [["question", "setting", "result"], ["---"] * 3]
    for question in QUESTIONS:
        title = f"[{question.title}]({page}#{anchor(question.title)})"
        answers = [answer for answer in question.answers if answer.record in records]
        chosen = [answer for answer in answers if answer.in_readme or not readme]
        for answer in chosen:
            lines.append([title, answer.setting, answer.text(records[answer.record]["rows"])])
            title = ""
        if not answers:
            scored = sum(_has_scores(record, question) for record in records.values())
            records_text = f"{plural(scored, 'record')}, see the tables"
            lines.append([title, "", records_text if scored else "no record of a real run yet"])
    return markdown(lines)


def _has_scores(record: Record, question: Question) -> bool:
    """Return whether a record is of a real run of `question`; plans of models have no scores."""
    names = {name for row in record["rows"] for name in row}
    is_scored = any(re.search(r"bleu|beam|greedy|nll|loss", name) for name in names - {"beam"})
    return (
        is_scored and not record["small"] and record["experiment"].startswith(question.experiments)
    )


def anchor(title: str) -> str:
    """Return the anchor of a heading, which GitHub and the documentation site form alike."""
    return re.sub(r"[^a-z0-9_ -]", "", title.lower()).replace(" ", "-")


def _grouped(records: Mapping[str, Record]) -> dict[str, list[Record]]:
    """Group records, with their names, by experiment.

    `figure-4.12-pervasive` belongs to `figure-4.12`.
    """
    groups: dict[str, list[Record]] = {}
    for name, record in records.items():
        part = re.match(r"(?:table|figure)-[0-9A-Z]\.\d+", record["experiment"])
        experiment = part[0] if part else record["experiment"]
        groups.setdefault(experiment, []).append(record | {NAME: name})
    return groups


def _order(experiment: str) -> tuple[int, list[int], str]:
    """Sort tables and figures by number, then appendices, then what has no number."""
    number = re.fullmatch(r"(?:table|figure)-([0-9A-Z])\.(\d+)(.*)", experiment)
    if not number:
        return (2, [], experiment)
    chapter = number[1]
    order = int(chapter) if chapter.isdigit() else 10 + ord(chapter) - ord("A")
    return (0 if chapter.isdigit() else 1, [order, int(number[2])], experiment)


def _title(experiment: str, records: Sequence[Record]) -> str:
    """Return a heading: the number of a table or figure, and the title that its records share."""
    if experiment in TITLES:
        return TITLES[experiment]
    kind, _, number = experiment.partition("-")
    titles = list(dict.fromkeys(str(record["title"]) for record in records))
    if kind not in ("table", "figure"):
        return min(titles, key=len) if titles else experiment
    return f"{kind.capitalize()} {number}" + (f": {titles[0]}" if len(titles) == 1 else "")


def _experiment(experiment: str, records: Sequence[Record], published: Any) -> str:
    """Return one experiment: our tables, then what was published."""
    title = _title(experiment, records)
    parts = [f"### {title}\n"]
    ordered = sorted(records, key=lambda record: not title.endswith(record["title"]))
    tables = [_record(record, title) for record in ordered]
    tables += [_published(published)] if published else []
    fitted = published.get("fitted", {}) if published else {}
    return "\n".join(parts + [_marked(table, fitted) for table in tables])


def _marked(table: str, fitted: Mapping[str, str]) -> str:
    """Mark the counts of parameters that only a fitted size meets, with the reason below."""
    for cell, reason in fitted.items():
        if f"| {cell} |" in table:
            table = table.replace(f"| {cell} |", f"| {cell} † |") + f"\n† {reason}\n"
    return table


def _record(record: Record, heading: str) -> str:
    """Return how a record was made, its tables and its notes, below a heading."""
    name, title = record[NAME], record["title"]
    blocks = [] if heading.endswith(title) else [f"**{title}**"]
    blocks.append(
        f"[`{name}`](records/{name}.json): `{record['command']}`; {record['date']}; "
        f"{record['machine']}{_speed(record)}; {record['software']}"
        + (f"; commit {record['commit']}." if "commit" in record else ".")
    )
    if "picture" in record:
        blocks.append(f"![{title}](figures/{record['picture']})")
    parts: dict[str, list[Row]] = {}
    for row in record["rows"]:
        parts.setdefault(str(row.get(PART, "")), []).append(row)
    for part, rows in parts.items():
        if part and len(columns(rows)) < 2:
            continue
        blocks += [f"{part[0].upper()}{part[1:].replace('_', ' ')}:"] if part else []
        blocks.append(table_of(rows[:MAX_ROWS]).rstrip())
        left = len(rows) - MAX_ROWS
        blocks += [f"{left} more rows are in the JSON."] if left > 0 else []
    signatures = sorted({
        str(value) for row in record["rows"] for column, value in row.items()
        if column.startswith("signature")
    })  # fmt: skip
    names = ", ".join(f"`{signature}`" for signature in signatures)
    blocks += [f"Signatures: {names}."] if names else []
    blocks += record.get("notes", [])
    return "\n\n".join(blocks) + "\n"


def _speed(record: Record) -> str:
    """Return how fast a core of the record's machine is, where that was measured."""
    speed = record.get("speed", {})
    rates = [f"{rate} GFLOP/s in {precision}" for precision, rate in speed.items()]
    return f" (one core: {', '.join(rates)})" if rates else ""


def _missing(experiment: str, records: Mapping[str, Record], published: Mapping[str, Any]) -> str:
    """Return the name of an experiment without a real run, with links to what there is."""
    ours = _grouped(records).get(experiment, [])
    title = _title(experiment, ours)
    links = [f"[small run](SMALL.md#{anchor(title)})"] if ours else []
    if experiment in published:
        links.append(f"[published](PUBLISHED.md#{anchor(_title(experiment, ()))})")
    return f"{title} ({', '.join(links)})"


def _published(figures: Mapping[str, Any]) -> str:
    lines = [[str(name) for name in figures["columns"]], ["---"] * len(figures["columns"])]
    lines += [[shown(value) for value in row] for row in figures["rows"]]
    return f"*Published* ({figures['what']}):\n\n" + markdown(lines)


def curves() -> dict[str, Row]:
    """Return the published curves of figures 4.12 to 4.14, a row for each point."""
    rows: dict[str, list[list[Any]]] = {"figure-4.12": [], "figure-4.13": [], "figure-4.14": []}
    for curve in CURVES:
        wait_k = "figure-4.13" if curve.data.startswith("wmt15") else "figure-4.12"
        rows[wait_k if curve.policy == "wait-k" else "figure-4.14"] += [
            [curve.data, curve.label, curve.source, *figures]
            for figures in ((point.setting, point.bleu, point.al) for point in curve.points)
        ]
    names = ["corpus", "system", "source", "k or threshold", "BLEU", "AL"]
    what = "test sets, greedy; the sources are in nmtgrid/online/published.py"
    return {name: {"what": what, "columns": names, "rows": points} for name, points in rows.items()}
