"""Reading policies with a guaranteed loss: the choice, 100 resplits, the command, stored names."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from nmtgrid.base.errors import ConfigError, NmtgridError, StorageError
from nmtgrid.cli.app import main
from nmtgrid.cli.online_eval import calibrate as cli_calibrate
from nmtgrid.cli.online_eval import files
from nmtgrid.data.dataset import Dataset
from nmtgrid.metrics import risk_control
from nmtgrid.metrics.risk_control import Guarantee, binomial_cdf
from nmtgrid.models.directory import LoadedModel
from nmtgrid.online import calibrate as module
from nmtgrid.online.calibrate import OFFLINE, calibrate, losses, refused_candidates, safest_first
from nmtgrid.online.evaluate import Decoded, Sentence
from nmtgrid.online.policy_presets import POLICY_FILE, Conditions, PolicyPreset, expand
from nmtgrid.online.settings import Setting, named_policies, read_policy, read_settings
from nmtgrid.online.simuleval_agent import add_arguments, make_translator
from nmtgrid.training.prepare import clear_folder
from tests.unit.helpers.bars import recorded_bars
from tests.unit.helpers.tiny_online import online, plain_outcome, refused, report, toy_home

MEANS = {9: 0.002, 7: 0.01, 5: 0.045, 4: 0.055, 3: 0.08, 1: 0.4}
"""The expected loss of wait-k, by k: k = 4 is a little above a bound of 5 percent."""
BOUND, CONFIDENCE, RUNS, COUNT = 0.05, 0.9, 100, 400
SURE = 0.999


class Simulated:
    """Decodes sentences to one unit, which wait-k has wrong with the chance of `MEANS`.

    Sentences are independent draws; on each of them a larger k is never worse.
    """

    def __init__(self, seed: int) -> None:
        self.luck = numpy.random.default_rng(seed).random(COUNT + 1)
        self.decoded: list[tuple[float, int]] = []

    def run(
        self, sentences: Sequence[Sentence], settings: Sequence[Setting], advance: Any
    ) -> Iterator[Decoded]:
        for setting in settings:
            self.decoded.append((setting.value, len(sentences)))
            chance = 0.0 if setting.is_offline else MEANS[int(setting.value)]
            units = [["x" if self.luck[s.line] < chance else "y"] for s in sentences]
            advance(setting, len(sentences), 0)
            yield Decoded(setting, [plain_outcome(unit) for unit in units], 0.0)


def sentences(count: int = COUNT) -> list[Sentence]:
    return [Sentence(n, ["a"], [1], ["a"], [4], [4], "a", "a") for n in range(1, count + 1)]


def simulated(seed: int, allowed: float = 100 * BOUND) -> tuple[module.Calibrated, Simulated]:
    decoder: Any = Simulated(seed)
    settings = [Setting("wait-k", float(k)) for k in MEANS]
    guarantee = Guarantee("agreement", allowed, CONFIDENCE)
    whole = [dataclasses.replace(sentences(1)[0], line=0, source=[]), *sentences()]
    done = calibrate(
        decoder, [*settings, OFFLINE], whole, guarantee, lambda _, decoded: decoded.setting.value,
        seed,
    )  # fmt: skip
    return done, decoder


def test_a_hundred_resplits_break_the_bound_no_more_often_than_they_may() -> None:
    """Of 100 choices at most 10 may have an expected loss above the bound, give or take chance.

    The tolerance is the number that a binomial of 100 draws with chance 0.1 exceeds once in a
    thousand times, 20.
    """
    tolerance = next(n for n in range(RUNS) if binomial_cdf(n, RUNS, 1 - CONFIDENCE) >= SURE)
    assert tolerance == 20
    failed = certified = failed_without_a_test = 0
    for seed in range(RUNS):
        calibrated, _ = simulated(seed)
        chosen = calibrated.chosen
        certified += chosen is not None
        failed += chosen is not None and MEANS[int(chosen.candidate.setting.value)] > BOUND
        # Whoever takes the fastest setting whose mean is below the bound is wrong far more often.
        below = [c for c in calibrated.candidates if c.loss <= BOUND]
        fastest = min(below, key=lambda candidate: candidate.latency)
        failed_without_a_test += MEANS[int(fastest.setting.value)] > BOUND
    assert failed <= tolerance < failed_without_a_test
    # The guarantee is not empty: k = 7, with an expected loss of 1 percent, passes nearly always.
    assert certified >= 95


def test_what_is_tested_and_chosen() -> None:
    calibrated, decoder = simulated(3)
    order = [result.candidate.setting.value for result in calibrated.calibration.tested]
    assert order == sorted(order, reverse=True), "from the slowest to the fastest"
    assert [result.passed for result in calibrated.calibration.tested][:-1].count(False) == 0
    chosen = calibrated.chosen
    assert chosen is not None and chosen is calibrated.calibration.passed[-1]
    # The sentence without a source is in neither half; only what is tested is decoded twice.
    half = COUNT // 2
    assert decoder.decoded == [
        *((k, half) for k in (math.inf, *MEANS)), (math.inf, half), *((k, half) for k in order)
    ]  # fmt: skip
    values = calibrated.values()
    assert values["setting"] == f"wait-k k={chosen.candidate.setting.value:g}"
    assert len(values["candidates"]) == len(MEANS) and values["sentences"] == half
    assert json.loads(json.dumps(values)) == values
    # Fewer sentences than could ever do: nothing is decoded.
    with pytest.raises(ConfigError, match="2,302 are needed"):
        simulated(1, 0.1)
    never, _ = simulated(5, 1.2)
    values = never.values()
    assert never.chosen is None and not values["certified"] and values["setting"] is None
    assert len(values["tested"]) == 1 and not values["tested"][0]["passed"]


@pytest.mark.parametrize(
    ("latencies", "rates", "expected"),
    [
        ([9, 5, 3, 1], [0, 0.1, 0.2, 0.9], [0, 1, 2, 3]),
        # The slowest is beaten by the second, the third by the fourth; of equals the first stays.
        ([9, 5, 3, 2], [0.1, 0.1, 0.3, 0.2], [1, 3]),
        ([5, 5], [0.1, 0.1], [0]),
        ([5, 5], [0.2, 0.1], [1]),
        # Nothing was written: no latency, and the fastest.
        ([math.nan, 4], [1.0, 0.1], [1, 0]),
        ([-1, 4], [0.5, 0.1], [1, 0]),
    ],
)
def test_safest_first(latencies: list[float], rates: list[float], expected: list[int]) -> None:
    assert safest_first(latencies, rates) == expected


def test_losses_leave_out_empty_sources() -> None:
    def decoded(*texts: str) -> Decoded:
        return Decoded(OFFLINE, [plain_outcome(t.split(), t, t) for t in texts], 0.0)

    three = [
        dataclasses.replace(s, source=[4] * (n != 1), reference="a b c d e")
        for n, s in enumerate(sentences(3))
    ]
    offline, online = decoded("a b c d e", "", "z"), decoded("a b c d x", "", "a b c d e")
    assert losses("agreement", offline, online, three).tolist() == [0.2, 1.0]
    lost = losses("bleu", offline, online, three)
    # 4 of 5 unigrams, 3 of 4 bigrams, 2 of 3 trigrams, 1 of 2 four-grams: the mean's logarithm.
    expected = 1 - (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    assert lost == pytest.approx([expected, 0.0]), "what is better makes up for nothing"


RAW, TOKENIZED = "我们今天去北京。", "我们今天去北京 。"
"""The first alone is without spaces: Moses sets the mark apart."""


def test_losses_of_text_without_spaces_are_of_characters() -> None:
    def decoded(words: str) -> Decoded:
        return Decoded(OFFLINE, [plain_outcome(words=words)], 0.0)

    (sentence,) = sentences(1)
    chinese = dataclasses.replace(sentence, reference=TOKENIZED, raw_reference=RAW)
    offline, online = decoded(TOKENIZED), decoded("我们今天去北海 。")
    lost = losses("bleu", offline, online, [chinese], "zh")
    # 7 of 8 characters, 5 of 7 pairs, 4 of 6 triples, 3 of 5 fours.
    assert lost == pytest.approx([1 - (7 / 8 * 5 / 7 * 4 / 6 * 3 / 5) ** 0.25])


@pytest.mark.parametrize(
    ("raw", "language", "expected"),
    [(RAW, "zh", "zh"), (RAW, "ja", "char"), ("We go to Peking.", "zh", "none")],
)
def test_every_loss_of_a_calibration_counts_the_same_words(
    raw: str, language: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []

    def recorded(baseline: list[str], *others: Any) -> Any:
        used.append(others[-1])
        return numpy.zeros(len(baseline))

    monkeypatch.setattr(risk_control, "bleu_losses", recorded)
    decoder: Any = Simulated(1)
    lines = [dataclasses.replace(line, raw_reference=raw) for line in sentences()]
    calibrate(
        decoder, [Setting("wait-k", 3.0)], lines, Guarantee("bleu", 5.0, 0.9), lambda *_: 3.0,
        language=language,
    )  # fmt: skip
    assert used == [expected] * 2


def test_texts_of_settings_are_read_as_they_were() -> None:
    texts = [
        "wait-k k=3", "wait-k k=inf", "threshold threshold=0.00001", "entropy most=0.5,3",
        "confidence threshold=0.1..0.9:0.1 floor=2 cap=7", "edatt mass=0.3 last=2,3",
        "local-agreement n=2 end_of_prefix=false",
    ]  # fmt: skip
    for text in [*texts, *named_policies("all")]:
        for setting in read_policy(text):
            assert read_policy(setting.text) == [setting]
    (short,) = read_settings("3", None, None)
    assert read_policy(short.text) == [short]


def test_refused_candidates() -> None:
    assert refused_candidates([Setting("wait-k", 3.0), OFFLINE]) == []
    for settings, words in (
        ([Setting("oracle", 1.0)], "needs the reference"),
        (read_policy("re-translation"), "its loss is 0"),
        ([OFFLINE], "read the whole source first"),
    ):
        (fault,) = refused_candidates(settings)
        assert words in fault


FAST = PolicyPreset(
    "fast", "confidence threshold=0.6 floor=2", "valid", "bleu", 2.0, 0.95, 0.8,
    Conditions(finish_reading=True), "best", "a",
)  # fmt: skip


def _loaded(folder: Path, checksum: str | None = "a", weights: str = "best") -> LoadedModel:
    none: Any = None
    return LoadedModel(none, none, {}, folder, weights, checksum)


def test_presets_are_kept_and_checked(tmp_path: Path) -> None:
    assert POLICY_FILE.load(tmp_path) == {}
    slow = dataclasses.replace(FAST, name="slow", policy="wait-k k=7")
    POLICY_FILE.save(tmp_path, [FAST])
    POLICY_FILE.save(tmp_path, [slow])
    assert POLICY_FILE.load(tmp_path) == {"fast": FAST, "slow": slow}
    assert expand(["k", "fast", "wait-k k=3"][1:], [tmp_path]) == (
        [FAST.policy, "wait-k k=3"], [FAST]
    )  # fmt: skip
    # Names of policies are looked up nowhere.
    assert expand(["confidence", "wait-k k=1", ""], [tmp_path / "no"])[1] == []
    said: list[str] = []
    good = Conditions(finish_reading=True)
    FAST.check(_loaded(tmp_path), good, said.append)
    assert said == []
    FAST.check(_loaded(tmp_path), Conditions(beam=4, exit="2"), said.append)
    for words in ("`--beam` is 4, not 1", "`--finish-reading` is off, not on",
                  "`--exit` is 2, not off", "does not hold"):  # fmt: skip
        assert words in said[0]
    FAST.check(_loaded(tmp_path, "b"), good, said.append)
    assert "tuned on other weights" in said[1] and "online-eval --allow-loss" in said[1]
    with pytest.raises(ConfigError, match="weights `best`, but `last`"):
        FAST.check(_loaded(tmp_path, "b", "last"), good, said.append)
    clear_folder(tmp_path)
    assert not (tmp_path / "policies.json").exists()


@pytest.mark.parametrize(
    ("text", "folders", "words"),
    [
        ("fats", 1, "none is stored under this name. Did you mean `fast`"),
        ("confidense", 1, "Did you mean `confidence`"),
        ("fast floor=3", 1, "`fast` is the stored setting `confidence threshold=0.6 floor=2`"),
        ("fast", 2, "several models are given"),
        ("fast", 0, "There is no reading policy `fast`"),
    ],
)
def test_names_that_cannot_be(text: str, folders: int, words: str, tmp_path: Path) -> None:
    POLICY_FILE.save(tmp_path, [FAST])
    with pytest.raises(ConfigError) as fault:
        expand([text], [tmp_path, tmp_path / "other"][:folders])
    assert words in fault.value.problem


GOOD: dict[str, Any] = {name: value for name, value in dataclasses.asdict(FAST).items()
                        if name != "name"}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "values", "kind", "message"),
    [
        ("a", 1, StorageError, "`settings.a` must be an object"),
        ("a", GOOD | {"policy": 3}, StorageError, "`policy`"),
        ("a", GOOD | {"policy": "luck"}, ConfigError, "is not a named policy"),
        ("a", GOOD | {"policy": ""}, ConfigError, "is not a named policy"),
        ("a", GOOD | {"policy": "x.py:A"}, ConfigError, "is not a named policy"),
        ("a", GOOD | {"policy": "confidence threshold=0.2,0.4"}, ConfigError, "gives 2 settings"),
        ("a", GOOD | {"policy": "wait-k k=0"}, ConfigError, "`k` must be"),
        ("a", GOOD | {"risk": "luck"}, StorageError, "`risk`"),
        ("a", GOOD | {"confidence": 2}, StorageError, "`confidence`"),
        ("a", GOOD | {"conditions": {"beam": 0}}, StorageError, "beam"),
        ("7", GOOD, ConfigError, "cannot be named"),
        ("wait-k", GOOD, ConfigError, "cannot be named"),
        ("all", GOOD, ConfigError, "cannot be named"),
    ],
)
def test_damaged_presets(
    name: str, values: Any, kind: type[NmtgridError], message: str, tmp_path: Path
) -> None:
    (tmp_path / "policies.json").write_text(json.dumps({"format": 1, "settings": {name: values}}))
    with pytest.raises(kind, match=message):
        POLICY_FILE.load(tmp_path)


# From the command line, on models with drawn weights.

POLICY = "confidence threshold=0.2..0.8:0.3 floor=2"
OPTIONS = ("--data", "data", "--sentences", 6, "--allow-loss", 99, "--confidence", 0.1,
           "--risk", "agreement")  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a toy dataset `data` and models."""
    models: Any = {"grid": ("pervasive", {}), "both": ("pervasive", {"source_causal": False})}
    return toy_home(tmp_path_factory.mktemp("calibrate"), models)


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    monkeypatch.setattr(files, "SUFFIXES", ())
    (home / "grid" / "policies.json").unlink(missing_ok=True)
    return home


