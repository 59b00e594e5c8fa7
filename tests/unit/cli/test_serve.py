"""The service of `nmtgrid demo`: its answers, its refusals, and that it leaves nothing behind."""

import dataclasses
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.base.errors import ConfigError
from nmtgrid.cli.app import main
from nmtgrid.models.directory import load_model
from nmtgrid.online.policies import WaitK
from nmtgrid.online.policy_presets import POLICY_FILE, Conditions, PolicyPreset
from nmtgrid.online.stream import LineStream, StreamTranslator, WrittenToken
from nmtgrid.search.long_sources import SourceLimits
from nmtgrid.search.traces import read_traces
from nmtgrid.serve.server import Server, Service, origin_of, read_examples
from nmtgrid.serve.streams import Limits, Refusal, Worker
from nmtgrid.serve.systems import Models, SystemRequest
from recipes.chromium import BROWSER, browser
from tests.unit.helpers.tiny_online import toy_home, translator

DOCS = Path(__file__).resolve().parents[3] / "docs"
LIMITS = Limits(
    streams=4, words=12, characters=300, lines=3, body=2000, queue=3, connections=12,
    seconds=20, idle=60,
)  # fmt: skip
SOURCES = ("Er roltet volend.", "Di biklimu nitont <b>unean</b> tihur!")
OWN = """import dataclasses, math
from nmtgrid.online.policies import Policy

class Always(Policy):
    def decide(self, proposal):
        return proposal.reads > 0

@dataclasses.dataclass(frozen=True, kw_only=True)
class Strict(Always):
    share: float

@dataclasses.dataclass(frozen=True)
class Late(Always):
    most: float = 0.5
    longest: float = math.inf
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    exits = {"exits": "tied", "halting": "geometric", "decoder_depth": 3}
    models: dict[str, tuple[str, dict[str, Any]]] = {
        "grid": ("pervasive", {}),
        "deep": ("transformer", exits),
        "offline": ("pervasive", {"source_causal": False}),
    }
    folder = toy_home(tmp_path_factory.mktemp("serve"), models)
    (folder / "own.py").write_text(OWN, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def models(home: Path) -> Models:
    return Models({name: home / name for name in ("grid", "deep", "offline")})


def _serve(models: Models, limits: Limits, examples: tuple[str, ...] = ()) -> Server:
    server = Server(Service(models, limits, examples), "127.0.0.1", 0)
    server.begin()
    return server


@pytest.fixture
def server(models: Models) -> Iterator[Server]:
    server = _serve(models, LIMITS)
    yield server
    assert server.end(10)


class Client:
    """A visitor with a connection."""

    def __init__(self, server: Server) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Return the status and the JSON of an answer; JSON lines are returned as a list."""
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        self.connection.request(method, path, content, headers or {})
        response = self.connection.getresponse()
        text = response.read().decode()
        kind = response.headers["Content-Type"]
        if kind.startswith("application/x-ndjson"):
            return response.status, [json.loads(line) for line in text.splitlines()]
        return response.status, json.loads(text) if text and "json" in kind else text

    def open(self, **system: Any) -> str:
        status, answer = self.ask("POST", "/streams", {"systems": [system]})
        assert status == 201, answer
        return str(answer["stream"])

    def feed(self, stream: str, text: str, end: bool = False) -> list[dict[str, Any]]:
        status, events = self.ask("POST", f"/streams/{stream}/words", {"text": text, "end": end})
        assert status == 200, events
        return list(events)


def _alone(models: Models, request: SystemRequest, source: str) -> tuple[str, LineStream]:
    """Return the output of a stream without a server, detokenised word by word as in `decode`."""
    line = models.system(request).translator.begin()
    words = [written for word in source.split() for written in line.read(word)] + line.end()
    from nmtgrid.text.incremental import IncrementalDetokenizer

    detokenizer = IncrementalDetokenizer(models.loaded[request.model].pipeline.target.moses)
    return "".join(map(detokenizer.add, words)), line


SYSTEMS = [
    SystemRequest("grid", "wait-k k=2"),
    SystemRequest("deep", "wait-k k=1", exit="auto"),
    SystemRequest("deep", "confidence threshold=0.2 cap=4"),
    SystemRequest("deep", "local-agreement n=2", exit="2"),
    SystemRequest("offline", "hold-n n=1"),
    SystemRequest("grid", "wait-k k=inf", finish_reading=True),
]


