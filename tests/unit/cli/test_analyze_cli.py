"""`analyze` from the command line: align, difficulty, paths, buckets, lengths and compare."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics.bleu import BLEU

from nmtgrid.analysis.quality.compare import ComparisonOptions
from nmtgrid.analysis.quality.evaluation import Evaluation
from nmtgrid.cli.analyze import align
from nmtgrid.cli.analyze.quality import CompareArguments
from nmtgrid.cli.app import main
from nmtgrid.cli.decode.run import scores as decode_scores
from nmtgrid.data.dataset import Dataset
from nmtgrid.metrics import quality
from nmtgrid.search.api import Translation
from nmtgrid.search.traces import Trace
from tests.unit.analysis.aligned_corpus import corpus
from tests.unit.helpers.pipes import piped
from tests.unit.helpers.text_data import CHINESE, text_data


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `source`, `target`, the known links `gold`, a translation and traces."""
    folder = tmp_path_factory.mktemp("align")
    source, target, links = corpus(200)
    write(folder / "source", map(" ".join, source))
    write(folder / "target", map(" ".join, target))
    write(folder / "gold", (" ".join(f"{s}-{t}" for s, t in pairs) for pairs in links))
    (folder / "outside").write_text("0-0\n" * 199 + "0-0 999-0\n")
    (folder / "short").write_text("0-0\n" * 199)
    (folder / "empty").write_text("")
    (folder / "blank").write_text("\n\n")
    (folder / "blank2").write_text("\n\n")
    for name, step in (("slow", 3), ("fast", 1)):
        rows = []
        for line, (x, y) in enumerate(zip(source[:20], target[:20], strict=True), start=1):
            reads = [min(len(x) + 1, step + index) for index in range(len(y) + 1)]
            numbers = [-1.0] * (len(y) + 1)
            rows.append(Trace(line, x, y, " ".join(y), numbers, -1.0, -1.0, reads=reads).to_line())
        write(folder / f"{name}.jsonl", rows)
    return folder


def test_align_writes_links_and_an_error_rate(home: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "links", tmp_path / "r.json"
    command = ["analyze", "align", str(home / "source"), str(home / "target"), "--out", str(out)]
    assert main([*command, "--gold", str(home / "gold"), "--json", str(report)]) == 0
    result = json.loads(report.read_text())
    assert result["aer"] < 0.2 and result["pairs"] == 200
    lines = out.read_text().split("\n")
    assert len(lines) == 201 and sum(len(line.split()) for line in lines) == result["links"]
    # The same text, the same links.
    assert main([*command[:-1], str(tmp_path / "again")]) == 0
    assert (tmp_path / "again").read_bytes() == out.read_bytes()


def test_difficulty_from_known_links(home: Path, tmp_path: Path) -> None:
    report, numbers = tmp_path / "r.json", tmp_path / "d"
    command = [
        "analyze", "difficulty", "-s", str(home / "source"), "-r", str(home / "target"),
        "--alignments", str(home / "gold"), "--difficulty-out", str(numbers),
        "--alignments-out", str(tmp_path / "links"), "--out", str(tmp_path), "--json", str(report),
        f"copy={home / 'target'}.copy",
    ]  # fmt: skip
    (home / "target.copy").write_bytes((home / "target").read_bytes())
    assert main(command) == 0
    assert (tmp_path / "links").read_bytes() == (home / "gold").read_bytes()
    values = [float(line) for line in numbers.read_text().split()]
    result = json.loads(report.read_text())
    assert result["difficulty"]["mean"] == pytest.approx(sum(values) / 200, abs=1e-4)
    assert len(result["pictures"]) == 2
    scored = result["buckets"][0]["systems"][0]["sentence_bleu"]
    assert all(value == pytest.approx(100.0) for value in scored if value is not None)


def test_the_text_of_a_dataset_is_advised_to_learn_alignments_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"it is {number} now" for number in range(5)]
    data = text_data(tmp_path, {"de": lines, "en": lines})
    more = ["--train", f"{data}/text/train.de", f"{data}/text/train.en"]
    command = ["analyze", "difficulty", "--data", str(data)]
    assert main(command) == 0
    assert f"`{' '.join(more)}`" in " ".join(capsys.readouterr().err.split())
    assert main([*command, *more]) == 0
    assert "warning" not in capsys.readouterr().err
    # Without more text, there is no advice if enough pairs were learned from.
    (data / "text" / "train.de").unlink()
    for least, warned in ((6, True), (5, False)):
        monkeypatch.setattr(align, "LEAST_PAIRS", least)
        assert main(command) == 0
        assert ("learned from only 5 pairs" in " ".join(capsys.readouterr().err.split())) == warned
    align.warn_of_little(1)
    assert "learned from only 1 pair:" in " ".join(capsys.readouterr().err.split())


