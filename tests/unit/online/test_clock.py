"""Decoding against the clock: the same translations, and seconds that are counted by hand."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.cli.app import main
from nmtgrid.cli.online_eval import files
from nmtgrid.metrics.latency import seconds_per_token, word_ends
from nmtgrid.online import stream as stream_module
from nmtgrid.online.evaluate import (
    ClockedDecoder,
    Decoded,
    OnlineDecoder,
    elapsed_of_words,
    instances,
    measure,
)
from nmtgrid.online.policies import WaitK
from nmtgrid.online.settings import Setting, read_settings
from nmtgrid.online.simuleval import read_log
from nmtgrid.online.stream import StreamTranslator
from nmtgrid.search.long_sources import SourceLimits
from tests.unit.helpers.tiny_online import plain_outcome, sentence, sentences, toy_home, translator


def test_the_clock_changes_no_translation() -> None:
    online, pairs = translator("pervasive", reader="shared"), sentences()[:5]
    texts = ["confidence threshold=0.3", "local-agreement n=2"]
    settings = read_settings("2,inf", "0.4", None, texts)
    done: list[int] = []
    timed = ClockedDecoder(online).run(pairs, settings, lambda _, lines, __: done.append(lines))
    for batched, alone in zip(OnlineDecoder(online).run(pairs, settings), timed, strict=True):
        assert alone.is_timed and not batched.is_timed
        for expected, outcome in zip(batched.outcomes, alone.outcomes, strict=True):
            assert (outcome.units, outcome.text) == (expected.units, expected.text)
            assert outcome.reads == expected.reads
            assert outcome.hypothesis.log_probabilities == pytest.approx(
                expected.hypothesis.log_probabilities, rel=1e-4, abs=1e-4
            )
            assert len(outcome.seconds) == len(outcome.reads)
            assert all(a <= b for a, b in itertools.pairwise([0.0, *outcome.seconds]))
            assert not outcome.reads or outcome.seconds[0] > 0
    assert sum(done) == len(settings) * len(pairs)


def test_prefixes_are_searched_as_in_batches() -> None:
    """The plan's coverage penalty chooses among the hypotheses of a beam."""
    online, pairs = translator("pervasive").with_search(beam=4), sentences()[:5]
    settings = read_settings(None, None, None, ["local-agreement n=1"])
    (plain,) = OnlineDecoder(online).run(pairs, settings)
    covering = online.with_search(coverage_penalty=5.0)
    (batched,) = OnlineDecoder(covering).run(pairs, settings)
    (alone,) = ClockedDecoder(covering).run(pairs, settings)
    units = [[outcome.units for outcome in each.outcomes] for each in (plain, batched, alone)]
    assert units[0] != units[1] == units[2]


def test_what_no_stream_can_follow() -> None:
    def faults(settings: list[Setting], beam: int = 1, **changes: Any) -> list[str]:
        online = translator("pervasive", **changes)
        online.plan = type(online.plan)(beam=beam)
        return ClockedDecoder(online).faults(settings)

    assert faults(read_settings("2,inf", None, None, ["local-agreement"])) == []
    (oracle, revised) = faults(read_settings(None, None, "0", ["re-translation"]))
    assert "needs the reference" in oracle and "a stream cannot" in revised
    (blind,) = faults(read_settings("inf", None, None), source_causal=False)
    assert "both directions" in blind
    (beam,) = faults(read_settings("2", None, None, ["local-agreement"]), 4)
    assert "`wait-k` is decoded greedily" in beam