@pytest.mark.parametrize("request_", SYSTEMS, ids=lambda r: f"{r.model}-{r.policy}")
def test_events_are_those_of_the_stream(
    request_: SystemRequest, server: Server, models: Models, tmp_path: Path
) -> None:
    client, source = Client(server), SOURCES[0]
    fields = {name: getattr(request_, name) for name in ("model", "policy", "exit")}
    stream = client.open(**fields, finish_reading=request_.finish_reading)
    events = [event for word in source.split() for event in client.feed(stream, word)]
    status, last = client.ask("POST", f"/streams/{stream}/end")
    assert status == 200
    events += last
    text, line = _alone(models, request_, source)
    reads = [event for event in events if event["event"] == "read"]
    writes = [event for event in events if event["event"] == "write"]
    assert [event["word"] for event in reads] == source.split()
    assert [unit for event in reads for unit in event["units"]] == line.source
    assert [event["unit"] for event in writes] == [*line.target, "</s>"]
    assert [event["index"] for event in writes] == list(range(len(writes)))
    assert [event["reads"] for event in writes] == line.hypothesis().reads
    exits: list[Any] = line.hypothesis().exits or [None] * len(writes)
    assert [event["exit"] for event in writes] == exits
    for event in writes:
        # A unit comes with the word that triggered it, and depends on nothing that came later.
        before = events[: events.index(event)]
        arrived = [read["reads"] for read in before if read["event"] == "read"]
        assert event["reads"] <= (arrived or [0])[-1] + (event in last)
        assert len(event["alignment"]) == event["reads"]
        assert 0 <= event["probability"] <= 1
    assert [e["is_end"] for e in writes] == [False] * (len(writes) - 1) + [True]
    assert "".join(e["text"] for e in events if e["event"] == "text") == text == last[-1]["text"]
    trace = last[-1]["trace"]
    assert (trace["source"], trace["target"]) == (line.source, line.target)
    assert [len(trace["alignment"]), len(trace["alignment"][0])] == [
        len(line.target) + 1, len(line.source) + 1,
    ]  # fmt: skip
    assert client.ask("GET", f"/streams/{stream}/events") == (200, events)
    # As a browser writes it, without `.0`; it is read like any other file of traces.
    path = tmp_path / "trace.jsonl"
    path.write_text(re.sub(r"(?<=\d)\.0\b", "", json.dumps(trace)) + "\n", encoding="utf-8")
    assert [(t.target, t.text) for t in read_traces(path)] == [(line.target, text)]


def test_lagging_by_hand(server: Server) -> None:
    """Wait-2 that writes a unit after each further source unit lags two units, less any skipped."""
    client = Client(server)
    events = client.feed(client.open(model="grid", policy="wait-k k=2"), SOURCES[0], end=True)
    end = events[-1]
    reads, length = end["trace"]["reads"], len(end["trace"]["source"])
    target = len(end["trace"]["target"])
    # Ma et al. (2019): the mean lag of the writes up to the first after the whole source is read.
    delays = [min(count, length) for count in reads[:target]]
    first = next(n for n, delay in enumerate(delays) if delay == length)
    lags = [delays[n] - n * length / target for n in range(first + 1)]
    assert end["average_lagging"] == pytest.approx(sum(lags) / len(lags), abs=1e-6)
    assert end["seconds_per_word"] > 0 and end["average_exit"] is None


def test_two_systems_and_two_visitors_do_not_mix(server: Server, models: Models) -> None:
    first, second = Client(server), Client(server)
    pair: list[dict[str, Any]] = [
        {"model": "grid", "policy": "wait-k k=1"},
        {"model": "deep", "policy": "wait-k k=3"},
    ]
    status, answer = first.ask("POST", "/streams", {"systems": pair})
    assert status == 201 and [s["title"] for s in answer["systems"]] == [
        "wait-k, k = 1", "wait-k, k = 3",
    ]  # fmt: skip
    other = second.open(model="grid", policy="wait-k k=1")
    events, others = [], []
    words = zip(SOURCES[0].split(), SOURCES[1].split(), strict=False)
    for mine, yours in words:
        events += first.feed(answer["stream"], mine)
        others += second.feed(other, yours)
    events += first.ask("POST", f"/streams/{answer['stream']}/end")[1]
    others += second.ask("POST", f"/streams/{other}/end")[1]
    for number, system in enumerate(pair):
        text, _ = _alone(models, SystemRequest(**system), " ".join(SOURCES[0].split()[:3]))
        assert [e["text"] for e in events if e["event"] == "end"][number] == text
    text, _ = _alone(models, SystemRequest(**pair[0]), " ".join(SOURCES[1].split()[:3]))
    assert others[-1]["text"] == text


def test_whole_lines(server: Server, models: Models) -> None:
    body = {"lines": [*SOURCES, ""], "align": True, "model": "grid"}
    status, answer = Client(server).ask("POST", "/translate", body)
    translations = answer["translations"]
    assert status == 200 and [t["line"] for t in translations] == [1, 2, 3]
    offline, _ = models.translator("grid")
    assert [t["text"] for t in translations] == offline.translate([*SOURCES, ""])
    assert len(translations[0]["alignment"][0]) == len(translations[0]["source"]) + 1


def test_what_there_is(server: Server) -> None:
    client = Client(server)
    status, answer = client.ask("GET", "/models")
    grid, deep, offline = answer["models"]
    assert status == 200 and answer["limits"]["words"] == LIMITS.words
    names = {model["name"]: [p["name"] for p in model["policies"]] for model in answer["models"]}
    assert names["offline"] == ["local-agreement", "hold-n"], "it must see whole prefixes"
    assert {"wait-k", "alignatt", "confidence"} <= set(names["grid"])
    assert "threshold" not in names["grid"] and "oracle" not in names["grid"], "no reader"
    assert deep["exits"] == ["1", "2", "auto"] and grid["exits"] == []
    assert (grid["policy"], offline["policy"]) == ("wait-k k=3", "local-agreement n=2")
    first = grid["policies"][0]["settings"][0]
    assert (first["name"], first["kind"], first["may_be_infinite"]) == ("k", "whole", True)
    assert client.ask("GET", "/health")[1]["status"] == "ok"