def test_paths_of_two_systems(home: Path, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    command = ["analyze", "paths", str(home / "slow.jsonl"), f"quick={home / 'fast.jsonl'}",
               "--train", str(home / "source"), str(home / "target"), "--line", "3",
               "--out", str(tmp_path / "p.svg"), "--json", str(report), "--words",
               "--reference", str(home / "target")]  # fmt: skip
    assert main(command) == 0
    slow, quick = json.loads(report.read_text())["systems"]
    assert (slow["system"], quick["system"]) == ("slow", "quick")
    assert slow["al"] > quick["al"] and slow["mean_delay"] > quick["mean_delay"]
    assert slow["anticipation_percent"] < quick["anticipation_percent"]
    assert (tmp_path / "p.svg").is_file()


def test_bad_input_of_align_and_difficulty(home: Path, refused: Callable[..., str]) -> None:
    source, target = home / "source", home / "target"
    texts = ("-s", source, "-r", target)
    for command, message in (
        (("align", source, source), "as source and as target"),
        (("align", source, home / "short"), "short:200: it has 199 lines"),
        (("align", source, home / "empty"), "empty"),
        (("align", source, target, "--gold", home / "outside"), "the link `999-0` points outside"),
        (("align", source, target, "--out", source), "give another file"),
        (("difficulty", *texts, "--alignments", home / "outside"), "outside:200: the link `999-0`"),
        (("difficulty", *texts, "--alignments", home / "short"), "short:200: it has 199 lines"),
        (("difficulty", *texts, "--alignments", home / "empty"), "the file is empty"),
        (("difficulty", *texts, "--alignments", target), "is not a link"),
        (("difficulty", *texts, "--alignments", home / "gold", "--train", source, target),
         "`--train` has no effect"),
        (("difficulty", *texts, "--alignments", home / "gold", "--heuristic", "union"),
         "`--heuristic` has no effect"),
        (("difficulty", *texts, "--bootstrap", "5"), "`--bootstrap` is for scores of transl"),
        (("difficulty", *texts, "--lowercase"), "`--lowercase` is for scores of translations"),
        (("difficulty", "-s", home / "blank", "-r", home / "blank2"), "No pair has words on both"),
        (("difficulty", *texts, "--edges", "3,1"), "`--edges 3,1`: boundaries must rise, but"),
        (("difficulty", *texts, "--edges", "1,inf"), "`--edges 1,inf`: boundaries must be finite"),
        (("difficulty", *texts, "--edges", "a"), "numbers separated"),
        (("difficulty", *texts, home / "short"), "lines"),
        (("difficulty", *texts, "--difficulty-out", home / "no" / "d"), "there is no folder"),
        (("difficulty", *texts, "--difficulty-out", home / "d", "--json", home / "d"),
         "d` is also the file of `--json`"),
        (("difficulty", *texts, "--alignments-out", home / "d.png", "--out", home / "d.png"),
         "d.png` is also the file of `--out`"),
        (("alignments", home / "slow.jsonl", "--pharaoh", home / "d", "--json", home / "d"),
         "d` is also the file of `--json`"),
    ):  # fmt: skip
        assert message in refused("analyze", *command)


def test_bad_input_of_paths(home: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    slow, fast = home / "slow.jsonl", home / "fast.jsonl"
    short = tmp_path / "short.jsonl"
    write(short, fast.read_text().split("\n")[:9])
    write(tmp_path / "few", ["a"] * 9)
    for command, message in (
        ((slow, short), "short.jsonl: it has 9 lines"),
        ((slow, fast, "--alignments", home / "gold"), "There are 2 systems, but 1 files"),
        ((slow, "--alignments", home / "gold"), "it has 200 lines for 20"),
        ((slow, "--attention"), "The traces contain no alignments"),
        ((slow, "--attention", "--alignments", home / "gold"), "exclude each other"),
        ((slow, "--line", "3"), "say where"),
        ((slow, "--attention", "--heuristic", "union"), "with `--attention` there are none"),
        (
            (slow, "--alignments", home / "gold", "--heuristic", "union"),
            "`--heuristic` is for learned links; with `--alignments`",
        ),
        ((slow, "--line", "99", "--out", tmp_path), "no line 99"),
        ((slow, "--reference", tmp_path / "few"), "few: it has 9 lines, but there are traces of"),
        ((slow, slow), "Two systems have the name `slow`"),
        ((home / "source",), "this is not a trace"),
    ):
        assert message in refused("analyze", "paths", *command)


def test_options_without_effect(tmp_path: Path, refused: Callable[..., str]) -> None:
    for command, message in (
        ("compare a b -r r --seed 3", "add `--bootstrap N` or `--randomisation N`"),
        ("latency a --title T", "`--title` is that of the figure: add `--out FILE`"),
        ("exits a --line 3 --examples 2 --json r", "so `--examples` would be ignored"),
    ):
        assert message in refused("analyze", *command.split())
    assert not (tmp_path / "r").exists()


REFERENCE = ["the red house .", "a dog sees the cat .", "she runs", "under the bridge", ""]
FIRST = ["the red house .", "a dog see the cat .", "she run", "", "word"]
SECOND = ["the blue house .", "the dog sees a cat .", "she runs", "under a bridge", ""]
SOURCE = ["w x y z", "q r s t", "u v", "m n o p q r", "x"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with `one`, `two`, `reference`, `source`, `levels` and traces of `one`."""
    texts = {"one": FIRST, "two": SECOND, "reference": REFERENCE, "source": SOURCE}
    for name, lines in texts.items():
        write(tmp_path / name, lines)
    write(tmp_path / "levels", ["0.5", "1.5", "nan", "7", "1"])
    traces = []
    for number, line in enumerate(FIRST, start=1):
        words = line.split()
        traces.append(Trace(number, words, words, line, [-0.1] * (len(words) + 1), -0.1, -0.1))
    write(tmp_path / "one.jsonl", [trace.to_line() for trace in traces])
    return tmp_path


def write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def named(files: Path, *options: str) -> list[str]:
    return [str(files / part) if (files / part).exists() else part for part in options]


def run(files: Path, name: str, *options: str) -> dict[str, Any]:
    report = files / "report.json"
    assert main(["analyze", name, *named(files, *options), "--json", str(report)]) == 0
    values: dict[str, Any] = json.loads(report.read_text())
    return values


def test_buckets(files: Path) -> None:
    actual = run(
        files, "buckets", "one", "two", "-r", "reference", "-s", "source", "--edges", "3",
        "--by", "reference-length", "--out", str(files / "pictures"),
    )  # fmt: skip
    first = actual["buckets"][0]
    assert first["sentences"] == [2, 3]
    assert [entry["system"] for entry in first["systems"]] == ["one", "two"]
    expected = quality.bleu([SECOND[n] for n in (0, 1, 3)], [REFERENCE[n] for n in (0, 1, 3)])
    assert first["systems"][1]["bleu"][1] == pytest.approx(expected.value)
    assert actual["signature_bleu"] == expected.signature
    assert [Path(path).is_file() for path in actual["pictures"]] == [True]

    def by(*options: str) -> list[str]:
        actual = run(files, "buckets", "one", "-r", "reference", *options)
        return [entry["by"] for entry in actual["buckets"]]

    assert by() == ["reference-length"]
    assert by("-s", "source") == ["reference-length", "length-ratio"]
    assert by("--difficulty", "levels") == ["difficulty"]
    both = ["reference-length", "sentence-bleu"]
    assert by("--by", both[1], "--by", both[0]) == both
    actual = run(files, "buckets", "one", "-r", "reference", "--difficulty", "levels")
    first = actual["buckets"][0]
    assert first["sentences_without"] == 1
    # Empty buckets are left out.
    assert [entry["bucket"] for entry in first["buckets"]] == ["< 1", "1–2", "≥ 6"]
    assert [entry["least"] for entry in first["buckets"]] == [None, 1.0, 6.0]
    assert first["sentences"] == [1, 2, 1]


def test_traces_are_texts(files: Path) -> None:
    result = run(files, "lengths", "one", f"traced={files / 'one.jsonl'}", "-r", "reference")
    plain, traced = result["lengths"]
    assert plain["system"] == "one" and traced["system"] == "traced"
    assert {**plain, "system": ""} == {**traced, "system": ""}
    # Numbers of tokens: 4 + 6 + 2 + 0 + 1 against 4 + 6 + 2 + 3 + 0.
    assert plain["length_ratio"] == pytest.approx(13 / 15)
    assert plain["sentences_by_difference"] == {"-3": 1, "0": 3, "1": 1}


def test_compare(files: Path) -> None:
    result = run(
        files, "compare", "one", "two", "-r", "reference", "-s", "source", "--ter",
        "--bootstrap", "30", "--randomisation", "30", "--train", "reference",
    )  # fmt: skip
    assert set(result["scores"]["systems"][1]) == {"system", "bleu", "chrf", "ter"}
    tests = [(test["test"], test["samples"]) for test in result["tests"]]
    assert tests == [("bootstrap", 30), ("randomisation", 30)]
    assert result["word_accuracy"]["frequency_in"] == "training text"
    assert result["examples"][0]["better_second"][0]["line"] in (3, 4)


def test_a_comparison_has_the_same_defaults_in_a_report() -> None:
    command = CompareArguments(systems=["a"])
    # A report sets its own number of bootstrap samples.
    for field in dataclasses.fields(ComparisonOptions):
        assert getattr(command, field.name) == field.default, field.name


def test_a_side_in_lower_case_is_warned_of(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(files / "cased", [line.capitalize() for line in REFERENCE])
    for options, is_warned in (
        (("one", "-r", "cased"), True),
        (("one", "-r", "cased", "--lowercase"), False),
        (("one", "-r", "reference"), False),
    ):
        for name in ("compare", "buckets"):
            capsys.readouterr()
            run(files, name, *options)
            message = " ".join(capsys.readouterr().err.split())
            assert ("`one` is in lower case and the references are not" in message) == is_warned
            assert ("add `--lowercase` or give the dataset with `--data`" in message) == is_warned
    # The dataset has capitals, so the advice must not be to give it.
    data = text_data(files, {"de": list("abcde"), "en": [line.title() for line in REFERENCE]})
    capsys.readouterr()
    run(files, "compare", "one", "--data", str(data))
    message = " ".join(capsys.readouterr().err.split())
    assert "`one` is in lower case" in message and "add `--lowercase`." in message
    assert "--data" not in message


def test_traces_of_another_source_are_warned_of(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not if it is tokenised differently, has other units, or differs in only two of five lines."""
    lines = {
        "joined": [["Ei@@", "n", "&quot;", "Ha@@", "us", "&quot;"]] * 5,
        "marked": [["▁ein", '▁"', "ha", "us", '"']] * 3 + [["▁ein", "▁Baum"]] * 2,
        "other": [["ein", "Haus"]] * 2 + [["ein", "Baum"]] * 3,
    }
    for name, sources in lines.items():
        traces = [
            Trace(number, source, [], "a", [-0.1], -0.1, -0.1).to_line()
            for number, source in enumerate(sources, start=1)
        ]
        write(files / f"{name}.jsonl", traces)
    write(files / "houses", ['Ein "Haus"'] * 5)
    systems = [f"{name}.jsonl" for name in lines]
    for options, first in (((), "that of `joined`"), (("-s", "houses"), "the given source")):
        run(files, "compare", *systems, "one", "-r", "reference", *options)
        message = " ".join(capsys.readouterr().err.split())
        assert message.count("The source of") == 1
        assert f"The source of `other` differs from {first} in 3 of 5 lines" in message


@pytest.fixture(scope="module")
def turkish(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lower-cased dataset into Turkish, whose I is not the metrics' i."""
    folder = tmp_path_factory.mktemp("turkish")
    sides = {"en": [f"It is {n}, he said" for n in range(8)],
             "tr": [f"İki Işık {n}, IRMAK dedi" for n in range(8)]}  # fmt: skip
    for name in ("train", "valid", "test"):
        for language, lines in sides.items():
            write(folder / f"{name}.{language}", lines)
    data = str(folder / "data")
    command = ["preprocess", "--source-lang", "en", "--target-lang", "tr", "--lowercase"]
    for name in ("train", "valid", "test"):
        command += [f"--{name}", str(folder / name)]
    assert main([*command, "--out", data]) == 0
    assert main(["bpe", "learn", data, "--merges", "10"]) == 0
    return folder


def test_scores_on_a_dataset_are_those_of_decode(
    turkish: Path, tmp_path: Path, tiny_model: Path, refused: Callable[..., str]
) -> None:
    """Also on a lower-cased dataset, whose reference files on their own have capitals."""
    data = turkish / "data"
    dataset = Dataset.open(data)
    split, moses = dataset.split("test"), dataset.pipeline.target.moses
    lines = [line.replace("dedi", "demiş" if n % 2 else "dedi")
             for n, line in enumerate(split.tokenized_target())]  # fmt: skip
    translations = [
        Translation(n, [], [], [moses.detokenize(line)], line, []) for n, line in enumerate(lines)
    ]
    expected = decode_scores(translations, split, moses, with_ter=True)
    text = tmp_path / "out"
    write(text, [translation.text for translation in translations])
    report = tmp_path / "report.json"
    command = ["analyze", "compare", str(text), "--json", str(report), "--ter"]
    assert main([*command, "--data", str(data), "--split", "test"]) == 0
    values = json.loads(report.read_text())
    (scores,) = values["scores"]["systems"]
    for name in ("bleu", "chrf", "ter"):
        assert scores[name] == expected[name]
        assert values["scores"][f"signature_{name}"] == expected[f"signature_{name}"]
    assert values["lowercase"] and values["corpus"] == f"{turkish.name} en-tr, test"
    assert 0 < scores["bleu"] < 100
    # With the file only, dotted and dotless, large and small letters make different words.
    assert main([*command, "-r", str(data / "raw" / "test.tr")]) == 0
    (alone,) = json.loads(report.read_text())["scores"]["systems"]
    assert alone["bleu"] < scores["bleu"]
    for options, words in (
        (["--data", data, "-r", text], "`--data` provides what `--reference` gives"),
        (["--split", "test", "-r", text], "`--split` names a part of a dataset"),
        ([], "`--reference FILE` is missing"),
        (["--data", data, "--split", "tset"], "Did you mean `test`?"),
        (["--data", data, "--split", "train"], "The raw text of `train` is not stored"),
        (["--data", tmp_path], "is not a dataset"),
        (["--data", tiny_model], "It is a model"),
    ):
        assert words in refused("analyze", "compare", text, *options)
    write(tmp_path / "short", lines[:3])
    message = refused("analyze", "compare", tmp_path / "short", "--data", str(data))
    assert "test.tr:4: it has 8 lines, but" in message and "short has 3" in message


def test_tokenised_datasets_are_scored_as_they_are(tmp_path: Path) -> None:
    """13a would split an escape such as `&apos;` into three words."""
    for lang, words in (("de", "ich weiß es nicht ,"), ("en", "i don &apos;t know ,")):
        lines = [f"{words} {n}" for n in range(20)]
        for split in ("train", "valid", "test"):
            write(tmp_path / f"{split}.{lang}", lines)
    data, text, report = (tmp_path / name for name in ("data", "out", "report.json"))
    files = [f"--{split}={tmp_path / split}" for split in ("train", "valid", "test")]
    languages = ["--source-lang", "de", "--target-lang", "en"]
    plan = ["preprocess", *languages, "--tokenize", "none", *files, "--out", str(data)]
    assert main(plan) == 0
    assert main(["bpe", "learn", str(data), "--words", "--min-count", "1"]) == 0
    lines = [f"i do n &apos;t know , {n}" for n in range(20)]
    write(text, lines)
    dataset = Dataset.open(data)
    translations = [Translation(n, [], [], [line], line, []) for n, line in enumerate(lines)]
    expected = decode_scores(
        translations, dataset.split("test"), dataset.pipeline.target.moses, with_ter=False
    )
    measured = {}
    for tokenize in ([], ["--tokenize", "13a"]):
        command = ["analyze", "compare", str(text), "--data", str(data), "--json", str(report)]
        assert main([*command, *tokenize]) == 0
        scores = json.loads(report.read_text())["scores"]
        (system,) = scores["systems"]
        measured[scores["signature_bleu"]] = system["bleu"]
    names = (expected["signature_bleu_tokenized"], expected["signature_bleu"])
    assert measured == dict(zip(names, (expected["bleu_tokenized"], expected["bleu"]), strict=True))
    assert "tok:none" in names[0] and "tok:13a" in names[1]


def test_copies_of_a_lower_cased_dataset_are_perfect(turkish: Path, tmp_path: Path) -> None:
    """Systems and training text are lower-cased like the references: I becomes ı."""
    data, report = turkish / "data", tmp_path / "report.json"
    text = data / "raw" / "test.tr"
    copy, train = tmp_path / "copy", tmp_path / "train"
    copy.write_bytes(text.read_bytes())
    write(train, ["IRMAK İki", "IRMAK"])
    command = ["analyze", "compare", str(copy), "--data", str(data), "--train", str(train)]
    assert main([*command, "--ter", "--json", str(report)]) == 0
    values = json.loads(report.read_text())
    (scores,) = values["scores"]["systems"]
    assert (scores["bleu"], scores["chrf"], scores["ter"]) == pytest.approx((100, 100, 0))
    accuracy = values["word_accuracy"]
    buckets = dict(zip(accuracy["buckets"], accuracy["reference_words"], strict=True))
    # The 8 lines are `iki ışık 0 , ırmak dedi`; the training text has `iki` once, `ırmak` twice.
    assert (buckets["0"], buckets["1"], buckets["2"]) == (4 * 8, 8, 8)


@pytest.mark.parametrize("form", ["moses", "none"])
def test_text_without_spaces_is_scored_as_decode_does(form: str, tmp_path: Path) -> None:
    data = text_data(tmp_path, CHINESE, "--tokenize", form)
    text, report = tmp_path / "out", tmp_path / "report.json"
    lines = [line.replace("猫，", "狗") for line in CHINESE["zh"]]
    write(text, lines)
    dataset = Dataset.open(data)
    moses = dataset.pipeline.target.moses
    translations = [
        Translation(n, [], [], [line], moses.tokenize(line), []) for n, line in enumerate(lines)
    ]
    expected = decode_scores(translations, dataset.split("test"), moses, with_ter=True)
    command = ["analyze", "compare", str(text), "--data", str(data), "--ter"]
    assert main([*command, "--json", str(report)]) == 0
    scores = json.loads(report.read_text())["scores"]
    (system,) = scores["systems"]
    for name in ("bleu", "ter"):
        assert system[name] == pytest.approx(expected[name])
        assert scores[f"signature_{name}"] == expected[f"signature_{name}"]
    # One of the 11 characters of each line is replaced, and one is left out.
    theirs = BLEU(tokenize="zh").corpus_score(lines, [CHINESE["zh"]])
    assert system["bleu"] == pytest.approx(theirs.score) and "tok:zh" in scores["signature_bleu"]
    assert system["ter"] == pytest.approx(100 * 2 / 11)
    assert expected["length_ratio"] == pytest.approx(10 / 11)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("ref.zh", [], "zh"),
        ("ref.zh_CN.txt.gz", [], "zh"),
        ("ref.ja", [], "char"),
        ("reference", [], "char"),
        ("ref.zh", ["--tokenize", "13a"], "13a"),
    ],
)
def test_files_without_spaces_are_scored_by_characters(
    name: str, options: list[str], expected: str, tmp_path: Path
) -> None:
    """The file's suffix is the language, if it looks like a language code."""
    lines = [line.replace("猫", "狗") for line in CHINESE["zh"]]
    write(tmp_path / "out", lines)
    text = "\n".join(CHINESE["zh"]).encode() + b"\n"
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    report = tmp_path / "report.json"
    command = ["analyze", "compare", str(tmp_path / "out"), "-r", str(tmp_path / name), *options]
    assert main([*command, "--json", str(report)]) == 0
    scores = json.loads(report.read_text())["scores"]
    theirs = BLEU(tokenize=expected).corpus_score(lines, [CHINESE["zh"]])
    assert scores["systems"][0]["bleu"] == pytest.approx(theirs.score)
    assert f"tok:{expected}" in scores["signature_bleu"]


@pytest.mark.parametrize(("source", "target"), [("zh", "en"), ("en", "zh")])
def test_each_side_has_tokens_of_its_own(source: str, target: str, tmp_path: Path) -> None:
    """11 Chinese characters and 7 English words per line, from files and from a dataset."""
    sides = {language: CHINESE[language] for language in (source, target)}
    data, report = text_data(tmp_path, sides), tmp_path / "report.json"
    files = [f"{option}={tmp_path / 'text'}.{language}" for option, language in
             (("--source", source), ("--reference", target))]  # fmt: skip
    write(tmp_path / "out", CHINESE[target])
    for options in ([f"--data={data}"], files):
        for by, language in (("source-length", source), ("reference-length", target)):
            command = ["analyze", "buckets", str(tmp_path / "out"), *options, "--by", by]
            assert main([*command, "--edges", "7,8,11,12", "--json", str(report)]) == 0
            (measured,) = json.loads(report.read_text())["buckets"]
            (bucket,) = measured["buckets"]
            assert bucket["least"] == {"en": 7, "zh": 11}[language]


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        ("这是第二只猫，在家里。", (), "tokeniser `13a` (of the source: `zh`)."),
        ("这是第二只猫，在家里。", ("none",), "white space (of the source: `zh`)."),
        ("a b", ("13a", True), "tokeniser `13a`, in lower case."),
        (None, ("zh",), "tokeniser `zh`."),
    ],
)
def test_tokens_of_both_sides_are_described(
    source: str | None, options: tuple[Any, ...], expected: str
) -> None:
    sources = None if source is None else [source]
    evaluated = Evaluation.of([], ["a b"], sources, *options, languages=("zh", "en"))
    assert evaluated.describe_tokens().endswith(expected)