@pytest.mark.parametrize("most", [None, 3])
def test_waiting_is_no_work(most: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by 1 whenever it is read, and by 100 while a word is waited for."""
    ticks = itertools.count()
    waits = [0]

    class Clock:
        @staticmethod
        def perf_counter() -> float:
            return next(ticks) + 100 * waits[0]

    online = translator("pervasive")
    limits = SourceLimits() if most is None else SourceLimits(most, most)
    streams = StreamTranslator(online.models, online.pipeline, WaitK(2), online.plan, limits=limits)
    line = streams.begin()
    monkeypatch.setattr(stream_module, "time", Clock)
    writes: list[list[int]] = []
    worked = 0
    for word in [*"cdefg", None]:
        line.end() if word is None else line.read(word)
        # One call of the clock as work begins, one for each write, one as it ends.
        for index, segment in enumerate(line.segments):
            writes += [[]] * (index == len(writes))
            for _ in segment.written_at[len(writes[index]) :]:
                worked += 1
                writes[index] = [*writes[index], worked]
        worked += 1
        waits[0] += 1
    assert (len(line.segments) > 1) == (most is not None)
    # The end symbols of inner segments are no part of the line's translation.
    assert line.seconds == [at for segment in writes[:-1] for at in segment[:-1]] + writes[-1]
    assert len(line.seconds) == len(line.hypothesis().reads or [])


def test_seconds_per_token_by_hand() -> None:
    # Steps of 1, 1, 2 and 4; the 95th percentile lies 0.85 of the way from 2 to 4.
    values = seconds_per_token([[1, 2], [], [2, 6]])
    assert values["seconds_per_token"] == 2.0
    assert values["seconds_per_token_p95"] == pytest.approx(2 + 0.85 * 2)
    nothing = seconds_per_token([[]])
    assert nothing == {"seconds_per_token": None, "seconds_per_token_p95": None}
    assert word_ends(4, ["c@@", "d", "e@@"], "@@") == [1, 3], "the last unit asks for another"


def test_elapsed_is_the_delay_with_all_work_added() -> None:
    """Words `ab c de`, of which all have come with `cd` and `e`; 120 a minute are 2 a second."""
    pair, empty = sentence(1, "ab c de", "c e"), sentence(2, "", "c")
    seconds = [0.1, 0.25, 0.5, 2.0]
    known = plain_outcome(["c@@", "d", "e"], "cd e", "cd e", [2, 3, 5, 5], seconds)
    assert elapsed_of_words(pair, known, "@@", 120) == [3 + 0.5, 3 + 1.0]
    pairs, outcomes = [pair, empty], [known, plain_outcome()]
    logged = instances(pairs, outcomes, "@@", 120)
    assert [instance.elapsed for instance in logged] == [[3.5, 4.0], ()]
    decoded = Decoded(Setting("wait-k", 2), outcomes, 2.0, is_timed=True)
    measured = measure(pairs, decoded, "@@", lowercase=False, words_per_minute=120)
    values = measured.values("token", "thesis")
    # Both words come later than the source is long: the first one's time is the lagging.
    assert values["computation_aware"]["al"] == 3.5
    assert values["computation_aware"]["ap"] == pytest.approx(7.5 / (3 * 2))
    # Steps of 0.1, 0.15, 0.25 and 1.5.
    assert values["seconds_per_token"] == 0.5
    untimed = measure(pairs, Decoded(decoded.setting, outcomes, 2.0), "@@", lowercase=False)
    assert "computation_aware" not in untimed.values("token", "thesis")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a toy dataset `data` and a model `grid`."""
    return toy_home(tmp_path_factory.mktemp("clock"), {"grid": ("pervasive", {})})


def test_the_command(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setattr(files, "SUFFIXES", ())
    logs, file = tmp_path / "logs", tmp_path / "r.json"
    data = ["online-eval", "grid", "--data", "data", "--device", "cpu", "--sentences", "4"]
    more = ["--clock", "--k", "2", "--simuleval", str(logs), "--json", str(file)]
    assert main([*data, *more, "--words-per-minute", "6000"]) == 0
    assert "ms/token" in capsys.readouterr().err
    values = json.loads(file.read_text())
    (row,) = values["settings"]
    assert values["words_per_minute"] == 6000
    assert 0 < row["seconds_per_token"] <= row["seconds"] and row["seconds_per_token_p95"] > 0
    for instance in read_log(logs / "k-2"):
        assert all(
            late > delay for late, delay in zip(instance.elapsed, instance.delays, strict=True)
        )
    assert main(["online-eval", "--log", str(logs / "k-2"), "--json", str(file)]) == 0
    assert json.loads(file.read_text())["computation_aware"] == pytest.approx(
        row["computation_aware"]
    )
    capsys.readouterr()
    options = ("--clock", "--oracle", "0", "--source", "line", "--words-per-minute", "0")
    assert main([*data, *options]) == 2
    message = " ".join(capsys.readouterr().err.split())
    for words in ("needs the reference", "leave out `--source line`", "must be above 0"):
        assert words in message
    assert main([*data, "--words-per-minute", "100"]) == 2
    assert "`--clock`" in capsys.readouterr().err
    assert main([*data, "--clock", "--beam", "2"]) == 2
    assert "greedily" in capsys.readouterr().err


def test_infinite_k_has_a_time_too() -> None:
    online = translator("transformer")
    (decoded,) = ClockedDecoder(online).run(sentences(), [Setting("wait-k", math.inf)])
    assert all(len(outcome.seconds) == len(outcome.reads) for outcome in decoded.outcomes)
