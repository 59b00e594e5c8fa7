"""`decode --stream` from the command line: words in, words out, while the line still arrives."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nmtgrid.base import console
from nmtgrid.cli.app import main
from nmtgrid.metrics.latency import latency as mean_latency
from nmtgrid.models.directory import save_model
from nmtgrid.online.policies import WaitK
from nmtgrid.online.stream import StreamTranslator, TokenStream
from nmtgrid.search.long_sources import SourceLimits
from nmtgrid.search.traces import read_traces
from tests.unit.helpers.documented import documented_keys
from tests.unit.helpers.tiny_online import translator

LINES = "ab cd e\n\na b c d e f g h\nfgh abe\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models: one that goes online, one with a reader, one that cannot."""
    folder = tmp_path_factory.mktemp("stream")
    search = {"beam": 3, "length_penalty": 0.6, "max_length_a": 4.0, "max_length_b": 1.5}
    for name, settings in (
        ("model", {}), ("reader", {"reader": "own"}), ("both-ways", {"source_causal": False})
    ):  # fmt: skip
        loaded = translator("pervasive", **settings)
        save_model(folder / name, loaded.models[0], loaded.pipeline, {"search": search})
    # As `train` and `import-fairseq` leave a model that was trained along one path.
    trained: dict[str, Any] = {"search": search, "objective_name": "wait-k", "objective": {"k": 2}}
    damaged = trained | {"objective": {"k": 0}}
    for name, settings in ("wait-2", trained), ("damaged", damaged):
        loaded = translator("pervasive")
        save_model(folder / name, loaded.models[0], loaded.pipeline, settings)
    return folder


Stream = Callable[..., tuple[int, str]]


@pytest.fixture
def stream(home: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: Any) -> Stream:
    def run(raw: bytes, *arguments: str | Path, model: str = "model") -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(raw), isatty=bool))
        more = [*map(str, arguments), "--device", "cpu"]
        code = main(["decode", str(home / model), "--stream", *more])
        shown = capsysbinary.readouterr()
        run.message = " ".join(shown.err.decode().split())  # type: ignore[attr-defined]
        return code, shown.out.decode()

    return run