GOOD = json.dumps({"text": "Er"}).encode()
BAD = [
    ("GET", "/nothing", None, {}, 404, "nothing at this address"),
    ("GET", "/../models", None, {}, 404, "nothing at this address"),
    ("PUT", "/translate", b"{}", {}, 405, "POST only"),
    ("POST", "/health", b"{}", {}, 405, "GET only"),
    ("BREW", "/health", None, {}, 501, ""),
    ("POST", "/translate", b"{", {}, 400, "not JSON"),
    ("POST", "/translate", b"[]", {}, 400, "not an object"),
    ("POST", "/translate", b"{}", {}, 400, "lines"),
    ("POST", "/translate", b'{"lines": "Er"}', {}, 400, "lines"),
    ("POST", "/translate", b'{"lines": ["a\\nb"]}', {}, 400, "one sentence each"),
    ("POST", "/translate", b'{"lines": ["a", "b", "c", "d"]}', {}, 413, "at most 3 lines"),
    ("POST", "/translate", b'{"lines": ["Er"], "model": "grd"}', {}, 400, "Did you mean `grid`"),
    ("POST", "/translate", b'{"line": ["Er"]}', {}, 400, "Did you mean `lines`?"),
    ("POST", "/translate", b'{"lines": ["\xff"]}', {}, 400, "not UTF-8"),
    ("POST", "/translate", b'{"lines": ["\\ud800"]}', {}, 400, "not JSON"),
    ("POST", "/translate", b"[" * 1500, {}, 400, "not JSON"),
    ("POST", "/translate", b" " * 3000, {}, 413, "at most 2,000 bytes"),
    ("POST", "/translate", b"", {"Content-Length": "99999999999999999999"}, 413, "at most 2,000"),
    ("POST", "/translate", None, {"Content-Length": "-1"}, 411, "how long"),
    ("POST", "/translate", None, {"Transfer-Encoding": "chunked"}, 411, "how long"),
    ("POST", "/streams", b'{"systems": []}', {}, 400, "from 1 to 2 systems"),
    ("POST", "/streams", b'{"systems": [{}, {}, {}]}', {}, 400, "from 1 to 2 systems"),
    ("POST", "/streams", b'{"systems": [{"polcy": ""}]}', {}, 400, "Did you mean `policy`"),
    ("POST", "/streams/none/words", GOOD, {}, 404, "no such stream"),
    ("DELETE", "/streams/none", None, {}, 404, "no such stream"),
    ("GET", "/streams/none/events", None, {}, 404, "no such stream"),
    ("GET", "/health", None, {"Host": "evil.example"}, 403, "that name"),
    ("GET", "/health", None, {"Host": "127.0.0.1.evil.example"}, 403, "that name"),
    ("GET", "/health", None, {"Host": "["}, 403, "that name"),
    ("GET", "/health", None, {"Host": ""}, 403, "that name"),
    ("POST", "/streams", b"{}", {"Origin": "http://evil.example"}, 403, "other pages"),
    ("POST", "/streams", b"{}", {"Origin": "null"}, 403, "other pages"),
    ("POST", "/streams", b"{}", {"Origin": "http://127.0.0.1:1"}, 403, "other pages"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "message"),
    BAD, ids=[f"{n}-{row[0]}-{row[1]}" for n, row in enumerate(BAD)],
)  # fmt: skip
def test_bad_requests(
    method: str, path: str, body: bytes | None, headers: dict[str, str], status: int,
    message: str, server: Server,
) -> None:  # fmt: skip
    """Each is refused with a message, and the server continues."""
    code, answer = Client(server).ask(method, path, body, headers)
    assert code == status, answer
    assert message in f"{answer['error']} {answer['advice']}" and "Traceback" not in str(answer)
    assert Client(server).ask("GET", "/health")[0] == 200
    assert len(server.service.streams) == 0


