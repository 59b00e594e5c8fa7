"""The agent that SimulEval drives: its turns, and the real program where NMTGRID_SIMULEVAL is set.

Expected tokens and delays are those of `online-eval --simuleval`, a batched search. Sentences are
made up; NMTGRID_ONLINE_MODEL and NMTGRID_ONLINE_SOURCE name a model and raw text to use instead.
"""

import csv
import json
import math
import os
import random
import subprocess
import sys
import sysconfig
from argparse import ArgumentParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import collate
from nmtgrid.metrics.latency import word_delays
from nmtgrid.models.directory import save_model
from nmtgrid.online import simuleval_agent
from nmtgrid.online.policies import Bounded, WaitK
from nmtgrid.online.settings import KINDS, read_policy
from nmtgrid.online.simuleval import Instance, read_log, score
from nmtgrid.online.simuleval_agent import Session, add_arguments, agent_class, make_translator
from nmtgrid.online.stream import StreamTranslator
from nmtgrid.search import engine
from nmtgrid.search.api import Agent
from nmtgrid.search.long_sources import SourceLimits
from nmtgrid.search.translate import Translator, load
from nmtgrid.text.moses import Moses
from tests.unit.helpers.tiny_online import LETTERS, translator, units_of_words

PROGRAM = os.environ.get("NMTGRID_SIMULEVAL", "")
needs_simuleval = pytest.mark.skipif(not PROGRAM, reason="NMTGRID_SIMULEVAL names no interpreter")


def _session(k: float = 2, **options: bool) -> Session:
    loaded = translator("pervasive")
    return Session(
        StreamTranslator(loaded.models, loaded.pipeline, WaitK(k), loaded.plan), **options
    )


def _drive(session: Session, words: list[str]) -> Instance:
    """Push the words as SimulEval does; return the log's sentence."""
    session.reset()
    source: list[str] = []
    written: list[str] = []
    delays: list[int] = []
    while True:
        if len(source) < len(words):
            source.append(words[len(source)])
        instance = session.turn(source, len(source) == len(words))
        if instance is None:
            assert len(source) < len(words), "it reads although the source has ended"
            continue
        written += instance[0].split()
        delays += [len(source)] * len(instance[0].split())
        if instance[1]:
            return Instance(0, " ".join(written), delays, len(words), " ".join(words), "")


def _batched(loaded: Translator, lines: list[str], agent: Agent) -> list[tuple[str, list[int]]]:
    """Return words and delays in raw source words, from one batched search."""
    units = [units_of_words(loaded.pipeline, line) for line in lines]
    sources = [
        loaded.pipeline.source_vocabulary.encode(unit for word in words for unit in word)
        for words in units
    ]
    batch = collate(sources, [[]] * len(sources))
    instance = engine.search(
        loaded.models, batch.source, batch.source_lengths, loaded.plan, agent=agent
    )
    pairs = []
    for (best,), words in zip(instance, units, strict=True):
        target = loaded.pipeline.target_vocabulary.decode(best.tokens)
        sizes = [len(word) for word in words]
        delays = word_delays(best.reads or [], sizes, target, loaded.pipeline.target_joiner)
        pairs.append((loaded.pipeline.restore_tokenized(best.tokens), delays))
    return pairs


def _lines(count: int) -> list[str]:
    draw = random.Random(4)

    def word() -> str:
        return "".join(draw.choices(LETTERS, k=draw.randint(1, 4)))

    return [" ".join(word() for _ in range(draw.randint(1, 12))) for _ in range(count)]


@pytest.mark.parametrize("k", [1, 3, math.inf])
def test_turn_by_turn_it_writes_what_a_batched_search_writes(k: float) -> None:
    loaded = translator("pervasive")
    lines = _lines(30)
    session = Session(StreamTranslator(loaded.models, loaded.pipeline, WaitK(k), loaded.plan))
    for line, (words, delays) in zip(lines, _batched(loaded, lines, WaitK(k)), strict=True):
        instance = _drive(session, line.split())
        assert (instance.prediction, list(instance.delays)) == (words, delays)


OWN = """
import dataclasses
from nmtgrid.online.policies import Policy


@dataclasses.dataclass(frozen=True)
class Driven(Policy):
    least: int = 2

    def decide(self, proposal):
        return proposal.reads >= self.least + proposal.step
"""


def test_a_policy_of_ones_own(tmp_path: Path) -> None:
    own, lines = tmp_path / "own.py", _lines(10)
    own.write_text(OWN, encoding="utf-8")
    model = _model(tmp_path)
    for asked in ([f"{own}:Driven least=3"], ["Driven least=3", "--import", own]):
        streams = make_translator(_arguments("--model", model, "--policy", *asked))
        session = Session(streams, tokenized=True)
        expected = _batched(load(model, device="cpu", beam=1), lines, WaitK(3))
        for line, (words, delays) in zip(lines, expected, strict=True):
            instance = _drive(session, line.split())
            assert (instance.prediction, list(instance.delays)) == (words, delays)


