"""recipes/results.py and results_page.py: records of recipes, and the pages made from them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from recipes import claims, machine, results, results_page, short_answers, tables


def _record(**changed: Any) -> dict[str, Any]:
    return {
        "experiment": "table-3.4", "title": "Skips", "command": "SMALL=1 bash recipes/pervasive.sh",
        "small": True, "date": "2026-11-21", "machine": "a machine", "software": "nmtgrid 0",
        "rows": [{"system": "a|b", "bleu": 1.25}], **changed,
    }  # fmt: skip


def test_the_pages_are_current_and_every_record_is_one() -> None:
    stale = [path.name for path in results_page.stale()]
    assert stale == [], "run `python -m recipes.results write`"
    for path in results.RECORDS.glob("*.json"):
        record = results.read(path)
        assert path.stem.startswith("small-") == record["small"], path.name
        assert record["rows"], path.name
    for question in short_answers.QUESTIONS:
        for answer in (answer for table in question.tables for answer in table.answers):
            assert not answer.record.startswith("small-")


def _tuned(bleu: float) -> dict[str, Any]:
    return {"average_exit": 2.0, "bleu": bleu, "test": {"average_exit": 2.0, "bleu": bleu + 1}}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([{"a": 1, "b": {"mean": 2.0, "standard_deviation": 0.5}, "list": [1], "path": "/x"}],
         [{"a": 1, "b": {"mean": 2.0, "standard_deviation": 0.5}}]),
        ({"rows": [{"a": {"b": 1}}]}, [{"a_b": 1}]),
        ({"unit": "token", "settings": [{"system": "x", "k": 3}]}, [{"system": "x", "k": 3}]),
        ({"split": "valid", "systems": [{"system": "x", "points": [1]}]}, [{"system": "x"}]),
        ({"latency": {"settings": [{"k": 1}]}, "depth": {"rows": [{"exit": 2}]}},
         [{"part of the page": "latency", "k": 1}, {"part of the page": "depth", "exit": 2}]),
        ({"latency": {"settings": [{"k": 1}]}, "title": "one section"}, [{"k": 1}]),
        ({"full": {}, "fixed": [{"exit": 1, **_tuned(30.0)}],
          "points": [{"budget": 2.0, **_tuned(31.0), "beaten_by": "exit 1"}],
          "verified": [{"exit": 2, **_tuned(32.0), "beaten_by": None}],
          "baselines": [{"name": "p", "depth": 3, "bleu": 5.0, "test": None}]},
         [{"decoding": "exit 1", "average_exit": 2.0, "bleu": 31.0},
          {"decoding": "verified 2", "average_exit": 2.0, "bleu": 33.0},
          {"decoding": "budget 2", "average_exit": 2.0, "bleu": 32.0, "beaten_by": "exit 1"},
          {"decoding": "p, 3 blocks alone", "name": "p", "depth": 3, "bleu": 5.0, "test": None}]),
        ({"full": {}, "fixed": [], "points": [], "baselines": [],
          "calibrated": {"risk": "bleu", "allow_loss": 1.0, "confidence": 0.95, "certified": True,
                         "loss": 0.25, "p_value": 0.5, "test": {"loss": 1.5, "holds": False}}},
         [{"decoding": "guaranteed to lose at most 1 % (bleu)", "confidence": 0.95,
           "certified": True, "loss_percent": 0.25, "p_value": 0.5, "test_loss_percent": 1.5,
           "holds_on_test": False}]),
    ],
)  # fmt: skip
def test_rows_of_what_commands_write(
    tmp_path: Path, written: object, expected: list[dict[str, Any]]
) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(written))
    assert results.rows_of(path) == expected


@pytest.mark.parametrize(
    "text", ["", "{", "{}", "[]", "3", '"text"', '{"rows": []}', '{"rows": [1]}', '{"rows": 1}']
)
def test_a_file_without_rows_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(SystemExit, match=re.escape(str(path))):
        results.rows_of(path)


@pytest.fixture
def quick_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is measured once instead of twenty times: test_machine.py tests the figures."""
    monkeypatch.setattr(machine, "ROUNDS", 1)