@pytest.mark.parametrize("fails_at", [1, 2])
@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("own.py:7", "own.py:7: your own code failed while a request was answered: KeyError"),
        ("", "This is a bug in nmtgrid, while a request was answered: KeyError"),
    ],
)
def test_failures_while_a_request_is_answered(
    where: str, message: str, fails_at: int, server: Server, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The terminal shows where, the visitor sees that it failed, and the server continues."""
    words, feed = [0], LineStream.feed

    def failing(line: LineStream, word: str) -> Any:
        words[0] += 1
        if words[0] == fails_at:
            raise KeyError("what was typed")
        return feed(line, word)

    monkeypatch.setattr(LineStream, "feed", failing)
    monkeypatch.setattr("nmtgrid.serve.server.own_line", lambda fault: where)
    client = Client(server)
    stream = client.open(model="grid", policy="wait-k k=1")
    status, answer = client.ask("POST", f"/streams/{stream}/words", {"text": SOURCES[1]})
    last = answer[-1] if status == 200 else answer
    assert last["error"] == "The server failed: KeyError." and "terminal" in last["advice"]
    shown = capsys.readouterr().err
    assert message in " ".join(shown.split()) and "what was typed" not in f"{shown}{answer}"
    assert Client(server).ask("POST", f"/streams/{stream}/words", {"text": "Er"})[0] == 409
    assert Client(server).feed(Client(server).open(model="grid", policy="wait-k k=1"), "Er")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://Demo.example.org"}, 201),
        ({"Host": "demo.example.org", "Origin": "https://demo.example.org"}, 201),
        ({"Host": "demo.example.org"}, 201),
        ({"Host": "demo.example.org", "Origin": "https://evil.example"}, 403),
        ({"Origin": "https://demo.example.org:444"}, 403),
        ({"Host": "evil.example", "Origin": "https://demo.example.org"}, 403),
    ],
)
def test_behind_a_proxy(headers: dict[str, str], status: int, models: Models) -> None:
    """Proxies pass on the visitors' `Origin`, and either their `Host` or the server's own."""
    service = Service(models, LIMITS, ())
    server = Server(service, "127.0.0.1", 0, public_url="https://Demo.example.org/")
    server.begin()
    body = {"systems": [{"model": "grid", "policy": "wait-k k=1"}]}
    assert Client(server).ask("POST", "/streams", body, headers)[0] == status
    assert server.end(10)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://a.example:443/", "https://a.example"),
        ("http://A.example:8080", "http://a.example:8080"),
        ("https://[::1]:8", "https://[::1]:8"),
    ],
)
def test_origins_of_addresses(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    "url", ["a.example", "ftp://a.example", "https://a.example/demo", "https://u@a.example",
            "https://", "https://a:99999", "https://a.example?x=1", "https://["],
)  # fmt: skip
def test_addresses_that_are_no_sites(url: str) -> None:
    with pytest.raises(ConfigError, match="not the address of a site"):
        origin_of(url)


POLICIES = [
    ("grid", "wait-k k=0", "", "at least 1"),
    ("grid", "wait-k k=x", "", "`wait-k k`"),
    ("grid", "wait-k k=1,2", "", "gives 2"),
    ("grid", "confidence threshold=2", "", "below 1"),
    ("grid", "confidnce", "", "Did you mean `confidence`"),
    ("grid", "threshold threshold=0.5", "", "no reader"),
    ("grid", "oracle", "", "--oracle"),
    ("grid", "re-translation mask=1", "", "a stream cannot"),
    ("grid", "mma threshold=0.5", "", "monotonic"),
    ("grid", "../own.py:Always", "", "no reading policy"),
    ("grid", "wait-k k=1", "2", "one exit"),
    ("deep", "wait-k k=1", "9", "exit"),
    ("deep", "wait-k k=1", "../x", "x"),
    ("deep", "confidence threshold=0.5", "2", "early exits"),
    ("offline", "wait-k k=1", "", "both directions"),
]


@pytest.mark.parametrize(("model", "policy", "exit", "message"), POLICIES)
def test_systems_that_cannot_be(
    model: str, policy: str, exit: str, message: str, server: Server
) -> None:
    body = {"systems": [{"model": model, "policy": policy, "exit": exit}]}
    status, answer = Client(server).ask("POST", "/streams", body)
    assert status == 400 and message in f"{answer['error']} {answer['advice']}", answer
    assert len(server.service.streams) == 0


def test_policies_of_the_operators_own(home: Path, server: Server) -> None:
    """The operator may offer policies that a request must not name."""
    text = f"{home / 'own.py'}:Always"
    status, answer = Client(server).ask("POST", "/streams", {"systems": [{"policy": text}]})
    assert status == 400 and "no reading policy" in answer["error"]
    own = Models({"grid": home / "grid"}, policies=[text])
    assert own.system(SystemRequest()).request.policy == "Always"
    assert own.descriptions[0]["policies"][-1]["name"] == "Always"
    with pytest.raises(ConfigError, match="no reader"):
        Models({"grid": home / "grid"}, policies=["threshold threshold=0.5"])
    # A setting without a default takes its value from the text.
    strict = Models({"grid": home / "grid"}, policies=[f"{home / 'own.py'}:Strict share=0.3"])
    assert strict.descriptions[0]["policy"] == "Strict share=0.3"
    assert strict.descriptions[0]["policies"][-1]["settings"][0]["default"] is None
    with pytest.raises(ConfigError, match="`share` of `Strict` has no default"):
        Models({"grid": home / "grid"}, policies=[f"{home / 'own.py'}:Strict"])
    # JSON, and so the page, has no infinity.
    late = Models({"grid": home / "grid"}, policies=[f"{home / 'own.py'}:Late"]).descriptions
    assert '"default": "inf"' in json.dumps(late, allow_nan=False)


def test_stored_policies(home: Path, tmp_path: Path) -> None:
    """A guarantee is valid under its conditions, a policy for its weights."""
    folder = tmp_path / "deep"
    shutil.copytree(home / "deep", folder)
    checksum = load_model(folder, "cpu").checksum
    kept = PolicyPreset(
        "safe", "wait-k k=2", "valid", "bleu", 2.0, 0.95, 0.8, Conditions(finish_reading=True),
        "best", checksum,
    )  # fmt: skip
    other = dataclasses.replace(kept, name="other", weights="last", checksum="whole:0")
    POLICY_FILE.save(folder, [kept, other])
    warnings: list[str] = []
    models = Models({"deep": folder}, policies=["safe"], warn=warnings.append)
    system = models.system(SystemRequest(policy="safe", finish_reading=True))
    assert system.title == "wait-k, k = 2" and warnings == []
    names = [policy["name"] for policy in models.descriptions[0]["policies"]]
    assert "safe" in names and "other" not in names
    assert models.usual_policy("deep") == "safe" and warnings == [], "nobody has asked for it yet"
    models.system(SystemRequest(policy="safe", exit="2"))
    (warning,) = warnings
    assert "`--finish-reading` is off, not on, `--exit` is 2, not off" in warning
    assert "The guarantee on its loss does not hold here." in warning
    with pytest.raises(ConfigError, match="was tuned on the weights `last`, but `best` are used"):
        models.system(SystemRequest(policy="other"))
    with pytest.raises(ConfigError, match="was tuned on the weights `last`"):
        Models({"deep": folder}, policies=["other"])


def test_limits(server: Server) -> None:
    client = Client(server)
    streams = [client.open(model="grid") for _ in range(LIMITS.streams)]
    assert client.ask("POST", "/streams", {})[0] == 503
    assert client.ask("DELETE", f"/streams/{streams[0]}")[0] == 204
    assert client.ask("POST", f"/streams/{streams[0]}/words", {"text": "Er"})[0] == 404
    stream = streams[1]
    words = f"/streams/{stream}/words"
    assert client.ask("POST", words, {"text": "a " * 13})[0] == 413
    assert client.ask("POST", words, {"text": "a" * 301})[0] == 413
    client.feed(stream, "a " * 12)
    status, answer = client.ask("POST", words, {"text": "b", "end": True})
    assert status == 413 and "at most 12 words" in answer["error"]
    assert [e["event"] for e in client.feed(stream, " \u200b ", end=True)].count("end") == 1
    assert client.ask("POST", words, {"text": "", "end": True})[0] == 409


def test_empty_streams(server: Server) -> None:
    client = Client(server)
    events = client.feed(client.open(model="grid"), " ", end=True)
    assert [e["event"] for e in events] == ["end"] and events[0]["average_lagging"] is None


def test_words_without_units(server: Server) -> None:
    client = Client(server)
    stream = client.open(model="grid")
    (event,) = client.feed(stream, "\x01")
    assert event == {"event": "read", "system": 0, "word": "\x01", "units": [], "reads": 0}
    assert client.feed(stream, "Er", end=True)[-1]["event"] == "end"


def test_text_stays_text(server: Server) -> None:
    """Markup comes back as a JSON string, with a content type that no browser shows as a page."""
    client = Client(server)
    stream = client.open(model="grid")
    attack = "<img/src=x/onerror=alert(1)>"
    events = client.feed(stream, attack)
    assert events[0]["word"] == attack
    client.connection.request("GET", f"/streams/{stream}/events")
    response = client.connection.getresponse()
    response.read()
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Content-Type"].startswith("application/x-ndjson")
    client.connection.request("GET", "/")
    page = client.connection.getresponse()
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    text = page.read().decode() + (DOCS.parent / "nmtgrid/serve/page/page.js").read_text()
    assert "innerHTML" not in text and not re.search(r"(src|href)=\"(https?:)?//", text)
    assert " style=" not in text and not re.search(r"\son\w+=", text)


def _until(condition: Any, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_what_nobody_uses_is_freed(models: Models) -> None:
    server = _serve(models, Limits(idle=0.3))
    Client(server).open(model="grid")
    assert len(server.service.streams) == 1
    _until(lambda: len(server.service.streams) == 0)
    assert server.end(10)
    server = _serve(models, Limits())
    client = Client(server)
    for idle in (1e9, 0.1):
        assert client.ask("POST", "/streams", {"idle": idle})[0] == 201
    time.sleep(0.2)
    server.service.streams.close_idle()
    assert len(server.service.streams) == 1
    assert client.ask("POST", "/streams", {"idle": -1})[0] == 400
    assert server.end(10)


class _Gate:
    """Blocks the models until it is opened."""

    def __init__(self, worker: Worker) -> None:
        self.began, self.open = threading.Event(), threading.Event()
        run = worker.run

        def wait(work: Any, deadline: float) -> Any:
            def slowly() -> Any:
                self.began.set()
                assert self.open.wait(30)
                return work()

            return run(slowly, deadline)

        worker.run = wait  # type: ignore[method-assign]


def test_requests_in_work_are_finished(models: Models) -> None:
    server = _serve(models, LIMITS)
    client, idle = Client(server), Client(server)
    stream = client.open(model="grid")
    assert idle.ask("GET", "/health")[0] == 200
    gate = _Gate(server.service.worker)
    results: list[Any] = []
    asking = threading.Thread(target=lambda: results.append(client.feed(stream, "Er", end=True)))
    asking.start()
    assert gate.began.wait(20)
    assert idle.ask("POST", f"/streams/{stream}/words", {"text": "x"})[0] == 409
    ending = threading.Thread(target=lambda: results.append(server.end(20)))
    ending.start()
    _until(lambda: server.service.is_stopping)
    assert not results
    gate.open.set()
    asking.join(20)
    ending.join(20)
    events, ended = sorted(results, key=lambda value: value is True)
    assert ended is True and events[-1]["event"] == "end"
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.server_port), 1)


def test_queue_and_time_are_bounded(models: Models) -> None:
    limits = Limits(queue=1, seconds=0.5)
    server = _serve(models, limits)
    first, second = Client(server), Client(server)
    stream, refused = first.open(model="grid"), first.open(model="grid")
    gate = _Gate(server.service.worker)
    events: list[Any] = []
    asking = threading.Thread(
        target=lambda: events.append(first.ask("POST", f"/streams/{stream}/words", {"text": "Er"}))
    )
    asking.start()
    assert gate.began.wait(20)
    status, answer = second.ask("POST", "/translate", {"lines": ["Er"]})
    assert status == 503 and "Too many requests" in answer["error"]
    # The end of another stream has not been processed, so it may be sent again.
    status, answer = second.ask("POST", f"/streams/{refused}/end")
    assert status == 503 and "Too many requests" in answer["error"]
    asking.join(20)
    gate.open.set()
    assert events[0][0] == 503 and "more than 0.5 s" in events[0][1]["error"]
    # A request that was in progress may have changed the stream, which is therefore closed.
    assert second.ask("POST", f"/streams/{stream}/words", {"text": "Er"})[0] == 409
    assert second.feed(refused, "", end=True)[-1]["event"] == "end"
    assert server.end(10)


def test_an_endless_word_is_read_unit_by_unit(models: Models) -> None:
    """Other work may come in between, and the time limit applies: here after five units."""
    server = _serve(models, Limits())
    client, other = Client(server), Client(server)
    streams = [client.open(model="grid"), client.open(model="deep", policy="local-agreement n=2")]
    run, jobs = server.service.worker.run, 0

    def late(work: Any, deadline: float) -> Any:
        nonlocal jobs
        jobs += 1
        return run(work, deadline if jobs <= 5 else 0.0)

    server.service.worker.run = late  # type: ignore[method-assign]
    for stream in streams:
        jobs = 0
        events = client.feed(stream, "x" * 2000)
        assert events[0]["event"] == "read" and len(events[0]["units"]) > 100
        assert "more than 30 s" in events[-1]["error"]
        assert 6 <= jobs < 10, "the first five, and those that ended before they were looked at"
        assert all(e["reads"] <= jobs for e in events if e["event"] == "write")
        assert client.ask("POST", f"/streams/{stream}/words", {"text": "Er"})[0] == 409
    jobs = 0
    assert other.ask("POST", "/translate", {"lines": ["Er"]})[0] == 200
    assert server.end(10)


def test_visitors_who_leave(server: Server) -> None:
    """A connection that is closed halfway stops the reading; an incomplete request is dropped."""
    client = Client(server)
    stream = client.open(model="grid")
    gate = _Gate(server.service.worker)
    body = json.dumps({"text": "a b c d e f"}).encode()
    client.connection.request("POST", f"/streams/{stream}/words", body)
    assert gate.began.wait(20)
    client.connection.close()
    gate.open.set()
    session = server.service.streams.get(stream)
    _until(lambda: not session.is_busy)
    assert len([e for e in session.events if e["event"] == "read"]) < 6
    with pytest.raises(Refusal, match="The stream has ended"):
        next(session.feed("g"))
    client = Client(server)
    gate.began.clear()
    gate.open.clear()
    client.connection.request("POST", "/streams", b"{}")
    assert gate.began.wait(20)
    client.connection.close()
    gate.open.set()
    _until(lambda: server.service.worker.requests == 0 and len(server.service.streams) == 1)
    with socket.create_connection(("127.0.0.1", server.server_port)) as half:
        half.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
    with socket.create_connection(("127.0.0.1", server.server_port)) as noise:
        noise.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        assert b"Bad request syntax" in noise.recv(4096)
    assert Client(server).ask("GET", "/health")[0] == 200


def test_too_many_connections(models: Models) -> None:
    server = _serve(models, Limits(connections=2))
    kept = [Client(server) for _ in range(2)]
    assert [client.ask("GET", "/health")[0] for client in kept] == [200, 200]
    with socket.create_connection(("127.0.0.1", server.server_port)) as third:
        assert b"503" in third.recv(4096)
    assert server.end(10)


@pytest.mark.parametrize("is_live", [True, False])
def test_reads_of_a_line_in_pieces(is_live: bool) -> None:
    """The reads token by token are those of the whole line's record, without end symbols.

    Also if the tokens are fetched only after the line's end.
    """
    loaded = translator("pervasive")
    line = StreamTranslator(
        loaded.models, loaded.pipeline, WaitK(2), loaded.plan, limits=SourceLimits(3, 4), align=True
    ).begin()
    tokens: list[WrittenToken] = []
    for word in ["ab", "cd.", "e", "fgh.", "ab"]:
        line.read(word)
        tokens += line.new_tokens() if is_live else []
    line.end()
    tokens += line.new_tokens()
    whole = line.hypothesis()
    assert len(line.segments) > 2 and [t.unit for t in tokens] == [*line.target, "</s>"]
    assert [t.reads for t in tokens[:-1]] == whole.reads[:-1]  # type: ignore[index]
    assert [t.is_end for t in tokens] == [False] * len(line.target) + [True]
    assert whole.alignment is not None
    for token, row in zip(tokens[:-1], whole.alignment.tolist(), strict=False):
        assert token.alignment is not None and len(token.alignment) <= token.reads
        shares = [*token.alignment, *[0.0] * (len(row) - len(token.alignment))]
        assert shares[:-1] == pytest.approx(row[:-1], abs=1e-6)
    assert [t.seconds for t in tokens] == sorted(t.seconds for t in tokens)
    assert line.trace(1, "").alignment is not None


def test_examples() -> None:
    assert read_examples(iter(["", " a  b ", "c"])) == ["a b", "c"]
    with pytest.raises(Exception, match="no sentence"):
        read_examples(iter([" "]))


def test_refusals_have_a_status() -> None:
    assert Refusal(404, "a", "b").status == 404 and str(Refusal(404, "a", "b")) == "a b"


REFUSED = [
    (["demo", "grid", "grid"], "Two systems have the name `grid`"),
    (["demo", "missing"], "missing"),
    (["demo", "grid", "--policy", "wait-k k=0"], "at least 1"),
    (["demo", "grid", "--host", "192.0.2.1", "--port", "0"], "cannot listen on"),
    (["demo", "grid", "--host", "192.0.2.1", "--port", "0"], "Name an address of this machine"),
    (["demo", "grid", "--examples", "none.txt"], "none.txt"),
    (["demo", "grid", "--port", "70000"], "65535"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_commands_refused(
    words: list[str], message: str, home: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(home)
    assert main([*words, *([] if "--port" in words else ["--port", "0"])]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_command_from_start_to_sigterm(home: Path) -> None:
    """It prints its address, answers, and ends on SIGTERM with code 0."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nmtgrid", "demo", "grid", "--port", "0", "--no-page"],
        cwd=home, env={**os.environ, "PYTHONPATH": str(DOCS.parent)},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    line = process.stderr.readline()
    address = re.search(r"at http://127\.0\.0\.1:(\d+)/", line)
    assert address is not None, line + process.stderr.read()
    connection = http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=60)
    connection.request("GET", "/")
    response = connection.getresponse()
    assert response.status == 404 and response.read()  # without the page
    connection.request("POST", "/translate", json.dumps({"lines": list(SOURCES)}))
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert "Finishing" in process.stderr.read()


