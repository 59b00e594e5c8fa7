"""SimulEval's logs; with the real program where NMTGRID_SIMULEVAL names an interpreter with it."""

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.base.errors import InputError, StorageError
from nmtgrid.metrics.latency import sentence_latency
from nmtgrid.online.simuleval import CONFIG, LOG, Instance, read_log, score, write_log

PROGRAM = os.environ.get("NMTGRID_SIMULEVAL", "")
needs_simuleval = pytest.mark.skipif(not PROGRAM, reason="NMTGRID_SIMULEVAL names no interpreter")

RECORD: dict[str, Any] = {
    "index": 0, "prediction": "a b", "delays": [2, 4], "elapsed": [0, 0], "prediction_length": 2,
    "reference": "c d e f", "source": "w x y z", "source_length": 4,
}  # fmt: skip


def _log(folder: Path, *records: dict[str, Any] | str) -> Path:
    path = folder / LOG
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_scores_in_both_conventions(tmp_path: Path) -> None:
    """By hand: see the same sentence among the tests of latency; the second one is skipped."""
    empty = RECORD | {"index": 1, "prediction": "", "delays": [], "prediction_length": 0}
    values = score(read_log(_log(tmp_path, RECORD, empty))).values()
    assert values["thesis"] == pytest.approx(
        {"ap": 6 / 8, "al": 2.0, "dal": 2.0, "cw": 2.0, "max_cw": 2.0}
    )
    assert values["simuleval"] == pytest.approx({"ap": 6 / 16, "al": 2.5, "dal": 2.0, "laal": 2.5})
    assert values["yaal"] == 2.0 and values["unit"] == "word"
    assert (values["sentences"], values["skipped"], values["yaal_skipped"]) == (2, 1, 1)
    assert values["length_ratio"] == pytest.approx(2 / 8)


def test_forms_of_logs(tmp_path: Path) -> None:
    path = _log(tmp_path, RECORD)
    assert read_log(tmp_path) == read_log(path)
    assert read_log(path)[0] == Instance(0, "a b", [2, 4], 4, "w x y z", "c d e f")
    # Without `source_length` the source's words count; a null reference is none.
    slim = {"index": 5, "prediction": "a", "delays": [3], "source": "x y z", "reference": None}
    (instance,) = read_log(_log(tmp_path, slim))
    assert (
        instance.source_length == 3
        and instance.reference is None
        and instance.reference_length == 1
    )
    # `</s>` and its delay go; reading the source's end counted as a word there.
    early = RECORD | {
        "prediction": "a b </s>",
        "delays": [2, 5, 5],
        "elapsed": [0, 0, 0],
        "metric": {"latency": {}},
    }
    (instance,) = read_log(_log(tmp_path, early))
    assert instance.prediction == "a b" and list(instance.delays) == [2, 4]
    (instance,) = read_log(_log(tmp_path, early | {"elapsed": [3, 6, 7]}))
    assert list(instance.elapsed) == [3, 6]
    late = {name: value for name, value in early.items() if name != "metric"}
    assert len(read_log(_log(tmp_path, late))[0].delays) == 3


WORDS = {
    "prediction": "the cat sat on the mat today", "delays": [1] * 7, "elapsed": [0] * 7,
    "reference": "the cat sat on the mat.",
}  # fmt: skip


@pytest.mark.parametrize(
    ("records", "value", "words"),
    [
        # By hand: 6 of 7 unigrams, 5 of 6, 4 of 5 and 3 of 4 match, and as many words as there
        # are in the reference: (6/7 x 5/6 x 4/5 x 3/4) ** (1/4) = (3/7) ** (1/4).
        ([WORDS], 100 * (3 / 7) ** 0.25, ""),
        ([WORDS | {"reference": "the cat sat on the mat . "}], 100 * (3 / 7) ** 0.25,
         "seem to be tokenised"),
        ([WORDS, {"reference": " "}], 100 * (3 / 7) ** 0.25, "1 references are empty"),
        ([WORDS | {"prediction": "", "delays": [], "elapsed": []}], None, "has no predictions"),
        ([WORDS | {"reference": ""}], None, "has no references"),
        ([WORDS, {"reference": None}], None, "1 of 2 sentences have no reference"),
    ],
)  # fmt: skip
def test_bleu_of_a_log(
    tmp_path: Path, records: list[dict[str, Any]], value: float | None, words: str
) -> None:
    """With SimulEval's own tokenizer, which parts a full stop from the word before it."""
    empty = {"prediction": "", "delays": [], "elapsed": []}
    path = _log(tmp_path, *(RECORD | empty | record | {"index": index}
                            for index, record in enumerate(records)))  # fmt: skip
    log_score = score(read_log(path))
    assert [words in note for note in log_score.notes] == [True] * bool(words)
    values = log_score.values()
    assert values["bleu"] == pytest.approx(value)
    assert ("|tok:13a|" in values["signature_bleu"]) if value else values["signature_bleu"] is None