@pytest.mark.usefixtures("quick_speed")
def test_records_have_the_commit_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table.json"
    table.write_text('[{"bleu": 3}]')
    monkeypatch.setattr(results, "commit", lambda: "abc+")
    assert results.keep("conll", "T", table, "bash x")["commit"] == "abc+"
    page = results_page.results_page({"a": _record(small=False, commit="abc+")}, {})
    assert "; nmtgrid 0; commit abc+." in page
    monkeypatch.setattr(results, "commit", lambda: None)
    assert "commit" not in results.keep("conll", "T", table, "bash x")


@pytest.mark.usefixtures("quick_speed")
def test_keeping_and_adopting_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "table.json"
    table.write_text('[{"bleu": 3}]')
    small = results.keep("conll", "T", table, "SMALL=1 ON=toy bash recipes/pervasive.sh conll")
    long = results.keep("conll", "T", table, "ON=multi30k bash recipes/pervasive.sh conll")
    assert (small["small"], long["small"]) == (True, False)
    assert small["rows"] == [{"bleu": 3}] and "torch" in small["software"]
    (tmp_path / "record.json").write_text(json.dumps(small))
    assert results.read(tmp_path / "record.json") == small
    with pytest.raises(SystemExit, match="not a record"):
        results.read(table)
    monkeypatch.setattr(results, "RECORDS", tmp_path / "records")
    path = tmp_path / "conll-toy.json"
    path.write_text(json.dumps(_record(rows=[{"bleu": 3, "traces": "/somewhere/a.jsonl"}])))
    results.adopt([path])
    assert results.read(tmp_path / "records/small-conll-toy.json")["rows"] == [{"bleu": 3}]