# As documented.

_COMMANDS = re.compile(r"^```sh\n(curl.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_documented_requests(models: Models, tmp_path: Path) -> None:
    server = _serve(models, LIMITS)
    text = (DOCS / "demo.md").read_text(encoding="utf-8")
    commands = [line for block in _COMMANDS.findall(text) for line in block.splitlines()]
    assert len(commands) >= 7
    stream = ""
    for command in commands:
        command = command.replace("localhost:8765", f"127.0.0.1:{server.server_port}")
        done = subprocess.run(
            ["sh", "-c", command.replace("STREAM", stream).replace("curl", "curl -sS --fail", 1)],
            capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        values = [json.loads(line) for line in done.stdout.splitlines()]
        stream = next((v["stream"] for v in values if "stream" in v), stream)
    assert len(server.service.streams) == 0, "the last one closes the stream"
    assert server.end(10)


# As a visitor sees it.


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
def test_in_a_browser(models: Models, tmp_path: Path) -> None:
    """While typing, words appear in order and coloured; the path grows; the page closes its stream.

    Markup stays text.
    """
    server = _serve(models, LIMITS, ("Er roltet.",))
    source = "Er <b>roltet</b> volend."
    text, line = _alone(models, SystemRequest("grid", "wait-k k=3"), source)
    with browser(tmp_path) as page:
        page.open(server.url)
        page.wait("document.querySelectorAll('.system').length == 2")
        assert page.evaluate("document.activeElement.id") == "word"
        for word in source.split()[:2]:
            page.type(f"{word} ")
        page.wait("document.querySelectorAll('#words li:not(.waiting)').length == 2")
        page.wait("document.querySelectorAll('.system:first-child svg text').length > 0")
        page.type(f"{source.split()[2]}\n")
        page.wait("[...document.querySelectorAll('[name=trace]')].every((b) => !b.disabled)")
        assert page.evaluate("document.querySelector('.target').textContent") == text
        assert page.evaluate("document.querySelector('#words').textContent") == "".join(
            source.split()
        )
        card = "document.querySelector('.system:first-child')"
        marks = page.evaluate(
            f"[...{card}.querySelectorAll('svg path.write')].map((p) => p.getAttribute('d'))"
        )
        assert len(marks) == len(line.target) + 1
        # Each write is drawn to the right of the source read so far.
        columns = [float(re.match(r"M([\d.]+)", mark)[1]) for mark in marks]  # type: ignore[index]
        reads = line.hypothesis().reads or []
        assert columns == sorted(columns) and len(set(columns)) == len(set(reads))
        colour = "(unit) => getComputedStyle(unit).backgroundColor"
        tones = f"[...{card}.querySelectorAll('.unit')].map({colour})"
        assert all(tone != "rgba(0, 0, 0, 0)" for tone in page.evaluate(tones))
        deep = "document.querySelector('.system:last-child .numbers').textContent"
        assert "Average exit" in page.evaluate(deep)
        before = page.evaluate(tones)
        page.evaluate("document.querySelector('[name=colour][value=none]').click()")
        assert page.evaluate(tones) != before or not before
        # Another policy translates the same words again; an invalid one explains the error.
        page.evaluate(
            f"(() => {{ const s = {card}.querySelector('[name=k]'); s.value = 1;"
            "s.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )
        again, _ = _alone(models, SystemRequest("grid", "wait-k k=1"), source)
        page.wait(f"{card}.querySelector('.title').textContent == 'wait-k, k = 1'")
        page.wait(f"{card}.querySelector('[name=trace]').disabled == false")
        assert page.evaluate("document.querySelector('.target').textContent") == again
        # Recorded by the page itself: a step may be over before the test can query it.
        note = "window.steps.add(Number(document.querySelector('#step').value))"
        page.evaluate(f"window.steps = new Set(); setInterval(() => {note}, 10)")
        page.evaluate("document.querySelector('#replay').click()")
        page.wait("window.steps.has(1)")
        for width in (390, 1300):
            page.resize(width, 900)
            wide = "document.documentElement.scrollWidth - window.innerWidth"
            assert page.evaluate(wide) <= 0
        page.evaluate("document.querySelector('#end').focus()")
        page.type("\x1b")
        page.wait("document.querySelectorAll('#words li').length == 0")
        page.evaluate("document.querySelector('#examples button').click()")
        page.wait(f"{card}.querySelector('[name=trace]').disabled == false")
        assert len(server.service.streams) == 1
        page.open("about:blank")
        # At once, or after a timeout if the browser does not let the page report it.
        _until(lambda: len(server.service.streams) == 0, 90)
        assert page.problems == []
    assert server.end(10)


PASTE = """(text => {
    const clipboardData = new DataTransfer();
    clipboardData.setData("text", text);
    const event = { clipboardData, bubbles: true, cancelable: true };
    document.querySelector("#word").dispatchEvent(new ClipboardEvent("paste", event));
})"""
CHANGE = """((name, value) => {
    const field = document.querySelector(`.system [name=${name}]`);
    field.value = value;
    for (const kind of ["input", "change"]) field.dispatchEvent(new Event(kind, { bubbles: true }));
})"""
WORDS = "[...document.querySelectorAll('#words li')].map((li) => li.textContent).join(' ')"
STATUS = "document.querySelector('#status').textContent"
TITLE = "document.querySelector('.system .title').textContent"
HAS_ENDED = "!document.querySelector('.system [name=trace]').disabled"


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
def test_pasted_text_in_a_browser(models: Models, tmp_path: Path) -> None:
    """None of it is lost by Enter or another paste; a text that is too long ends at the limit."""
    server = _serve(models, LIMITS)
    with browser(tmp_path) as page:
        page.open(server.url)
        page.wait("document.querySelectorAll('.system').length == 2")
        page.evaluate("document.querySelector('#pace').value = '60'")
        for text in ("a b c", "d e f"):
            page.evaluate(f"{PASTE}({text!r})")
        page.type("g\n")
        page.wait(HAS_ENDED)
        assert page.evaluate(WORDS) == "a b c d e f g"
        # The next one begins a new sentence.
        page.evaluate("document.querySelector('#pace').value = '0'")
        page.evaluate(f"{PASTE}({'b ' * (LIMITS.words + 5)!r})")
        page.wait(f"{STATUS}.includes('at most {LIMITS.words} words')")
        page.type("\n")
        page.wait(f"{HAS_ENDED} && !document.querySelector('.waiting')")
        assert page.evaluate(WORDS) == " ".join("b" * LIMITS.words)
        # Text composed with an input method may contain spaces that do not end a word.
        page.type("\x1b")
        page.send("Input.imeSetComposition", text="ni hao", selectionStart=6, selectionEnd=6)
        assert page.evaluate("document.querySelector('#word').value") == "ni hao"
        assert page.evaluate(WORDS) == ""
        page.send("Input.insertText", text="nihao ma")
        page.wait(f"{WORDS} == 'nihao'")
        assert page.problems == []
    assert server.end(10)


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
def test_settings_and_a_lost_server_in_a_browser(home: Path, tmp_path: Path) -> None:
    """Numbers between two steps of a field are accepted; errors are explained."""
    models = Models({"grid": home / "grid"}, policies=["wait-k k=inf"])
    server = _serve(models, LIMITS)
    with browser(tmp_path) as page:
        page.open(server.url)
        page.wait("document.querySelectorAll('.system').length == 1")
        page.type("Er roltet ")
        page.wait(f"{TITLE} == 'wait-k, k = ∞'")
        page.evaluate(f"{CHANGE}('policy', 'confidence')")
        page.evaluate(f"{CHANGE}('threshold', '0.83')")
        page.wait(f"{TITLE} == 'confidence p = 0.83'")
        page.evaluate(f"{CHANGE}('threshold', '')")
        page.wait(f"{STATUS}.startsWith('threshold: ')")
        page.evaluate(f"{CHANGE}('threshold', '0.5')")
        page.wait(f"{TITLE} == 'confidence p = 0.5' && {STATUS} == ''")
        assert page.problems == [] and server.end(10)
        page.type("volend\n")
        page.wait(f"{STATUS}.includes('does not answer')")
        assert not page.evaluate(HAS_ENDED)
        again = Server(Service(models, LIMITS, []), "127.0.0.1", server.server_port)
        again.begin()
        page.type("\n")
        page.wait(HAS_ENDED)
        assert page.evaluate(f"{WORDS} + {STATUS}") == "Er roltet volend"
    assert again.end(10)