def test_the_tokenizer_of_bleu(tmp_path: Path) -> None:
    """By hand: one word fewer in the reference; of its 6 the last is not matched.

    5 of 7 unigrams, 4 of 6, 3 of 5 and 2 of 4 match.
    """
    path = _log(tmp_path, RECORD | WORDS)
    log_score = score(read_log(path), "none")
    assert log_score.bleu is not None and "|tok:none|" in log_score.bleu.signature
    assert log_score.bleu.value == pytest.approx(100 * (5 / 7 * 4 / 6 * 3 / 5 * 2 / 4) ** 0.25)
    assert not log_score.notes


def test_references_without_spaces(tmp_path: Path) -> None:
    """The whole line is one word of 13a; by characters all but one match."""
    written = {"prediction": "红色的狗看见那只狗在花园外面。", "delays": [1], "elapsed": [0]}
    path = _log(tmp_path, RECORD | written | {"reference": "红色的狗看见那只狗在花园里面。"})
    log_score = score(read_log(path))
    assert log_score.bleu is not None and log_score.bleu.value == 0
    assert ["counts Chinese characters" in note for note in log_score.notes] == [True]
    by_characters = score(read_log(path), "zh")
    # 14 of 15 characters, 12 of 14 pairs, 10 of 13 triples and 9 of 12 of four match.
    expected = 100 * (14 / 15 * 12 / 14 * 10 / 13 * 9 / 12) ** 0.25
    assert by_characters.bleu is not None and not by_characters.notes
    assert by_characters.bleu.value == pytest.approx(expected)


def test_computation_aware_latency(tmp_path: Path) -> None:
    """By hand, with SimulEval's formulas on `elapsed`: |x| = 4 and |y| = 4, so r = 1."""
    measured = RECORD | {"elapsed": [2.5, 5.0]}
    log_score = score(read_log(_log(tmp_path, measured)))
    assert log_score.values()["computation_aware"] == pytest.approx({
        # (2.5 + 5.0) / (4 x 4)
        "ap": 7.5 / 16,
        # Both words lag, as the first read less than all; the last word is that of the cut.
        "al": (2.5 + (5.0 - 1)) / 2,
        "laal": (2.5 + (5.0 - 1)) / 2,
        # At the hypothesis' rate r = 2 the second word may begin at 4.5 at the earliest.
        "dal": (2.5 + (5.0 - 2)) / 2,
        # The second word comes when all is read.
        "yaal": 2.5,
    })  # fmt: skip
    assert log_score.values()["simuleval"] == score([Instance(0, "a b", [2, 4], 4, "w x y z",
                                                     "c d e f")]).values()["simuleval"]  # fmt: skip
    # Zeros are what SimulEval writes on text: nothing was measured.
    log_score = score(read_log(_log(tmp_path, RECORD)))
    assert log_score.computation_aware is None and not log_score.notes
    assert "computation_aware" not in log_score.values()


