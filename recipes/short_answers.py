"""The short answers of the results page and the README, computed from records.

Each question has tables of answers, with a row or a column for each record, computed from the
record's rows. Answers of one sentence are in a column "result".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nmtgrid.base.spans import plural
from recipes.seeds import Record
from recipes.tables import Row, areas_of, find, gain_of, markdown, mean_of, shown, signed

SIGNIFICANT = 0.05
PAGE = "recipes/RESULTS.md"


@dataclass(frozen=True)
class Answer:
    """Cells of a table, by heading, computed from the rows of one record."""

    record: str
    setting: str
    cells: Callable[[Sequence[Row]], Mapping[str, str]]
    in_readme: bool = False


@dataclass(frozen=True)
class Table:
    """A table of answers with a caption; each answer is a row or (`has_columns`) a column."""

    answers: tuple[Answer, ...]
    caption: str = ""
    has_columns: bool = False


@dataclass(frozen=True)
class Question:
    """A question, prefixes of the names of its experiments, and tables of answers."""

    title: str
    experiments: tuple[str, ...]
    tables: tuple[Table, ...] = ()


def _result(sentence: str) -> dict[str, str]:
    return {"result": sentence}


ARCHITECTURES = {
    "pa": "Pervasive Attention", "pervasive": "Pervasive Attention", "bilstm": "Bi-LSTM",
    "convs2s": "ConvS2S", "transformer": "Transformer",
}  # fmt: skip


def _is_significant(values: object) -> bool:
    """Return whether the p-values of all seeds ("0.01, 0.02"; "–": not tested) are below 0.05."""
    return all("–" not in p and float(p) < SIGNIFICANT for p in str(values).split(","))


def _architectures(rows: Sequence[Row]) -> dict[str, str]:
    """Return BLEU and the number of parameters of each architecture."""
    cells = {}
    for row in rows:
        name = str(row.get("model", row.get("system")))
        bleu = shown(row.get("test_beam5", row.get("beam5")))
        # The p-values are against the system without any.
        star = "\\*" if "p_of_bleu" in row and _is_significant(row["p_of_bleu"]) else ""
        cells[ARCHITECTURES.get(name, name)] = f"{bleu}{star} ({_millions(row)})"
    return dict.fromkeys(ARCHITECTURES.values(), "") | cells


def _millions(row: Row) -> str:
    return f"{row['parameters'] / 1e6:.1f}M"


def _one_model(rows: Sequence[Row]) -> dict[str, str]:
    """Return the mean BLEU of one model over seeds, and that of their ensemble."""
    row, *ensemble = rows
    cells = {"parameters": _millions(row), "BLEU": shown(row["test_beam5"])}
    if ensemble:
        cells["ensemble"] = (
            f"{shown(ensemble[0]['test_beam5'])} ({len(row['seeds'].split())} models)"
        )
    return cells


def _ladder(rows: Sequence[Row]) -> dict[str, str]:
    names = {"base": "AdamW", "muon": "Muon", "bpe-dropout": "BPE-dropout", "r-drop": "R-Drop"}
    steps = [f"{names[row['step']]} {mean_of(row['bleu']):.1f}" for row in rows]
    return _result(f"test BLEU, beam 5, each step added to the previous one: {', '.join(steps)}")


READERS = {
    "marginal-0.5": "`marginal`", "marginal-area-0.5": "`marginal` with all cells",
    "marginal-fixed-0.5": "`marginal` with the model fixed", "dynamic-0.5": "`dynamic`",
    "binary-search": "labels by binary search", "divergence": "`divergence`",
    "mma": "MMA", "itst": "ITST", "wait-info": "Wait-info",
}  # fmt: skip
UNTRAINED = {
    "edatt": "EDAtt", "alignatt": "AlignAtt", "confidence": "confidence", "entropy": "entropy",
    "local-agreement": "LocalAgreement", "hold-n": "hold-n",
    "re-translation": "re-translation (revises its output)",
}  # fmt: skip


def _policies(rows: Sequence[Row]) -> dict[str, str]:
    """Return the gain of each policy over wait-k of the model without a reader."""

    def area(system: str, curve: str | None = None) -> str:
        """Return the areas of a policy or, without a curve, of a system against its start."""
        areas = areas_of(rows, system, curve)
        by_al, by_dal = (_difference(areas[latency]) for latency in ("AL", "DAL"))
        return f"{by_al} ({by_dal})"

    systems = {row["system"] for row in rows}
    base = "pervasive" if "pervasive" in systems else "transformer"
    curves = {row.get("curve") for row in rows if row["system"] == base}
    trained = {title: area(name) if name in systems else "" for name, title in READERS.items()}
    untrained = {
        title: area(base, curve) if curve in curves else "" for curve, title in UNTRAINED.items()
    }
    against = {f"marginal against {n.removesuffix('-0.5')}": t for n, t in READERS.items()}
    between = {
        f"`marginal` minus {title}": area(system)
        for system, title in against.items()
        if system in systems
    }
    return trained | untrained | between


def _difference(row: Row) -> str:
    """Return a difference, with a star if it is significant in every seed."""
    values = row.get("p_of_each_seed")
    return signed(row["difference"]) + ("\\*" if values and _is_significant(values) else "")


EXITS = {
    "verified 1": "verified exits, same output", "exit 2": "exit 2",
    "confidence 2": "confidence thresholds", "geometric 2": "geometric predictor",
    "sequence predictor": "predictor for whole sentences",
}  # fmt: skip
"""Methods; the same for all records, so that none is selected by test scores."""


def _exits(rows: Sequence[Row]) -> dict[str, str]:
    """Return speedups at batch sizes 1 and 64, change of BLEU and average exit of each method."""

    def cell(method: str) -> str:
        # The first model has no predictor; fixed exits are measured with it.
        row = next((row for row in rows if row["method"] == method), None)
        if row is None:
            return ""
        model = row["model"]
        alone, batched, full = (
            find(rows, model=model, method=name, batch=batch)
            for name, batch in ((method, 1), (method, 64), ("full stack", 64))
        )
        speed = f"{mean_of(alone['speedup']):.2f}, {mean_of(batched['speedup']):.2f}"
        if method.startswith("verified"):
            return speed
        change = mean_of(batched["bleu"]) - mean_of(full["bleu"])
        return f"{speed} ({change:+.1f} at {mean_of(batched['average_exit']):.1f})"

    full = next(row for row in rows if row["method"] == "full stack" and row["batch"] == 64)
    cells = {"all blocks": f"{mean_of(full['bleu']):.1f}"}
    return cells | {title: cell(method) for method, title in EXITS.items()}


def _distilled(rows: Sequence[Row]) -> dict[str, str]:
    original, distilled, teacher = (
        mean_of(find(rows, system=name)["bleu"]) for name in ("original", "distilled", "teacher")
    )
    p = mean_of(find(rows, system="distilled")["p_bleu"])
    return _result(
        f"test BLEU (`case:lc`, `tok:13a`) {distilled:.1f} when trained on the teacher's "
        f"translations, {original:.1f} on the references (p = {p:.3f}); the teacher has "
        f"{teacher:.1f}"
    )


def _extra_data(rows: Sequence[Row]) -> dict[str, str]:
    alone, extra = (find(rows, model=f"{name} extra data") for name in ("without", "with"))
    return _result(
        f"test BLEU, beam 5, {mean_of(extra['test_beam5']):.1f} after a first stage on both "
        f"corpora, {mean_of(alone['test_beam5']):.1f} on Multi30k only for the same time (p = "
        f"{extra['p_of_bleu']})"
    )


def _smoothing(rows: Sequence[Row]) -> dict[str, str]:
    both, twice = find(rows, loss="both-bleu-batch"), find(rows, loss="twice")
    sequence = find(rows, loss="seq-bleu-batch")
    times = [mean_of(row["minutes_per_epoch"]) for row in (both, find(rows, loss="mle"))]
    cost = times[0] / times[1]
    return _result(
        f"token and sequence level (BLEU reward): {gain_of(both)} BLEU over maximum likelihood "
        f"({_likelihood(rows)}), at {cost:.1f} times the time per epoch; sequence level alone: "
        f"{gain_of(sequence)}; a second pass without smoothing: {gain_of(twice)}"
    )


def _likelihood(rows: Sequence[Row]) -> str:
    """Return BLEU of maximum likelihood, the baseline of the gains."""
    return f"{mean_of(find(rows, loss='mle')['bleu_tokenized']):.1f}"


def _sequence_level(rows: Sequence[Row]) -> dict[str, str]:
    sequence = find(rows, loss="seq-hamming-batch")
    twice = [row for row in rows if row["loss"] == "twice"]
    more = f"; a second pass without smoothing: {gain_of(twice[0])}" if twice else ""
    gain = f"sequence level (Hamming, batch): {gain_of(sequence)} BLEU over maximum likelihood"
    return _result(f"{gain} ({_likelihood(rows)}){more}")


def _guarantee(rows: Sequence[Row]) -> dict[str, str]:
    certified, failed = (sum(row[name] for row in rows) for name in ("certified", "failed"))
    worst = max(row["failed_without_a_test"] for row in rows)
    return _result(
        f"of {certified:,} certified settings, {failed} exceeded the bound on held-out sentences; "
        f"without a test (chosen by the mean only), up to {worst} of 100 do"
    )


def _tuning(rows: Sequence[Row]) -> dict[str, str]:
    best = {
        name: min(mean_of(row["valid_nll"]) for row in rows if row["optimiser"] == name)
        for name in ("adamw", "muon")
    }
    adamw, muon = (f"{best[name]:.2f}" for name in ("adamw", "muon"))
    return _result(f"best validation loss: AdamW {adamw}, Muon {muon} (nats/token)")


def _mutants(rows: Sequence[Row]) -> dict[str, str]:
    row = find(rows, what="mutants of the code")
    share = mean_of(row["percent_detected"])
    # The packages are MUTATED of trust.sh. tests/mutants.py removes keyword arguments only since a
    # later version than that of the record.
    return _result(
        f"the tests detect {share:.0f} % of the mutants that they execute, of {row['cases']} "
        "sampled from the packages `base`, `search`, `online`, `adaptive` and `training`; "
        "mutations did not include the removal of keyword arguments"
    )


def _fuzzed_commands(rows: Sequence[Row]) -> dict[str, str]:
    row = find(rows, what="fuzzed command lines")
    return _result(
        f"{row['faults']} of {row['cases']:,} command lines were slow or ended in a traceback"
    )


def _kills(rows: Sequence[Row]) -> dict[str, str]:
    row = find(rows, what="commands killed")
    disk = find(rows, what="full or too small disk")
    return _result(
        f"{row['cases']} commands killed at a random moment and {disk['cases']} on a full disk: "
        f"{row['faults'] + disk['faults']} lost or damaged a result"
    )


def _paragraphs(rows: Sequence[Row]) -> dict[str, str]:
    split, whole = (
        mean_of(find(rows, architecture="pervasive", input=f"lines as they are{how}")["bleu"])
        for how in (" (default)", ", translated whole (`--max-source 512`)")
    )
    return _result(
        f"BLEU (`case:lc`, `tok:13a`) {split:.1f} if long lines are split (the default), "
        f"{whole:.1f} with whole lines"
    )


QUESTIONS = (
    Question(
        "Is Pervasive Attention competitive?",
        ("table-3", "figure-3", "conll", "zoo", "one-model"),
        (
            Table(
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
                        "table-3.7-multi30k",
                        "Multi30k De-En, 13 minutes of one core each",
                        _architectures,
                    ),
                    Answer(
                        "zoo-updates-multi30k",
                        "Multi30k De-En, 1,500 updates each",
                        _architectures,
                        in_readme=True,
                    ),
                    Answer(
                        "zoo-pairs7250-merges4000-multi30k",
                        "7,250 pairs of Multi30k, 10 minutes of one core each",
                        _architectures,
                        in_readme=True,
                    ),
                    Answer(
                        "zoo-pairs2500-merges2000-multi30k",
                        "2,500 pairs of Multi30k, 10 minutes of one core each",
                        _architectures,
                    ),
                    Answer(
                        "zoo-updates-pairs2500-dropout0.3-multi30k",
                        "2,500 pairs of Multi30k, dropout 0.3, weights chosen by BLEU, 1,500 "
                        "updates each",
                        _architectures,
                        in_readme=True,
                    ),
                ),
                "Test BLEU, beam 5, and number of parameters; \\*: differs significantly from "
                "Pervasive Attention (p < 0.05 in every seed).",
            ),
            Table(
                (
                    Answer(
                        "one-model-attention-118-multi30k",
                        "self-attention (preset `multi30k-hour`), 118 minutes of one core each",
                        _one_model,
                        in_readme=True,
                    ),
                    Answer(
                        "one-model-attention-updates-multi30k",
                        "a third seed after as many updates (256 processor minutes), with less "
                        "learning rate decay",
                        _one_model,
                        in_readme=True,
                    ),
                    Answer(
                        "one-model-half-multi30k",
                        "half as many updates, 114 processor minutes each",
                        _one_model,
                        in_readme=True,
                    ),
                    Answer(
                        "one-model-transformer-multi30k",
                        "a Transformer (preset `multi30k`), 114 processor minutes",
                        _one_model,
                        in_readme=True,
                    ),
                    Answer(
                        "one-model-convs2s-multi30k",
                        "a ConvS2S (preset `multi30k`), 114 processor minutes",
                        _one_model,
                        in_readme=True,
                    ),
                    Answer(
                        "one-model-muon-004-multi30k",
                        "gated max-pooling, 118 minutes of one core",
                        _one_model,
                    ),
                    Answer(
                        "one-model-depth-2-wide-multi30k",
                        "two blocks of 192 units, 45 minutes of one slow core each",
                        _one_model,
                    ),
                    Answer(
                        "one-model-depth-2-multi30k",
                        "two blocks instead of five, 13 minutes of one core",
                        _one_model,
                    ),
                ),
                "Multi30k De-En, test BLEU, beam 5; Pervasive Attention unless another "
                "architecture is named.",
            ),
        ),
    ),
    Question(
        "Which reading policy?",
        ("table-4", "figure-4", "figure-C", "policies", "guarantee"),
        (
            Table(
                (
                    Answer(
                        "policies-multi30k",
                        "Multi30k De-En, Pervasive Attention",
                        _policies,
                        in_readme=True,
                    ),
                    Answer(
                        "policies-readers-multi30k",
                        "the same, other readers",
                        _policies,
                    ),
                    Answer(
                        "policies-multi30k-en-de", "Multi30k En-De, Pervasive Attention", _policies
                    ),
                    Answer(
                        "policies-transformer-multi30k",
                        "Multi30k De-En, Transformer",
                        _policies,
                        in_readme=True,
                    ),
                    Answer(
                        "policies-iwslt14-de-en",
                        "IWSLT'14 De-En (45,623 pairs), Pervasive Attention",
                        _policies,
                        in_readme=True,
                    ),
                    Answer("policies-toy-words", "toy corpus, Pervasive Attention", _policies),
                ),
                "Mean difference in BLEU to wait-k of the model without a reader, over the common "
                "range of AL (in parentheses: of DAL). Readers in `code` and MMA, ITST and "
                "Wait-info are trained, the others need no training; \\*: p < 0.05 in every seed. "
                "MMA, ITST and Wait-info, which are separate models, were not tested for "
                "significance; Wait-info gains by translating better, not by its policy.",
                has_columns=True,
            ),
            Table(
                (
                    Answer(
                        "guarantee-toy-words",
                        "toy corpus, `--allow-loss`, confidence 90 %",
                        _guarantee,
                    ),
                )
            ),
        ),
    ),
    Question(
        "Do early exits pay?",
        ("table-5", "figure-5", "exit-guarantee", "exits-clock", "speed"),
        (
            Table(
                (
                    Answer("speed-multi30k", "Multi30k De-En, d=128", _exits),
                    Answer(
                        "speed-rotation-multi30k",
                        "Multi30k De-En, d=128, one earlier exit per update",
                        _exits,
                        in_readme=True,
                    ),
                    Answer(
                        "speed-half-multi30k",
                        "Multi30k De-En, d=128, earlier exits from the middle of the run",
                        _exits,
                    ),
                    Answer(
                        "speed-start-multi30k",
                        "Multi30k De-En, d=128, initialised from a decoder without exits",
                        _exits,
                    ),
                    Answer("speed-256-multi30k", "Multi30k De-En, d=256", _exits, in_readme=True),
                    Answer(
                        "speed-distilled-multi30k",
                        "Multi30k De-En, d=128, trained on a teacher's translations",
                        _exits,
                    ),
                    Answer(
                        "speed-distilled-rotation-multi30k",
                        "Multi30k De-En, d=128, one earlier exit per update, trained on a "
                        "teacher's translations",
                        _exits,
                        in_readme=True,
                    ),
                    Answer(
                        "speed-iwslt14-de-en",
                        "IWSLT'14 De-En, d=128, 40 minutes of one core",
                        _exits,
                    ),
                    Answer(
                        "speed-256-iwslt14-de-en",
                        "IWSLT'14 De-En, d=256, one earlier exit per update, 90 minutes of one "
                        "core",
                        _exits,
                    ),
                ),
                "Test BLEU with all six blocks of a Transformer decoder (one seed, greedy); then "
                "the speedups of other methods at batch sizes 1 and 64 and, in parentheses, the "
                "change of BLEU relative to all blocks of the same model, and the average number "
                "of blocks. Verified exits draft at exit 1; thresholds were tuned for two blocks "
                "on the validation set; the models with a predictor were trained longer.",
            ),
        ),
    ),
    Question(
        "What does loss smoothing give?",
        ("table-E",),
        (
            Table(
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
                )
            ),
        ),
    ),
    Question(
        "What do ingredients and tuning give?",
        ("ingredients", "tune", "distill", "extra", "figure-A", "transparent"),
        (
            Table(
                (
                    Answer(
                        "tune-multi30k-3-transformer",
                        "Multi30k De-En, Transformer, 3 minutes",
                        _tuning,
                    ),
                    Answer(
                        "tune-multi30k-3-convs2s", "Multi30k De-En, ConvS2S, 3 minutes", _tuning
                    ),
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
                        "Multi30k De-En, Transformer, 12 minutes, distilled from a ConvS2S of 12 "
                        "minutes",
                        _distilled,
                        in_readme=True,
                    ),
                    Answer(
                        "extra-multi30k",
                        "Multi30k De-En with extra data (Tatoeba De-En), Transformer, 30 minutes",
                        _extra_data,
                    ),
                )
            ),
        ),
    ),
    Question(
        "Can it be trusted?",
        ("trust", "paragraphs"),
        (
            Table(
                (
                    Answer("trust-mutants", "mutation testing", _mutants, in_readme=True),
                    Answer("trust-mutants", "fuzzed command lines", _fuzzed_commands),
                    Answer("trust-mended", "fault injection", _kills, in_readme=True),
                    Answer(
                        "paragraphs-multi30k", "several sentences per line, Multi30k", _paragraphs
                    ),
                )
            ),
        ),
    ),
)
OTHER = Question("Other experiments", ("",))


def short_answers(records: Mapping[str, Record], *, readme: bool = False) -> str:
    """Return the questions with their tables of answers, linked to the sections of the page.

    Includes all answers, or those of the README.
    """
    page = PAGE if readme else ""
    parts = []
    for question in QUESTIONS:
        parts.append(f"**[{question.title}]({page}#{anchor(question.title)})**")
        tables = [_table(table, records, readme=readme) for table in question.tables]
        if any(tables):
            for table, text in zip(question.tables, tables, strict=True):
                parts += [part for part in (table.caption, text) if text and part]
            continue
        scored = sum(_has_scores(record, question) for record in records.values())
        seen = plural(scored, "record")
        parts.append(f"{seen}, see the tables." if scored else "No record of a real run yet.")
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _table(table: Table, records: Mapping[str, Record], *, readme: bool) -> str:
    """Return a table of the answers that have a record, or an empty string."""
    rows = {
        _setting(answer, records[answer.record]): answer.cells(records[answer.record]["rows"])
        for answer in table.answers
        if answer.record in records and (answer.in_readme or not readme)
    }
    names = list(dict.fromkeys(name for cells in rows.values() for name in cells))
    names = [name for name in names if any(cells.get(name) for cells in rows.values())]
    if not rows:
        return ""
    lines = [["" if table.has_columns else "setting", *names]]
    lines += [
        [setting, *(cells.get(name, "") for name in names)] for setting, cells in rows.items()
    ]
    if table.has_columns:
        lines = [list(column) for column in zip(*lines, strict=True)]
    return markdown([lines[0], ["---"] * len(lines[0]), *lines[1:]])


def _setting(answer: Answer, record: Record) -> str:
    """Return the setting of an answer, with the number of seeds if there are several."""
    seeds = len((record.get("seeds") or "").split())
    return answer.setting + (f" ({seeds} seeds)" if seeds > 1 else "")


def anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub and the documentation site form it."""
    return re.sub(r"[^a-z0-9_ -]", "", title.lower()).replace(" ", "-")


def _has_scores(record: Record, question: Question) -> bool:
    """Return whether a record has scores of a real run of `question` (plans have none)."""
    names = {name for row in record["rows"] for name in row}
    is_scored = any(re.search(r"bleu|beam|greedy|nll|loss", name) for name in names - {"beam"})
    return (
        is_scored and not record["small"] and record["experiment"].startswith(question.experiments)
    )