@pytest.mark.parametrize(
    "changed",
    [
        {"rows": 3}, {"rows": [1]}, {"command": 3}, {"small": "no"}, {"notes": "a text"},
        {"picture": "../../other.png"}, {"picture": "missing.png"},
    ],
)  # fmt: skip
def test_what_is_no_record_is_not_adopted(
    changed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(results, "FIGURES", tmp_path)
    path = tmp_path / "conll-toy.json"
    path.write_text(json.dumps(_record(small=False) | changed))
    with pytest.raises(SystemExit, match="error: "):
        results.adopt([path], note="a note")
    assert not (tmp_path / "records").exists()


@pytest.mark.usefixtures("quick_speed")
def test_a_record_that_cannot_be_written_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, file = tmp_path / "table.json", tmp_path / "file"
    table.write_text('[{"bleu": 3}]')
    file.touch()
    words = ["keep", "conll", "--title", "T", "--command", "bash x", "--table", str(table)]
    monkeypatch.setattr("sys.argv", ["results", *words, "--out", str(file / "record.json")])
    with pytest.raises(SystemExit, match=f"error: {file} could not be written"):
        results.main()


def test_an_adopted_record_gets_another_title_and_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its picture, which lies in a folder of its own by then, stays."""
    monkeypatch.setattr(results, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(results, "FIGURES", tmp_path / "figures")
    (tmp_path / "figures").mkdir()
    path = tmp_path / "conll-toy.json"
    path.write_text(json.dumps(_record(small=False, picture="conll-toy.png")))
    path.with_suffix(".png").write_bytes(b"picture")
    results.adopt([path])
    results.adopt([tmp_path / "records/conll-toy.json"], title="Another", note="A note.")
    record = results.read(tmp_path / "records/conll-toy.json")
    assert (record["title"], record["notes"]) == ("Another", ["A note."])
    assert (tmp_path / "figures" / record["picture"]).read_bytes() == b"picture"


PUBLISHED: dict[str, Any] = {
    "table-3.4": {"what": "theirs", "columns": ["s", "BLEU"], "rows": [["dense", 34.45]],
                  "fitted": {"7,000,001": "A fitted size.", "34.45": "no count"}},
    "figure-4.12": {"what": "curves", "columns": ["k"], "rows": [[3]]},
}  # fmt: skip


def test_real_runs_are_shown_by_question_beside_published_figures() -> None:
    rows = [{"model": "a|b", "parameters": 7_000_001, "signature_bleu": "S|1"}]
    real = _record(small=False, command="bash x", title="Long", rows=rows)
    part = _record(small=False, experiment="figure-4.12-pervasive", title="Part")
    small = _record(experiment="table-5.2", title="Not shown")
    text = results_page.results_page({"a": real, "b": part, "small-c": small}, PUBLISHED)
    heads = ["## Is Pervasive", "### Table 3.4: Long", "[`a`](records/a.json): `bash x`",
             "*Published* (theirs)", "## Which reading policy?", "### Figure 4.12: Part",
             "[`b`](records/b.json)", "*Published* (curves)",
             "## Do early exits pay?"]  # fmt: skip
    places = [text.index(head) for head in heads]
    assert places == sorted(places) and text.count("### Figure 4.12") == 1
    assert "| a\\|b | 7,000,001 † |" in text and "\n† A fitted size.\n" in text
    assert "| dense | 34.45 † |" in text and "Signatures: `S|1`." in text
    assert text.count("Not shown") == 1 and "**" not in text[text.index("\n## Is") :]
    assert "`bash x`; 2026-11-21; a machine; nmtgrid 0." in text
    fast = results_page.results_page({"a": real | {"speed": {"fp32": 99, "bf16": 420}}}, {})
    assert "a machine (one core: 99 GFLOP/s in fp32, 420 GFLOP/s in bf16); nmtgrid 0." in fast
    assert "yet: Table 5.2: Not shown ([small run](SMALL.md#table-52-not-shown))." in text


def test_a_heading_stays_when_a_record_of_another_corpus_comes_before() -> None:
    first = _record(small=False, experiment="speed", title="On the clock, IWSLT'14")
    second = _record(small=False, experiment="speed", title="On the clock")
    text = results_page.results_page({"a": first, "b": second}, {})
    parts = ["### On the clock\n\n[`b`]", "**On the clock, IWSLT'14**\n\n[`a`]"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places) and text.count("### On the clock") == 1


def test_small_runs_and_published_figures_have_pages_of_their_own() -> None:
    real = _record(small=False, title="Long")
    text = results_page.small_page({"small-a": _record(), "a": real})
    assert "shows that every experiment runs" in text and "Long" not in text
    assert "\n## Table 3.4: Skips\n" in text and "| a\\|b | 1.25 |" in text and "34.45" not in text
    text = results_page.published_page(PUBLISHED)
    assert text.index("## Table 3.4") < text.index("| dense | 34.45 |") < text.index("## Figure")
    assert results_page.curves()["figure-4.12"]["rows"]


def test_short_answers_are_computed_from_records() -> None:
    text = short_answers.short_answers({})
    assert text.count("No record of a real run yet.") == len(short_answers.QUESTIONS)
    systems = [
        {"system": "bilstm", "beam5": 31.256, "parameters": 4e6},
        {"system": "pervasive", "beam5": 30.044, "parameters": 1_260_000},
    ]
    zoo = _record(experiment="zoo", small=False, rows=systems)
    exits = _record(experiment="table-5.2", small=False, rows=[{"bleu": 1.0}])
    plan = _record(experiment="table-E.2", small=False, rows=[{"parameters": 3, "beam": 5}])
    known = {"zoo-multi30k": zoo, "table-3.7-multi30k": zoo, "x": exits, "y": plan}
    assert short_answers.short_answers(known).count("\n| Multi30k De-En, ") == 2
    text = short_answers.short_answers(known, readme=True)
    assert text.count("\n| Multi30k De-En, ") == 1
    assert "| setting | Pervasive Attention | Bi-LSTM |\n| --- | --- | --- |\n" in text
    assert "one core each | 30.04 (1.3M) | 31.26 (4.0M) |\n" in text
    assert "](recipes/RESULTS.md#do-early-exits-pay)**\n\n1 record, see the tables.\n" in text
    assert "](recipes/RESULTS.md#what-does-loss-smoothing-give)**\n\nNo record" in text
    for p, mark in (("0.051", ""), ("0.049, 0.001", "\\*"), ("0.049, 0.06", ""), ("–", "")):
        systems[0]["p_of_bleu"] = p
        text = short_answers.short_answers({"zoo-multi30k": zoo})
        assert f"| 30.04 (1.3M) | 31.26{mark} (4.0M) |\n" in text


def test_the_answer_of_several_seeds_is_their_mean_beside_an_ensemble() -> None:
    bleu = {"mean": 44.86, "standard_deviation": 0.3}
    seeds = {"model": "a", "seeds": "1 2", "parameters": 2_060_000, "test_beam5": bleu}
    together = {"model": "ensemble", "test_beam5": {"mean": 46.0}}
    record = _record(experiment="one-model-muon-004", small=False, rows=[seeds, together])
    text = short_answers.short_answers({"one-model-muon-004-multi30k": record})
    assert "| 2.1M | 44.86 ± 0.30 | 46.00 (2 models) |" in text


def test_the_answer_of_a_ladder_names_its_steps_in_order() -> None:
    rows = [{"step": "base", "bleu": {"mean": 30.04}}, {"step": "r-drop", "bleu": {"mean": 31.06}}]
    record = _record(experiment="ingredients-pervasive", small=False, rows=rows)
    text = short_answers.short_answers({"ingredients-pervasive-multi30k": record})
    assert "each step added to the previous one: AdamW 30.0, R-Drop 31.1 |" in text


def test_policies_stand_in_rows_and_settings_in_columns() -> None:
    def areas(system: str, curve: str | None, al: float, dal: float, p: str) -> list[tables.Row]:
        values = (("AL", al, p), ("DAL", dal, "0.001"))
        return [
            {"system": system, "curve": curve, "latency": latency, "difference": {"mean": mean},
             "p_of_each_seed": p}
            for latency, mean, p in values
        ]  # fmt: skip

    german = areas("pervasive", "edatt", -0.34, 1.26, "0.02, 0.06")
    german += areas("dynamic-0.5", None, 0.44, -0.1, "0.002")
    english = areas("pervasive", "edatt", 0.1, 0.2, "–")
    records = {
        name: _record(experiment="policies", small=False, rows=rows)
        for name, rows in (
            ("policies-multi30k", german),
            ("policies-multi30k-en-de", english),
        )
    }
    text = short_answers.short_answers(records)
    assert "|  | Multi30k De-En, Pervasive Attention | Multi30k En-De, Pervasive" in text
    assert (
        "\n| `dynamic` | +0.4\\* (-0.1\\*) |  |\n| EDAtt | -0.3 (+1.3\\*) | +0.1 (+0.2\\*) |\n"
        in text
    )


def test_exits_are_shown_by_fixed_settings_against_the_full_stack_of_the_same_model() -> None:
    def row(model: str, batch: int, method: str, speedup: float, bleu: float) -> tables.Row:
        return {"model": model, "batch": batch, "method": method, "speedup": speedup,
                "bleu": bleu, "average_exit": 2.04}  # fmt: skip

    rows = [
        row(model, batch, method, speedup + batch / 100, bleu)
        for batch in (64, 1)
        for model, method, speedup, bleu in (
            ("aligned", "full stack", 1.0, 30.0),
            ("aligned", "exit 2", 1.5, 29.0),
            ("aligned", "verified 1", 1.1, 30.0),
            ("aligned", "verified 2", 1.2, 30.0),
            ("aligned", "confidence 1.5", 1.4, 29.95),
            ("aligned", "confidence 2", 1.3, 29.9),
            ("sequence", "full stack", 1.0, 32.0),
            ("sequence", "exit 2", 9.0, 9.0),
            ("sequence", "sequence predictor", 1.6, 30.5),
        )
    ]
    text = short_answers.short_answers(
        {"speed-multi30k": _record(experiment="speed", small=False, rows=rows)}
    )
    assert (
        "\n| setting | all blocks | verified exits, same output | exit 2 | confidence "
        "thresholds | predictor for whole sentences |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| Multi30k De-En, d=128 | 30.0 | 1.11, 1.74 | 1.51, 2.14 (-1.0 at 2.0) | "
        "1.31, 1.94 (-0.1 at 2.0) | 1.61, 2.24 (-1.5 at 2.0) |\n"
    ) in text


def test_parts_and_cells_of_a_page() -> None:
    rows = [
        {"part of the page": "latency", "policy": "wait-k", "k": 3.0, "bleu": 1.0},
        {"part of the page": "latency", "policy": "wait-k", "k": None, "bleu": 2.0},
        {"part of the page": "exit_depth", "exit": 2, "bleu": 3.0},
        {"part of the page": "names", "system": "no other column"},
    ]
    record = _record(experiment="report", title="Four systems", small=False, rows=rows)
    text = results_page.results_page({"report": record}, {})
    assert "## Other experiments" in text and "### Four systems\n" in text
    assert "Latency:\n\n| policy | k | BLEU |" in text and "Exit depth:\n\n| exit | BLEU |" in text
    assert "Names" not in text
    assert "| wait-k | 3 | 1.00 |" in text and "| wait-k | ∞ | 2.00 |" in text
    many = _record(small=False, rows=[{"n": n} for n in range(results_page.MAX_ROWS + 2)])
    assert (
        '| 23 |\n\n<details markdown="1"><summary>2 more rows</summary>\n\n| n |\n| --- |\n| 24 |\n'
        "| 25 |\n\n</details>\n"
    ) in results_page.results_page({"a": many}, {})
    means = [
        {"mean": mean, "standard_deviation": spread}
        for mean, spread in ((1.0, None), (1.394, 0.00049), (0.0456, 0.0123), (2.0, 11.5))
    ]
    values = [1234.5, 12, 33.456, 0.0123, 0, None, *means]
    assert [tables.shown(value) for value in values] == [
        "1,234", "12", "33.46", "0.012", "0", "",
        # A deviation has as many decimals as its mean.
        "1.00", "1.39 ± 0.00", "0.046 ± 0.012", "2.00 ± 11.50",
    ]  # fmt: skip
    exits = [{"system": "a", "6": 1.0, "mean": 2.0, "1": 3.0}, {"system": "b", "10": 4.0}]
    assert tables.columns(exits) == ["system", "1", "6", "10", "mean"]


def test_a_claim_is_tested_only_where_its_record_is() -> None:
    every = [claim for _, chapter in claims.CHAPTERS for claim in chapter]
    evidence = [e for claim in every if claim.evidence for e in (claim.evidence, *claim.also)]
    assert {e.verdict for e in evidence} <= set(claims.VERDICTS) - {"not tested"}
    assert all((results.RECORDS / f"{e.record}.json").is_file() for e in evidence)
    text = claims.page({})
    assert f"{len(every)} not tested." in text
    assert "* Here" not in text
    for claim in every:
        words = claim.command.split()
        script = words[words.index("bash") + 1]
        assert (results.HERE.parent / script).is_file(), claim.command
        assert f"* {claim.text} ({claim.source}" in text and f"): `{claim.command}`\n" in text


def test_untested_claims_are_counted_and_listed() -> None:
    text = claims.page({path.stem: results.read(path) for path in results.RECORDS.glob("*.json")})
    # Of a tested claim: a line of the thesis, and two of each of its records.
    listed = text.count("\n* ") - text.count("\n* Thesis: ") - 2 * text.count("\n* Here, ")
    assert listed and f", {listed} not tested.\n" in text
    for experiment in (
        "table 3.8",
        "figure 4.15",
        "figure C.1",
        "figure C.2",
        "table 5.5",
        "CoNLL",
    ):
        assert f"({experiment}" in text


def test_a_verdict_says_no_more_than_its_record() -> None:
    """Differences of one seed or of fewer updates than seeds or updates may make."""
    every = [claim for _, chapter in claims.CHAPTERS for claim in chapter]
    verdicts = {c.source: c.evidence.verdict for c in every if c.evidence}
    assert verdicts["table 4.2"] == verdicts["table 3.6"] == "no difference seen"
    assert verdicts["table 5.3"] == verdicts["table 5.4"] == "in part"


def test_figures_of_a_claim_are_those_of_its_record() -> None:
    gains = {"seq-hamming-all": 1.5, "seq-hamming-batch": -2.0}
    rows = [
        {"loss": loss, "above_mle": {"mean": gains.get(loss, 9.0), "standard_deviation": 0.5},
         "minutes_per_epoch": 2.0}
        for loss in ("mle", "seq-hamming-all", "seq-hamming-batch", "seq-hamming-refs",
                     "lazy-hamming-all", "lazy-hamming-batch", "lazy-hamming-refs")
    ]  # fmt: skip
    names = ("table-E.3-iwslt14-de-en", "table-E.3-iwslt14-de-en-pervasive")
    text = claims.page(dict.fromkeys(names, _record(rows=rows)))
    assert "seq-hamming-all +1.5 ± 0.5, seq-hamming-batch -2.0 ± 0.5" in text
    assert "2 not reproduced, 1 no difference seen" in text


def test_differences_have_their_sign_and_the_deviation_of_several_seeds() -> None:
    assert tables.signed(1.26) == "+1.3"
    assert tables.signed({"mean": -0.04, "standard_deviation": None}) == "-0.0"
    assert tables.signed({"mean": -0.36, "standard_deviation": 0.2499}) == "-0.4 ± 0.2"