def test_line_for_line(stream: Stream, home: Path, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    code, text = stream(LINES.encode(), "--k", "2", "--json", report)
    lines = text.split("\n")
    assert code == 0 and len(lines) == 5 and lines[1] == lines[4] == ""
    assert all(lines[index] for index in (0, 2, 3))
    values = json.loads(report.read_text())
    assert (values["policy"], values["k"], values["sentences"]) == ("wait-k", 2, 4)
    assert (values["unit"], values["convention"]) == ("token", "thesis") and values["al"] > 0
    assert [latency["unit"] for latency in values["latencies"]] == ["token", "word"]
    assert {latency["skipped"] for latency in values["latencies"]} == {1}
    for latency in values["latencies"]:
        assert min(latency[name] for name in ("ap", "al", "dal", "cw", "max_cw")) > 0
        assert {latency[name] for name in ("laal", "yaal", "length_ratio")} == {None}
    assert values["target_tokens"] > 6 and values["tokens_per_second"] > 0
    # Work after the last write of a line belongs to no token.
    assert 0 < values["seconds_per_token"] < values["seconds"] / values["target_tokens"]
    assert values["seconds_per_token_p95"] > 0
    assert values["complete"] is True
    ran = {"model": str(home / "model"), "input": "-", "precision": "fp32", "device": "cpu"}
    assert values.items() >= ran.items() and values.keys() <= documented_keys()
    assert values["search"]["beam"] == 1, "whatever the model's own setting"


def test_a_reader_that_goes_away_leaves_traces_and_report(home: Path, tmp_path: Path) -> None:
    traces, report = tmp_path / "t.jsonl", tmp_path / "r.json"
    command = ["decode", str(home / "model"), "--stream", "--k", "1", "--device", "cpu"]
    command += ["--traces", str(traces), "--json", str(report)]
    with subprocess.Popen(
        [sys.executable, "-m", "nmtgrid", *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
    ) as process:  # fmt: skip
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(b"ab cd e\n")
        assert process.stdout.readline().strip()
        process.stdout.close()
        process.stdin.write(b"a b c\n")
        process.stdin.close()
        message = process.stderr.read()
        assert process.wait(timeout=120) == 1
    assert message == b""
    assert [trace.line for trace in read_traces(traces)] == [1]
    values = json.loads(report.read_text())
    assert values["sentences"] == 1 and values["complete"] is False


def test_waiting_for_all_is_greedy_decoding(stream: Stream, home: Path, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text(LINES)
    code, text = stream(b"", path, "--k", "inf", "--json", tmp_path / "r.json")
    assert main(["decode", str(home / "model"), str(path), "--beam", "1", "--device", "cpu",
                 "--out", str(tmp_path / "out.txt")]) == 0  # fmt: skip
    assert code == 0 and text == (tmp_path / "out.txt").read_text()
    assert json.loads((tmp_path / "r.json").read_text())["k"] is None


def test_traces_say_when_it_was_read(stream: Stream, tmp_path: Path) -> None:
    code, text = stream(LINES.encode(), "--k", "3", "--traces", tmp_path / "t.jsonl")
    assert code == 0
    traces = list(read_traces(tmp_path / "t.jsonl"))
    assert [trace.text for trace in traces] == text.split("\n")[:4]
    for trace in traces:
        whole = len(trace.source) + 1
        expected = [min(3 + t, whole) for t in range(len(trace.target) + 1)]
        assert trace.reads == (expected if trace.source else [])
        if not trace.source:
            continue
        # Shares of what had been read.
        assert trace.alignment is not None
        assert trace.alignment.sum(1) == pytest.approx([1.0] * len(expected), abs=1e-3)
        assert all(
            not row[reads:].any() for row, reads in zip(trace.alignment, expected, strict=True)
        )

    # An agent decides.
    arguments = "--finish-reading", "--json", tmp_path / "r.json"
    code, text = stream(LINES.encode(), "--threshold", "0.5", *arguments, model="reader")
    facts = json.loads((tmp_path / "r.json").read_text())
    assert code == 0 and text.count("\n") == 4
    assert (facts["policy"], facts["threshold"]) == ("threshold", 0.5) and facts["finish_reading"]


def test_lines_too_long_go_in_pieces(stream: Stream, tmp_path: Path) -> None:
    raw = b"a b c d e\nab\n"
    pieces = stream(b"a b\nc d\ne\nab\n", "--k", "1")[1].split("\n")
    code, text = stream(raw, "--k", "1", "--max-source", "2", "--traces", tmp_path / "t.jsonl",
                        "--json", tmp_path / "r.json")  # fmt: skip
    assert code == 0 and text == f"{' '.join(pieces[:3])}\n{pieces[3]}\n"
    assert "line 1 has more than 2 source units" in stream.message  # type: ignore[attr-defined]
    first, second = read_traces(tmp_path / "t.jsonl")
    assert first.reads is not None and first.reads[-1] <= 6 and len(first.source) == 5
    # Latencies are those of whole lines, as in `online-eval`.
    delays = [[min(n, len(t.source)) for n in (t.reads or [])[:-1]] for t in (first, second)]
    expected = mean_latency(delays, [5, len(second.source)])
    facts = json.loads((tmp_path / "r.json").read_text())
    assert facts["al"] == pytest.approx(expected.al) and facts["sentences"] == 2


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_endless_devices_end(stream: Stream, device: str) -> None:
    code, _ = stream(b"", device, "--k", "1")
    assert code == 2 and "characters are not valid UTF-8" in stream.message  # type: ignore[attr-defined]


def test_long_words_and_lines_take_little() -> None:
    """No segment has more units than it may, also of one word, and no state is kept."""
    loaded = translator("pervasive")
    words = ["abc" * 100, *["a"] * 500, "cab" * 40]
    streams = StreamTranslator(
        loaded.models, loaded.pipeline, WaitK(1), loaded.plan, limits=SourceLimits(10, 10)
    )
    line = streams.begin()
    for word in words:
        line.read(word)
    line.end()
    assert len(line.segments) > 50 and max(len(segment.source) for segment in line.segments) <= 10
    assert "".join(line.source).replace("@@", "") == "".join(words)
    for segment in line.segments:
        assert isinstance(segment._stream, TokenStream) and not segment._stream._states


def test_warnings_stand_between_lines(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, which shows both kinds of output, they would break a translation apart."""

    def warn(text: str) -> None:
        sys.stdout.buffer.write(f"warning: {text}\n".encode())

    monkeypatch.setattr(console, "warn", warn)
    code, text = stream(b"a b c d e\nab\n", "--k", "1", "--max-source", "1")
    _, warning, _, *rest = text.split("\n")
    assert code == 0 and warning.startswith(
        "warning: long-line: line 1 has more than 1 source unit and is translated in segments."
    )
    assert all("warning" not in line or line.startswith("warning: ") for line in rest)


def test_a_long_word_is_told(stream: Stream) -> None:
    code, _ = stream(b"abcdefgh" * 20 + b"\n", "--k", "1", "--max-source", "30")
    assert code == 0
    assert "line 1 has more than 30 source units" in stream.message  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("raw", "lines", "what"),
    [
        (b"", 0, ""),
        (b"\n\n", 2, ""),
        (b"a b", 1, "standard input, line 1: the input ends without a line's end"),
        (b"a\nb \xc3", 2, "standard input, line 2: the input ends in the middle of a character"),
        (b"a \xff b\nc\n", 2, "standard input, line 1: some bytes are not valid UTF-8"),
    ],
)
def test_streams_that_end_anyhow(stream: Stream, raw: bytes, lines: int, what: str) -> None:
    code, text = stream(raw, "--k", "1")
    assert code == 0 and text.count("\n") == lines
    assert what in stream.message and bool(what) == bool(stream.message)  # type: ignore[attr-defined]


def test_everything_without_meaning_is_named_at_once(stream: Stream) -> None:
    settings = {"beam": "4", "nbest": "3", "alignments": "a", "length-penalty": "1", "data": "d"}
    vain = [f"--{name}={value}" for name, value in settings.items()]
    assert stream(b"a\n", "--sample", *vain, "--k", "0", "--threshold", "1.5") == (2, "")
    message = stream.message  # type: ignore[attr-defined]
    assert all(f"`--{name}`" in message for name in ("sample", *settings, "k"))
    assert "but two are given" in message
    assert "`--threshold`: `threshold` must be above 0 and below 1" in message


@pytest.mark.parametrize(
    ("arguments", "model", "what"),
    [
        ([], "model", "needs one of `--k`, `--threshold` and `--policy`, but none is given"),
        ([], "none", "There is no model directory"),
        ([], "damaged", "config.json: `objective.k` must be at least 1"),
        (["--k", "0"], "model", "`--k`"),
        (["--k", "1.5"], "model", "`--k`"),
        (["--k", "x"], "model", "`--k`"),
        (["--k", "1..3"], "model", "must be one number with `--stream`"),
        (["--policy", "alignatt last=1,2"], "model", "must have one value for each setting"),
        (["--policy", "alignatt last=x"], "model", "`x` is not a whole number"),
        (["--k", "1..3", "--policy", "wait-k k=0"], "model", "`k` must be a whole number"),
        (["--policy", "absent.py:Own"], "model", "absent.py to import. Check the path."),
        (["--k", "2", "--policy", "alignatt last=1"], "model", "but two are given"),
        (["--policy", "re-translation mask=0"], "model", "which a stream cannot"),
        (["--threshold", "0"], "model", "above 0 and below 1"),
        (["--threshold", "nan"], "model", "above 0 and below 1"),
        (["--threshold", "0.5"], "model", "has no reader"),
        (["--k", "2", "--exit", "1", "--ensemble", "m"], "model", "cannot be combined with"),
        (["--k", "2"], "both-ways", "reads its source in both directions"),
        (["--k", "2", "--max-source", "0"], "model", "`--max-source` must be at least 1"),
        (["--k", "2", "--set", "search.beam=4"], "model", "decoded greedily"),
        (["--k", "2", "--set", "temperature=0.5"], "model", "`--set temperature` has no effect"),
        (["--k", "2", "--set", "seed=7"], "model", "`--set seed` has no effect"),
        (["--k", "2", "--set", "nbest=3"], "model", "(`--nbest`) (3) cannot exceed"),
        (["--k", "2", "--set", "style=transformers"], "model", "`--set style` has no effect"),
        (["--k", "2", "--set", "length_penalty=2"], "model", "changes `max_length_a`"),
        (["--k", "2", "--json", "-"], "model", "`--json -`"),
        (["--k", "2", "no.txt"], "model", "no such file"),
    ],
)
def test_refusals(stream: Stream, arguments: list[str], model: str, what: str) -> None:
    code, text = stream(b"a\n", *arguments, model=model)
    assert code == 2 and text == ""
    assert what in stream.message and "Traceback" not in stream.message  # type: ignore[attr-defined]
    assert "but is `wait-k" not in stream.message  # type: ignore[attr-defined]


def test_a_model_reads_as_it_was_trained(stream: Stream, home: Path, tmp_path: Path) -> None:
    said = "trained with wait-2"
    code, text = stream(LINES.encode(), "--json", tmp_path / "r.json", model="wait-2")
    assert code == 0 and said in stream.message  # type: ignore[attr-defined]
    assert json.loads((tmp_path / "r.json").read_text())["k"] == 2
    assert (0, text) == stream(LINES.encode(), "--k", "2", model="wait-2")
    assert said not in stream.message  # type: ignore[attr-defined]
    assert stream(LINES.encode(), "--k", "1", model="wait-2") != (0, text)


def test_whole_sentences_of_a_wait_k_model(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_text("ab cd\n")
    for name in ("wait-2", "model"):
        assert main(["decode", str(home / name), str(tmp_path / "in"), "--device", "cpu"]) == 0
        shown = " ".join(capsys.readouterr().err.split())
        assert ("`decode` reads the whole source" in shown) == (name == "wait-2")


def test_options_of_streams_alone(home: Path, refused: Callable[..., str]) -> None:
    names = ["--k", "--threshold", "--finish-reading"]
    message = refused("decode", home / "model", "--k=2", "--threshold=0.5", "--finish-reading")
    assert all(f"`{name}` belongs to `--stream`" in message for name in names)


@contextmanager
def _process(home: Path, project: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    run = subprocess.Popen(
        [sys.executable, "-m", "nmtgrid", "decode", str(home / "model"), "--stream", *arguments],
        env={**os.environ, "PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # A background job starts with SIGINT ignored, and its children with it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        yield run
    finally:
        run.kill()
        run.communicate()


def _push(run: subprocess.Popen[bytes], raw: bytes) -> None:
    assert run.stdin is not None
    os.write(run.stdin.fileno(), raw)


def _first_word(run: subprocess.Popen[bytes]) -> bytes:
    assert run.stdout is not None
    return os.read(run.stdout.fileno(), 1000)


def test_words_come_before_the_line_has_ended(home: Path, project: Path) -> None:
    with _process(home, project, "--k", "1", "--finish-reading", "--device", "cpu") as run:
        _push(run, b"ab cd ")
        first = _first_word(run)
        assert first and b"\n" not in first
        _push(run, b"e\n")
        rest: Any = run.communicate(timeout=60)
    assert run.returncode == 0 and (first + rest[0]).count(b"\n") == 1


def test_an_interrupted_stream_has_written_what_is_final(home: Path, project: Path) -> None:
    with _process(home, project, "--k", "1", "--finish-reading", "--device", "cpu") as run:
        _push(run, b"ab cd e")
        first = _first_word(run)
        run.send_signal(signal.SIGINT)
        out, errors = run.communicate(timeout=60)
    assert run.returncode == 130 and errors == b"Interrupted.\n"
    assert re.fullmatch(rb"[a-h ]+", first + out)


def test_an_interruption_keeps_the_traces(home: Path, project: Path, tmp_path: Path) -> None:
    traces, report = tmp_path / "t.jsonl", tmp_path / "r.json"
    more = "--traces", str(traces), "--json", str(report), "--finish-reading"
    with _process(home, project, "--k", "1", *more, "--device", "cpu") as run:
        _push(run, b"ab cd e\nab cd e g h ")
        out = b""
        while not out.partition(b"\n")[2]:
            out += _first_word(run)
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=60)
    assert run.returncode == 130 and errors == b"Interrupted.\n"
    values = json.loads(report.read_text())
    assert (values["sentences"], values["complete"]) == (1, False)
    assert [trace.text for trace in read_traces(traces)] == [out.decode().split("\n")[0]]


OWN = """
import dataclasses
from nmtgrid.online.policies import Policy


@dataclasses.dataclass(frozen=True)
class Later(Policy):
    least: int = 2
    most: int = 99

    def decide(self, proposal):
        if proposal.reads.max() > self.most:
            raise ValueError("too long")
        return proposal.reads >= self.least + proposal.step
"""


def test_a_policy_of_ones_own(stream: Stream, tmp_path: Path) -> None:
    """By its file and class; a stream that it follows is that of the same built-in policy."""
    own = tmp_path / "own.py"
    own.write_text(OWN, encoding="utf-8")
    code, text = stream(LINES.encode(), "--policy", f"{own}:Later least=3")
    assert (code, text) == stream(LINES.encode(), "--k", "3") and code == 0
    assert (code, text) == stream(LINES.encode(), "--import", own, "--policy", "Later least=3")


def test_a_policy_that_translates_offline_is_told(stream: Stream, tmp_path: Path) -> None:
    """Also that translations end at the limit of 4 + 1.5 |x| units, where most of them do."""
    own, traces = tmp_path / "own.py", tmp_path / "t.jsonl"
    own.write_text(OWN, encoding="utf-8")
    offline = "Nothing was written before the whole source was read: Later least = {} in {} of 3"
    for least, late in ((9, 3), (4, 1), (6, 2)):
        # Sources of 4, 8 and 6 units.
        policy = f"{own}:Later least={least}"
        code, _ = stream(LINES.encode(), "--policy", policy, "--traces", traces)
        message = stream.message  # type: ignore[attr-defined]
        assert code == 0 and (offline.format(least, late) in message) == (late > 1)
        limits = [
            len(trace.target) == int(4 + 1.5 * len(trace.source))
            for trace in read_traces(traces)
            if trace.source
        ]
        counted = f"Later least = {least} in {sum(limits)} of 3 sentences."
        at_limit = f"{counted} If translations with `--k inf`"
        assert (at_limit in message) == (sum(limits) > 1)


def test_a_failing_policy_keeps_the_lines_that_have_ended(stream: Stream, tmp_path: Path) -> None:
    own, traces, report = tmp_path / "own.py", tmp_path / "t.jsonl", tmp_path / "r.json"
    own.write_text(OWN, encoding="utf-8")
    files = "--traces", traces, "--json", report
    code, text = stream(LINES.encode(), "--policy", f"{own}:Later least=7 most=5", *files)
    assert code == 2 and "reading policy `Later` failed at target token" in stream.message  # type: ignore[attr-defined]
    values = json.loads(report.read_text())
    assert (values["sentences"], values["complete"]) == (2, False)
    assert [trace.text for trace in read_traces(traces)] == text.split("\n")[:2]
    # Nothing has ended before the first line.
    code, _ = stream(LINES.encode(), "--policy", f"{own}:Later least=7 most=1", *files)
    assert code == 2 and json.loads(report.read_text())["sentences"] == 0
    assert not traces.read_text()


METRICS = """
def late(delays, source_length, target_length):
    return sum(delay >= source_length for delay in delays) / target_length


def short(delays, source_length, target_length):
    if source_length > 6:
        raise ValueError("too long")
    return 1.0
"""


def test_a_metric_of_ones_own(stream: Stream, tmp_path: Path) -> None:
    own, report = tmp_path / "metrics.py", tmp_path / "r.json"
    own.write_text(METRICS, encoding="utf-8")
    files = "--json", report, "--traces", tmp_path / "t.jsonl"
    code, _ = stream(LINES.encode(), "--k", "2", "--metric", f"{own}:late", *files)
    values = json.loads(report.read_text())
    traces = [trace for trace in read_traces(tmp_path / "t.jsonl") if trace.target]
    shares = [
        sum(reads >= len(trace.source) for reads in (trace.reads or ())[:-1]) / len(trace.target)
        for trace in traces
    ]
    assert code == 0 and values["own"] == {"late": pytest.approx(sum(shares) / len(shares))}
    assert [latency["own"].keys() for latency in values["latencies"]] == [{"late"}] * 2
    # One that fails keeps the rest of the report.
    code, _ = stream(LINES.encode(), "--k", "2", "--metric", f"{own}:short", *files)
    assert code == 2 and "latency metric `short` failed at sentence 3" in stream.message  # type: ignore[attr-defined]
    values = json.loads(report.read_text())
    assert values["sentences"] == 4 and "own" not in values and not values["complete"]
    for arguments, message in (
        ((f"{own}:lat", *files), "does not define `lat`"),
        ((f"{own}:late",), "add `--json FILE`"),
    ):
        code, _ = stream(LINES.encode(), "--k", "2", "--metric", *arguments)
        assert code == 2 and message in stream.message  # type: ignore[attr-defined]


def test_a_reader_that_has_gone_away(home: Path, project: Path, tmp_path: Path) -> None:
    traces = tmp_path / "t.jsonl"
    more = "--k", "1", "--finish-reading", "--device", "cpu", "--traces", str(traces)
    with _process(home, project, *more) as run:
        _push(run, b"ab cd ")
        assert _first_word(run) and run.stdout is not None
        run.stdout.close()
        run.stdout = None
        _push(run, b"e f g\na b c d\n")
        assert run.stdin is not None
        run.stdin.close()
        assert run.wait(timeout=60) == 1
        assert run.stderr is not None and run.stderr.read() == b""
        run.stdin = None