def test_a_line_that_becomes_long_is_translated_to_its_end() -> None:
    """Its first segment ends before it is known to be long."""
    loaded = translator("pervasive")
    limits = SourceLimits(whole=12, segment=8)
    streams = StreamTranslator(loaded.models, loaded.pipeline, WaitK(1), loaded.plan, limits=limits)
    session, count = Session(streams, tokenized=True), 0
    for line in _lines(20):
        text = f"{line} . " * 4
        stream, words, ends = streams.begin(), list[str](), []
        for word in text.split():
            words += stream.read(word)
            ends.append(stream.is_finished and len(stream.source) <= limits.whole)
        count += any(ends)
        assert _drive(session, text.split()).prediction.split() == [*words, *stream.end()]
    assert count


def test_translations_may_be_finished_early() -> None:
    """The end symbol may come before the source's end."""
    instance = [_drive(_session(1), line.split()) for line in _lines(20)]
    assert any(
        not instance.delays or max(instance.delays) < instance.source_length
        for instance in instance
    )
    assert _session().turn([], True) == ("", True)


def _scripted(tokenized: bool, *turns: list[str]) -> Session:
    """Return a session over English whose stream writes these tokens, a list with each read."""
    loaded = translator("pervasive")
    loaded.pipeline.target.moses = Moses("en")
    session = Session(
        StreamTranslator(loaded.models, loaded.pipeline, WaitK(1), loaded.plan), tokenized=tokenized
    )
    left = list(turns)
    session._stream = SimpleNamespace(  # type: ignore[assignment]
        read=lambda word: left.pop(0), end=lambda: left.pop(0), is_finished=False
    )
    return session


TURNS = (["America"], ["&apos;s"], ["dogs", ","], ["&quot;"], ["big", "&quot;"], ["."])


def test_words_are_written_as_people_write_them_and_once_they_are_whole() -> None:
    """What belongs to a word may still come until the next one begins."""
    turns, tokenised = (
        [session.turn(list("abcde")[: index + 1], index == 4) for index in range(5)]
        for session in (_scripted(False, *TURNS), _scripted(True, *TURNS))
    )
    assert turns == [
        None, None, ("America's", False), ("dogs,", False), ('"big".', True),
    ]  # fmt: skip
    text = " ".join(turn[0] for turn in turns if turn)
    assert text == Moses("en").detokenize(" ".join(word for turn in TURNS for word in turn))
    # Tokenised words are written at once.
    assert tokenised == [
        ("America", False), ("&apos;s", False), ("dogs ,", False), ("&quot;", False),
        ("big &quot; .", True),
    ]  # fmt: skip
    # The last word goes out where the translation ends early.
    session = _scripted(False, ["it", "&apos;s"])
    session._stream.is_finished = True  # type: ignore[misc]
    assert session.turn(["a"], False) == ("it's", False)


def test_without_simuleval_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "simuleval", None)
    with pytest.raises(ConfigError, match="pip install simuleval"):
        agent_class()
    assert simuleval_agent.main() == 2
    assert "pip install simuleval" in capsys.readouterr().err
    with pytest.raises(AttributeError):
        _ = simuleval_agent.Nothing