@pytest.mark.parametrize("elapsed", [[1.5, 5], [3, 2.5], [0, 0], []], ids=str)
def test_elapsed_that_is_no_delay_with_time_added(tmp_path: Path, elapsed: list[float]) -> None:
    good = RECORD | {"index": 1, "elapsed": [2.5, 5.0]}
    log_score = score(read_log(_log(tmp_path, good, RECORD | {"elapsed": elapsed})))
    assert log_score.computation_aware is None
    assert "`elapsed` of index 0 is not its delays" in "".join(log_score.notes)


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in RECORD.items() if key != name}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ('{"index": 0, "predic', "it is not JSON"),
        ("", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[1, 2]", "must be an object"),
        (
            json.dumps(RECORD).replace("[2, 4]", "[2, NaN]"),
            "`delays[1]` must be a number, but is `NaN`",
        ),
        (json.dumps(RECORD).replace("[2, 4]", "[2, 1e999]"), "too large a number"),
        (json.dumps(RECORD).replace("[2, 4]", "[2, 4" + "0" * 400 + "]"), "`delays[1]` must be"),
        (_without("index"), "`index` is missing"),
        (_without("prediction"), "`prediction` is missing"),
        (_without("delays"), "`delays` is missing"),
        (_without("reference"), "`reference` is missing"),
        ({k: v for k, v in RECORD.items() if not k.startswith("source")}, "`source_length` is mis"),
        (RECORD | {"delays": "2 4"}, "must be a list"),
        (RECORD | {"delays": [2, "4"]}, '`delays[1]` must be a number, but is `"4"`'),
        (RECORD | {"delays": [2, True]}, "a number, but is `true`"),
        (RECORD | {"delays": [-1, 4]}, "`delays[0]` must be at least 0, but is `-1`"),
        (RECORD | {"delays": [4, 2]}, "2 follows 4"),
        (RECORD | {"delays": [2, 3, 4]}, "3 delays for 2 predicted words"),
        (RECORD | {"elapsed": [2, 3, 4]}, "3 `elapsed` for 2 delays"),
        (RECORD | {"elapsed": [2, "4"]}, "`elapsed[1]` must be a number"),
        (RECORD | {"source": ["samples", "rate"]}, "`source` must be text"),
        (RECORD | {"source_length": 2.5}, "`source_length` must be a whole number"),
        (RECORD | {"source_length": -1}, "`source_length` must be at least 0"),
        (RECORD | {"index": True}, "`index` must be a number"),
        (RECORD | {"index": 7}, "`index` 7 is already in line 1"),
        (RECORD | {"prediction": 3}, "`prediction` must be text"),
    ],
)
def test_malformed_logs_are_named_by_line(
    tmp_path: Path, record: dict[str, Any] | str, words: str
) -> None:
    path = _log(tmp_path, RECORD | {"index": 7}, record)
    with pytest.raises(InputError) as caught:
        read_log(path)
    assert words in str(caught.value) and str(caught.value).startswith(f"{path}:2: ")