def test_a_dataset_has_source_and_words_too(turkish: Path, tmp_path: Path) -> None:
    text, report, pictures = tmp_path / "out", tmp_path / "r.json", tmp_path / "p"
    write(text, [f"iki ışık {n}, ırmak dedi" for n in range(8)])
    command = ["--data", str(turkish / "data"), "--json", str(report)]
    assert main(["analyze", "buckets", str(text), *command, "--out", str(pictures)]) == 0
    by = [bucket["by"] for bucket in json.loads(report.read_text())["buckets"]]
    assert by == ["reference-length", "length-ratio"]
    assert main(["analyze", "lengths", str(text), *command]) == 0
    assert json.loads(report.read_text())["lengths"][0]["share_equal"] == 1.0
    links = tmp_path / "links"
    # There is a sixth word only if the comma is a word.
    write(links, ["0-0 5-5"] * 8)
    assert main(["analyze", "difficulty", *command, "--alignments", str(links)]) == 0
    assert json.loads(report.read_text())["difficulty"]["sentences"] == 8
    page = tmp_path / "page.html"
    assert main(["analyze", "report", str(text), *command, "--alignments", str(links),
                 "--bootstrap", "20", "--out", str(page)]) == 0  # fmt: skip
    names = list(json.loads(report.read_text()))
    assert names == ["compare", "buckets", "lengths", "difficulty"]
    assert f"<h1>Translation systems compared: {turkish.name} en-tr, test</h1>" in page.read_text()