def test_the_bar_of_a_calibration_has_an_end(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bars = recorded_bars(monkeypatch)
    assert online("grid", *OPTIONS, "--k", "1,3", "--no-keep") == 0
    stages = {bar.description: bar for bar in bars}
    # Two settings and offline translation of three sentences each; a setting that another one
    # beats is not tested.
    ordering, testing = (stages[f"calibrating, {stage}"] for stage in ("ordering", "testing"))
    assert (ordering.total, ordering.done) == (9, 9)
    assert testing.total == 9 and testing.done in (6, 9)


def test_from_a_calibration_to_a_stream(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting that is certified is evaluated, kept, and decodes by its name as by its text."""
    out = tmp_path / "out"
    more = ("--policy", POLICY, "--test-split", "test", "--out", out, "--k", "2,inf")
    assert online("grid", *OPTIONS, *more, "--latency", "dal", "--finish-reading") == 0
    shown = " ".join(capsys.readouterr().err.split())
    values = report(out / "results.json")
    calibrated = values["calibrated"]
    assert (values["split"], calibrated["split"]) == ("test", "valid")
    assert calibrated["certified"] and calibrated["p_value"] <= 0.9 and calibrated["loss"] <= 99
    assert calibrated["sentences"] == calibrated["ordering_sentences"] == 3
    assert calibrated["test"]["holds"] and calibrated["test"]["sentences"] == 6
    assert len(calibrated["candidates"]) == 4, "offline is what they are compared with"
    assert len(values["settings"]) == 2 and values["complete"]
    assert values["settings"][0]["k"] is None
    name = calibrated["stored"]
    assert name and name.endswith("-loss99") and f"stored as `--policy {name}`" in shown
    assert "Certified" in shown and "within the bound" in shown and "DAL" in shown
    preset = POLICY_FILE.load(Path("grid"))[name]
    assert preset.policy == calibrated["setting"] and preset.conditions.finish_reading
    # By name and by text: the same translations, with a warning where the guarantee ends.
    file = tmp_path / "r.json"
    results = []
    for policy in (name, calibrated["setting"]):
        command = ("grid", "--data", "data", "--sentences", 6, "--json", file, "--policy", policy)
        assert online(*command, "--finish-reading") == 0
        assert "calibrated under other conditions" not in capsys.readouterr().err
        (setting,) = report(file)["settings"]
        results.append({key: v for key, v in setting.items() if "second" not in key})
    assert results[0] == results[1]
    assert online("grid", "--data", "data", "--sentences", 1, "--policies", name) == 0
    assert "`--finish-reading` is off, not on" in " ".join(capsys.readouterr().err.split())
    lines = "\n".join(Dataset.open(Path("data")).split("test").raw_source()[:2]) + "\n"
    streams = []
    for policy in (name, calibrated["setting"]):
        stdin = SimpleNamespace(buffer=io.BytesIO(lines.encode()), isatty=bool)
        monkeypatch.setattr(sys, "stdin", stdin)
        words = ["decode", "grid", "--stream", "--policy", policy, "--finish-reading"]
        assert main([*words, "--device", "cpu"]) == 0
        captured = capsys.readouterr()
        streams.append(captured.out)
        assert "calibrated under other conditions" not in captured.err
    assert streams[0] == streams[1] and streams[0].count("\n") == 2
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    add_arguments(parser)
    chosen = ["--model", "grid", "--policy"]
    agents = [
        make_translator(parser.parse_args([*chosen, policy])).agent
        for policy in (name, calibrated["setting"])
    ]
    assert agents[0] == agents[1]


@pytest.mark.parametrize(("loss", "needed"), [(0.2, 9), (1.0, None)])
def test_nothing_is_certified(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, loss: float, needed: int | None,
) -> None:  # fmt: skip
    """Offline translation stays, and what would be needed is said."""

    def constant(full: list[Any], early: list[Any]) -> numpy.ndarray[Any, Any]:
        return numpy.full(len(full), loss)

    monkeypatch.setattr(risk_control, "agreement_losses", constant)
    file = tmp_path / "r.json"
    changed = ("--allow-loss", 50, "--confidence", 0.8, "--k", "3", "--json", file)
    assert online("grid", *OPTIONS[:4], "--risk", "agreement", *changed) == 0
    values = report(file)
    assert not values["calibrated"]["certified"] and values["calibrated"]["stored"] is None
    assert [setting["k"] for setting in values["settings"]] == [None]
    # log 5 over 0.2 log 0.4 + 0.8 log 1.6, the relative entropy of 0.2 against 0.5.
    assert values["calibrated"]["needed"] == needed
    message = " ".join(capsys.readouterr().err.split())
    assert "offline translation is used" in message
    assert ("about 9 are needed" if needed else "allow more") in message
    assert not Path("grid/policies.json").exists()


def test_policies_that_cannot_be_kept_or_left_out(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One's own, without a sweep, is one candidate; `all` are those that can be certified."""
    Path("mine.py").write_text(
        "from nmtgrid.online.policies import Policy\nimport dataclasses, torch\n\n\n"
        "@dataclasses.dataclass(frozen=True)\nclass Even(Policy):\n"
        "    def decide(self, proposal):\n        return proposal.reads % 2 == 0\n"
    )
    file = tmp_path / "r.json"
    assert online("grid", *OPTIONS, "--import", "mine.py", "--policy", "Even", "--json", file) == 0
    calibrated = report(file)["calibrated"]
    assert calibrated["setting"] == "Even" and calibrated["stored"] is None
    assert "the setting is not stored" in " ".join(capsys.readouterr().err.split())
    tried: list[set[str]] = []

    def seen(decoder: object, settings: Sequence[Setting], *others: object) -> None:
        tried.append({setting.policy for setting in settings})
        raise ConfigError("seen")

    monkeypatch.setattr(cli_calibrate, "calibrate", seen)
    for names in ("all", "hold-n, all"):
        assert "seen" in refused(capsys, "both", *OPTIONS, "--policies", names, "--no-keep")
    assert tried == [{"local-agreement", "hold-n"}] * 2


def test_where_it_is_kept(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at before the work, and results are written where nothing can be kept."""
    command = ("grid", *OPTIONS, "--k", "3", "--json", tmp_path / "r.json")
    Path("grid/policies.json").write_text('{"format": 1, "settings": 3}')
    with monkeypatch.context() as patch:
        patch.setattr(cli_calibrate, "calibrate", None)  # nothing is decoded
        assert "policies.json is damaged" in refused(capsys, *command)
        Path("grid/policies.json").unlink()
        whole = os.access

        def access(path: str | Path, mode: int) -> bool:
            return not (mode & os.W_OK and Path(path) == Path("grid")) and whole(path, mode)

        patch.setattr(os, "access", access)
        message = refused(capsys, *command)
        assert "grid is read-only" in message and "`--no-keep`" in message

    def full(*command: object) -> None:
        raise StorageError("policies.json could not be written: the disk is full.")

    monkeypatch.setattr(type(POLICY_FILE), "save", full)
    assert "the disk is full" in refused(capsys, *command)
    values = report(tmp_path / "r.json")
    assert values["calibrated"]["certified"] and values["calibrated"]["stored"] is None
    assert len(values["settings"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("grid --k 3 --risk bleu --seed 2", "`--risk` belongs to `--allow-loss`"),
        ("grid --k 3 --no-keep", "`--no-keep` belongs to `--allow-loss`"),
        ("grid --k 3 --allow-loss 0", "`--allow-loss` must be above 0 and below 100, but is 0"),
        ("grid --k 3 --allow-loss nan", "but is nan"),
        ("grid --k 3 --allow-loss 2 --confidence 1", "`--confidence` must be above 0"),
        ("grid --k 3 --allow-loss 2 --seed -1", "`--seed` must be from 0"),
        ("grid --k 3 --allow-loss 2 --test-split valid", "are both `valid`"),
        ("grid --k 3 --allow-loss 2 --split test --test-split test", "are both `test`"),
        ("grid --k 3 --allow-loss 2 --name a/b", "cannot be named"),
        ("grid --k 3 --allow-loss 2 --sentences 6", "114 are needed to test on"),
        ("grid --k 3 --allow-loss 2 --split no", "no split `no`"),
        ("grid --k 3 --allow-loss 2 --test-split no", "no split `no`"),
        ("grid --k inf --allow-loss 2", "read the whole source first"),
        ("grid --oracle 1 --allow-loss 2", "The oracle needs the reference"),
        ("grid --policies re-translation --allow-loss 2", "needs no guarantee"),
        ("grid both --k 3 --allow-loss 2", "works with one MODEL"),
        ("grid --ensemble grid --k 3 --allow-loss 2", "leave out `--ensemble` or `--allow-loss`"),
        ("both --policies local-agreement --clock --allow-loss 2", "in both directions"),
        ("both --policies local-agreement --clock --allow-loss 2", "offline translation that"),
        (
            "grid --policies local-agreement --clock --beam 3 --allow-loss 2",
            "the offline translation that others are compared with is a stream too. A stream of "
            "`wait-k` is decoded greedily: it has no beam",
        ),
        (
            "grid --k 3 --allow-loss 2 --name a --no-keep",
            "`--no-keep` stores nothing, so `--name` would be ignored. Leave out `--name`.",
        ),
        ("grid --k 3 --allow-loss 2 --bootstrap 9", "has no curve: leave out `--bootstrap`"),
        ("grid --k 3 --allow-loss 2 --baseline a", "has no curve: leave out `--baseline`"),
        ("grid --k 3 --clock --batch-tokens 9", "without batches: leave out `--batch-tokens`"),
        ("grid --policy nothing-kept", "none is stored under this name"),
    ],
)
def test_what_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    confidence = () if "--confidence" in arguments or "--allow" not in arguments else (
        "--confidence", 0.9
    )  # fmt: skip
    assert words in refused(capsys, *arguments.split(), "--data", "data", *confidence)