def test_places_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_log(tmp_path)
    with pytest.raises(InputError, match="empty"):
        read_log(_log(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        write_log(tmp_path / "file", [])


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    sentences = [
        Instance(0, "ein Wort\u2028mehr", [1, 2, 2], 2, "one  more", "noch ein Wort ", [1, 2.5, 3]),
        Instance(1, "", [], 0, "", ""),
    ]
    write_log(tmp_path / "new" / "folder", sentences)
    folder = tmp_path / "new" / "folder"
    assert (folder / CONFIG).read_text() == "source_type: text\ntarget_type: text\n"
    assert (folder / LOG).read_bytes().isascii()
    first, second = read_log(folder)
    assert first == Instance(0, "ein Wort mehr", [1, 2, 2], 2, "one more", "noch ein Wort ",
                             [1, 2.5, 3])  # fmt: skip
    assert second == sentences[1] and first.reference_length == 4
    record = json.loads((folder / LOG).read_text().splitlines()[0])
    assert set(record) == set(RECORD) and record["prediction_length"] == 3


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        (Instance(2, "a b", [1], 3, "", ""), "Sentence 3: there are 1 delays for 2"),
        (Instance(0, "a", [1], 3), "no reference"),
        (Instance(0, "a", [0], 0, "", "a"), "words for an empty source"),
    ],
)
def test_what_simuleval_could_not_score_is_not_written(
    tmp_path: Path, sentence: Instance, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        write_log(tmp_path / "out", [sentence])
    assert not (tmp_path / "out").exists()


# With the real program.

SCORERS = """
import json, sys
from simuleval.evaluator.instance import LogInstance
from simuleval.evaluator.scorers.latency_scorer import LATENCY_SCORERS_DICT
instances = {}
for line in open(sys.argv[1]):
    one = LogInstance(line.strip(), "word")
    instances[one.index] = one
found = {}
for name in ("AL", "LAAL", "AP", "DAL"):
    scorer = LATENCY_SCORERS_DICT[name](use_ref_len=True)
    each = {i: scorer.compute(one) for i, one in instances.items() if one.delays}
    found[name] = {"mean": scorer(instances), "each": each}
print(json.dumps(found))
"""

AGENT = """
from simuleval.agents import TextToTextAgent
from simuleval.agents.actions import ReadAction, WriteAction
from simuleval.utils import entrypoint

@entrypoint
class Turns(TextToTextAgent):
    def policy(self):
        lag = len(self.states.source) - len(self.states.target)
        if lag < 3 and not self.states.source_finished:
            return ReadAction()
        if self.states.source_finished:
            rest = self.states.source[len(self.states.target):][::-1] + ["end"]
            return WriteAction(" ".join(rest), finished=True)
        return WriteAction(self.states.source[len(self.states.target)].upper(), finished=False)
"""


def _random_sentence(source: random.Random, index: int) -> Instance:
    """Paths of every kind: none written, beyond the source, never all read, doubled blanks."""
    length, words = source.randint(1, 30), source.randint(0, 35)
    top = length + (source.random() < 0.1) * 3
    low = source.choice([0, 0, 0, top])
    delays = sorted(source.randint(low, top) for _ in range(words))
    if source.random() < 0.2:
        delays = [min(delay, length // 2) for delay in delays]
    blanks = source.choice([" ", " ", "  "])
    reference = blanks.join(["r"] * source.randint(0, 35))
    return Instance(index, " ".join(["w"] * words), delays, length, " ".join(["s"] * length),
                    reference)  # fmt: skip


def _simuleval(*arguments: str | Path) -> str:
    done = subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _check_scores(folder: Path) -> None:
    """Each sentence's and the corpus' values agree with SimulEval's own scorers to 1e-6."""
    sentences = read_log(folder)
    ours = sentence_latency(
        [s.delays for s in sentences], [s.source_length for s in sentences],
        [s.reference_length for s in sentences], unit="word", convention="simuleval",
    )  # fmt: skip
    values = score(sentences).values()
    theirs = json.loads(_simuleval("-c", SCORERS, folder / LOG))
    for name, their_scores in theirs.items():
        assert values["simuleval"][name.lower()] == pytest.approx(their_scores["mean"], abs=1e-6)
        each = getattr(ours, name.lower())
        assert len(their_scores["each"]) == len(sentences) - values["skipped"]
        for index, sentence in enumerate(sentences):
            if sentence.delays:
                assert each[index] == pytest.approx(
                    their_scores["each"][str(sentence.index)], abs=1e-9
                )


@needs_simuleval
def test_same_scores_as_simuleval(tmp_path: Path) -> None:
    source = random.Random(4)
    write_log(tmp_path, [_random_sentence(source, index) for index in range(2000)])
    _check_scores(tmp_path)


@needs_simuleval
def test_simuleval_scores_what_is_written(tmp_path: Path) -> None:
    """The program's table, rounded to three digits, agrees with ours."""
    source = random.Random(5)
    sentences = [_random_sentence(source, index) for index in range(50)]
    sentences[7] = Instance(7, "", [], 0, "", "not empty")
    write_log(tmp_path, sentences)
    table = _simuleval("-m", "simuleval.cli", "--score-only", "--output", tmp_path).splitlines()
    names, figures = table[-2].split(), [float(text) for text in table[-1].split()[1:]]
    assert names == ["BLEU", "LAAL", "AL", "AP", "DAL", "ATD"]
    scores = score(sentences).values()["simuleval"]
    for name, figure in zip(names, figures, strict=True):
        if name.lower() in scores:
            assert figure == pytest.approx(scores[name.lower()], abs=6e-4)


@needs_simuleval
def test_simulevals_own_log_is_scored(tmp_path: Path) -> None:
    """A small agent runs in the program; its log is read and scored as the program does it."""
    (tmp_path / "agent.py").write_text(AGENT)
    lines = ["a b c d e f g", "h", "i j k  l", "m n o p q r s t u v w x y"]
    (tmp_path / "source").write_text("\n".join(lines) + "\n")
    (tmp_path / "target").write_text("one two three\nfour \nfive six\nseven eight nine ten\n")
    _simuleval(
        "-m", "simuleval.cli", "--agent", tmp_path / "agent.py", "--source", tmp_path / "source",
        "--target", tmp_path / "target", "--output", tmp_path / "out",
    )  # fmt: skip
    instances = read_log(tmp_path / "out")
    assert [sentence.source_length for sentence in instances] == [7, 1, 4, 13]
    assert list(instances[0].delays) == [3, 4, 5, 6, 7, 7, 7, 7]
    assert (
        instances[1].reference_length == 2
    )  # the blank and the line's end stay in SimulEval's log
    _check_scores(tmp_path / "out")