@pytest.mark.parametrize("name", ["buckets", "lengths", "compare"])
def test_files_at_fault(name: str, files: Path, refused: Callable[..., str]) -> None:
    (files / "empty").write_text("")
    write(files / "short", FIRST[:3])
    write(files / "blank", [""] * len(REFERENCE))
    for systems, words in (
        (["one", "short"], "short:4: it has 3 lines, but"),
        (["empty"], "empty"),
        (["one", "one"], "Two systems have the name `one`"),
        (["one", "reference"], "is the reference"),
        (["nowhere"], "no such file"),
        (["one", "--json", "one"], "is also the file of"),
    ):
        assert words in refused("analyze", name, *named(files, *systems, "-r", "reference"))
    run(files, name, "blank", "two", "-r", "reference")
    if name == "compare":
        options = named(files, "one", "-r", "reference", "--bootstrap", "10")
        assert "give two or more" in refused("analyze", "compare", *options)


@pytest.mark.parametrize("name", ["buckets", "compare"])
@pytest.mark.parametrize(
    ("system", "source", "words"),
    [
        ("one", "short", "short:5: it has 4 lines"),
        ("one", "reference", "source and as ref"),
        ("source", "source", "is the source"),
    ],
)
def test_sources_at_fault(
    name: str, system: str, source: str, words: str, files: Path, refused: Callable[..., str]
) -> None:
    write(files / "short", SOURCE[:4])
    options = named(files, system, "-r", "reference", "-s", source)
    assert words in refused("analyze", name, *options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--edges", "20,10", "--by", "reference-length"], "must rise, but 10 follows 20"),
        (["--edges", "1,x"], "numbers separated by commas are needed"),
        (["--edges", "1,nan"], "one is nan"),
        (["--by", "length-ratio"], "add `--source FILE`"),
        (["--by", "difficulty"], "`--difficulty FILE`"),
        (["--by", "lenght-ratio"], "Did you mean `length-ratio`?"),
        (["--metric", "blue"], "Did you mean `bleu`?"),
        (["--difficulty", "levels", "--by", "reference-length"], "has no effect"),
        (["--by", "source-length", "--by", "reference-length", "--edges", "1"], "give one `--by`"),
        (["--by", "sentence-bleu", "--metric", "bleu"], "leave out `--metric`"),
        (["--difficulty", "source"], "source:1: `w x y z` is not a number"),
        (["--difficulty", "few"], "few:3: it has 2 lines"),
    ],
)
def test_refused(options: list[str], words: str, files: Path, refused: Callable[..., str]) -> None:
    write(files / "few", ["1", "2"])
    assert words in refused("analyze", "buckets", *named(files, "one", "-r", "reference", *options))


@pytest.mark.parametrize("name", ["buckets", "compare", "lengths", "difficulty"])
def test_pipes_are_read_but_once(name: str, files: Path) -> None:
    """`<(command)` can be read only once, even if several parts of a command use it."""
    takes_source = name in ("compare", "difficulty")
    # Text from a pipe has no name.
    options = ["one", "--corpus", "C", "-r"]
    plain = run(files, name, *options, "reference", *(["-s", "source"] * takes_source))
    with ExitStack() as stack:
        pipes = {text: str(stack.enter_context(piped((files / text).read_bytes())))
                 for text in ("reference", "source")}  # fmt: skip
        source = ["-s", pipes["source"]] * takes_source
        assert run(files, name, *options, pipes["reference"], *source) == plain