class Action(SimpleNamespace):
    """Stands for SimulEval's actions."""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two modules of SimulEval that the class needs, as small as can be."""

    class TextToTextAgent:
        def __init__(self, arguments: Any) -> None:
            self.states = SimpleNamespace(source=[], source_finished=False)
            self.reset()

        def reset(self) -> None:
            self.states.source = []
            self.states.source_finished = False

    names = ("simuleval", "simuleval.agents", "simuleval.agents.actions")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["simuleval.agents"].TextToTextAgent = TextToTextAgent  # type: ignore[attr-defined]
    actions: Any = sys.modules["simuleval.agents.actions"]
    actions.ReadAction = lambda: Action(read=True)
    actions.WriteAction = lambda text, finished: Action(read=False, text=text, finished=finished)


def _model(folder: Path, arch: str = "pervasive", **settings: Any) -> Path:
    loaded = translator(arch, **settings)
    plan = {"beam": 4, "max_length_a": 4.0, "max_length_b": 1.5}
    save_model(folder / "model", loaded.models[0], loaded.pipeline, {"search": plan})
    return folder / "model"


def _arguments(*arguments: str | Path) -> Any:
    parser = ArgumentParser()
    parser.add_argument("--device", default="cpu")
    add_arguments(parser)
    return parser.parse_args([*map(str, arguments)])


@pytest.mark.usefixtures("stand_in")
def test_the_class_that_simuleval_drives(tmp_path: Path) -> None:
    agent_type = agent_class()
    assert simuleval_agent.main() == 0
    assert (
        agent_type.__module__ == "nmtgrid.online.simuleval_agent"
        and agent_type.__name__ == "StreamAgent"
    )
    agent = agent_type(_arguments("--model", _model(tmp_path), "--k", "2"))
    assert agent.session._translator.plan.beam == 1
    for _ in range(2):
        agent.reset()
        agent.states.source.append("a")
        assert agent.policy().read
        agent.states.source.append("b")
        agent.states.source_finished = True
        assert agent.policy().finished
    with pytest.raises(SystemExit, match="error: There is no model directory"):
        agent_type(_arguments("--model", tmp_path / "no", "--k", "2"))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "not trained with one k: name a policy"),
        (["--k", "1", "--threshold", "0.5"], "one of `--k`, `--threshold` and `--policy`"),
        (["--k", "0.5"], "is not a whole number"),
        (["--threshold", "1"], "above 0 and below 1"),
        (["--threshold", "0.5"], "has no reader"),
    ],
)
def test_faults_of_the_command_line(tmp_path: Path, arguments: list[str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        make_translator(_arguments("--model", _model(tmp_path), *arguments))


def test_the_k_of_training_is_the_default(tmp_path: Path) -> None:
    loaded, path = translator("pervasive"), tmp_path / "wait-2"
    settings = {"objective_name": "wait-k", "objective": {"k": 2}}
    save_model(path, loaded.models[0], loaded.pipeline, settings)
    for arguments, k in ([], 2), (["--k", "4"], 4), (["--k", "1234567"], 1234567):
        agent = make_translator(_arguments("--model", path, *arguments)).agent
        assert agent == WaitK(k)


# With the real program.

# The interpreter's own packages come first: its pins are what SimulEval was installed with.
START = """
import sys
sys.path += sys.argv.pop(1).split(";")
from simuleval.cli import main
main()
"""


def _run(
    project: Path, folder: Path, model: Path, lines: list[str], *arguments: str
) -> list[Instance]:
    (folder / "source").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "target").write_text("x y z\n" * len(lines), encoding="utf-8")
    paths = f"{project};{sysconfig.get_paths()['purelib']}"
    agent = project / "nmtgrid" / "online" / "simuleval_agent.py"
    done = subprocess.run(
        [PROGRAM, "-c", START, paths, "--agent", agent, "--model", model,
         "--source", folder / "source", "--target", folder / "target", "--output", folder / "out",
         *arguments, "--tokenized", "--no-progress-bar"],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return read_log(folder / "out")


LATENCIES = {"AL": "al", "LAAL": "laal", "AP": "ap", "DAL": "dal"}
"""SimulEval's names of the metrics, and ours."""
# Each policy that streams.
POLICIES = (
    "wait-k k=1", "wait-k k=3", "confidence threshold=0.5 floor=1 cap=6", "entropy most=2",
    "alignatt last=1", "edatt mass=0.3", "local-agreement n=2", "hold-n n=2",
    "threshold threshold=0.5", "mma threshold=0.5", "itst delta=0.5", "wait-info k=3",
)  # fmt: skip
READERS = {
    "threshold": ("pervasive", "own"), "mma": ("transformer", "monotonic"),
    "itst": ("transformer", "transport"), "wait-info": ("transformer", "information"),
}  # fmt: skip
"""Architecture and `model.reader` of the models that a policy needs."""


def test_each_policy_that_streams_is_compared() -> None:
    names = {policy.partition(" ")[0] for policy in POLICIES}
    assert names == KINDS.keys() - {"oracle", "re-translation"}


@needs_simuleval
@pytest.mark.parametrize("policy", POLICIES)
def test_simuleval_gets_and_scores_what_a_batched_search_writes(
    project: Path, tmp_path: Path, policy: str
) -> None:
    """Its own scores of the log are ours too. Policies that need a reader have a model with it."""
    source = os.environ.get("NMTGRID_ONLINE_SOURCE")
    if (name := policy.partition(" ")[0]) in READERS:
        arch, reader = READERS[name]
        model, source = _model(tmp_path, arch, reader=reader), None
    else:
        model = Path(os.environ.get("NMTGRID_ONLINE_MODEL") or _model(tmp_path))
    lines = _lines(100)
    if source:
        lines = Path(source).read_text(encoding="utf-8").split("\n")[:100]
    asked = ["--latency-metrics", *LATENCIES, "--quality-metrics", "BLEU"]
    log = _run(project, tmp_path, model, lines, "--policy", policy, *asked)
    assert len(log) == len(lines) == 100
    with (tmp_path / "out" / "scores.tsv").open(encoding="utf-8") as file:
        (theirs,) = csv.DictReader(file, delimiter="\t")
    ours = score(log)
    for name, attribute in LATENCIES.items():
        value = getattr(ours.simuleval, attribute)
        assert float(theirs[name]) == pytest.approx(value, abs=1e-3), name
    assert ours.bleu is not None
    assert float(theirs["BLEU"]) == pytest.approx(ours.bleu.value, abs=1e-3)
    agent = read_policy(policy)[0].make()
    if not isinstance(agent, Agent):  # it translates prefixes, for which there is no such search
        return
    loaded = load(model, device="cpu", beam=1)
    expected = _batched(loaded, lines, Bounded(agent, loaded.plan))
    for logged, (words, delays), line in zip(log, expected, lines, strict=True):
        assert (logged.prediction, list(logged.delays)) == (words, delays)
        assert logged.source_length == len(line.split())
    assert json.loads((tmp_path / "out" / "instances.log").read_text().splitlines()[0])
