"""Measures `nmtgrid demo` as a client, for recipes/demo.sh.

python -m recipes.demo_table MODEL... --source FILE [--sentences N] [--streams M] --out PREFIX
        [--picture FILE.png]
    Start the server on a free local port. Feed N sentences to each system, word by word, and
    measure the milliseconds from sending a word to the first output that it triggers. Repeat this
    on the page in a headless Chromium, if installed, from the key press to the painted word. Then
    run M concurrent streams, three times, and compare each with the same sentence translated
    alone. Writes PREFIX.md and PREFIX.json.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nmtgrid.base.io.text import read_lines
from recipes.chromium import BROWSER, Page, browser
from recipes.seeds import PART
from recipes.tables import Row, write_table

BINS = (10, 20, 50, 100, 200)
"""Upper bounds of the histogram's bins, in milliseconds."""
ROUNDS = 3
SYSTEMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("pervasive", {"policy": "wait-k k=3"}),
    ("pervasive", {"policy": "threshold threshold=0.5"}),
    ("pervasive", {"policy": "alignatt last=1"}),
    ("transformer", {"policy": "wait-k k=3", "exit": "auto"}),
    ("transformer", {"policy": "confidence threshold=0.6"}),
    ("transformer", {"policy": "local-agreement n=2"}),
)


class Visitor:
    """A connection to the server."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self._connection.connect()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the JSON of the response."""
        content = None if body is None else json.dumps(body)
        self._connection.request(method, path, content)
        response = self._connection.getresponse()
        text = response.read()
        if response.status >= 400:
            raise SystemExit(f"error: {method} {path}: {text.decode()}")
        return json.loads(text) if text else None

    def feed(self, stream: str, text: str, end: bool = False) -> Iterator[tuple[float, Any]]:
        """Feed a stream; yield each event with the milliseconds since the words were sent."""
        body = json.dumps({"text": text, "end": end})
        began = time.perf_counter()
        self._connection.request("POST", f"/streams/{stream}/words", body)
        response = self._connection.getresponse()
        while line := response.readline():
            yield 1000 * (time.perf_counter() - began), json.loads(line)

    def translate(self, system: dict[str, Any], source: str) -> tuple[str, list[float]]:
        """Return the translation of a sentence fed word by word, and the delays of its outputs."""
        stream = self.ask("POST", "/streams", {"systems": [system]})["stream"]
        words, delays, text = source.split(), [], ""
        for word, is_end in [*((word, False) for word in words), ("", True)]:
            is_new = True
            for delay, event in self.feed(stream, word, is_end):
                if event["event"] == "text" and is_new:
                    delays.append(delay)
                    is_new = False
                if event["event"] == "end":
                    text = event["text"]
        self.ask("DELETE", f"/streams/{stream}")
        return text, delays


@contextlib.contextmanager
def server(models: Sequence[str], examples: Path) -> Iterator[tuple[int, int]]:
    """Yield the port and process id of a server; raise SystemExit if it does not exit cleanly."""
    command = [sys.executable, "-m", "nmtgrid", "demo", *models, "--port", "0", "--device", "cpu"]
    command += ["--policy", "threshold threshold=0.5", "--examples", str(examples)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    address = re.search(r":(\d+)/", line)
    if address is None:
        raise SystemExit(f"error: the server did not start: {line}{process.stderr.read()}")
    try:
        yield int(address[1]), process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        if process.wait(120):
            raise SystemExit(f"error: the server ended with code {process.returncode}.")


def processor_seconds(process: int) -> float:
    """Return the processor time that a process has used so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def mebibytes(process: int) -> float:
    """Return the resident memory of a process in MiB."""
    text = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1024


def spread(delays: Sequence[float]) -> Row:
    """Return the median, the 95th percentile and a histogram of delays in milliseconds."""
    ordered = sorted(delays)
    row: Row = {
        "words that decided": len(ordered),
        "median ms": statistics.median(ordered),
        "95 % ms": percentile_95(ordered),
    }
    for least, most in zip((0, *BINS), (*BINS, float("inf")), strict=True):
        name = f"below {most} ms" if most != float("inf") else f"from {least} ms"
        row[name] = sum(least <= delay < most for delay in ordered)
    return row


def percentile_95(values: Sequence[float]) -> float:
    """Return the 95th percentile (the nearest value above)."""
    return sorted(values)[int(0.95 * len(values))]


def through_http(port: int, process: int, sources: Sequence[str]) -> list[Row]:
    """Return a row for each system: delays from sending a word to the first output."""
    rows = []
    for model, settings in SYSTEMS:
        visitor, system = Visitor(port), {"model": model, **settings}
        visitor.translate(system, sources[0])  # warm-up
        before = processor_seconds(process)
        delays = [delay for source in sources for delay in visitor.translate(system, source)[1]]
        words = sum(len(source.split()) for source in sources)
        cost = 1000 * (processor_seconds(process) - before) / words
        name = " ".join([model, *settings.values()])
        rows.append({PART: "Through HTTP", "system": name, **spread(delays),
                     "processor ms of a source word": cost})  # fmt: skip
    return rows


def on_screen(port: int, sources: Sequence[str]) -> list[Row]:
    """Return a row for each model: delays from the key press to the painted word."""
    rows = []
    with tempfile.TemporaryDirectory() as home, browser(Path(home)) as page:
        load(page, port)
        page.evaluate("document.querySelector('#compare').click()")
        for model in ("pervasive", "transformer"):
            choose(page, 0, "model", model)
            delays: list[float] = []
            for source in sources:
                for word in source.split():
                    page.type(f"{word} ")
                    page.wait("!document.querySelector('#words .waiting')")
                page.type("\n")
                page.wait("!document.querySelector('[name=trace]').disabled")
                time.sleep(0.1)
                shown = page.evaluate("document.querySelector('.numbers').dataset.delays")
                delays += map(float, shown.split())
                page.type("\x1b")
            title = f"{model}, the page's usual policy"
            rows.append({PART: "On the screen of a browser", "system": title, **spread(delays)})
    return rows


def load(page: Page, port: int) -> None:
    """Open the page and wait until it has loaded."""
    page.open(f"http://127.0.0.1:{port}/")
    page.wait("document.querySelectorAll('.system').length > 0")


def choose(page: Page, system: int, name: str, value: object) -> None:
    """Choose a value of one of a system's fields."""
    page.evaluate(
        f"(() => {{ const f = document.querySelectorAll('.system')[{system}].querySelector("
        f"'[name={name}]'); f.value = {json.dumps(value)};"
        "for (const e of ['input', 'change']) f.dispatchEvent(new Event(e, {bubbles: true})) })()"
    )


def at_once(port: int, process: int, sources: Sequence[str], count: int) -> list[Row]:
    """Return a row for each round of `count` concurrent streams, one sentence per stream."""
    tasks = [
        ({"model": SYSTEMS[n % len(SYSTEMS)][0], **SYSTEMS[n % len(SYSTEMS)][1]},
         sources[n % len(sources)]) for n in range(count)
    ]  # fmt: skip
    visitor = Visitor(port)
    alone = [visitor.translate(system, source)[0] for system, source in tasks]
    rows = []
    for number in range(1, ROUNDS + 1):
        texts, delays, seconds = together(port, tasks)
        words = sum(len(source.split()) for _, source in tasks)
        rows.append({
            PART: f"{count} streams at once",
            "round": number,
            "lost": sum(n not in texts for n in range(count)),
            "mixed": sum(texts.get(n, alone[n]) != alone[n] for n in range(count)),
            "source words": words,
            "words a second": words / seconds,
            "median ms": statistics.median(delays),
            "95 % ms": percentile_95(delays),
            "MiB after it": mebibytes(process),
            "streams left": Visitor(port).ask("GET", "/health")["streams"],
        })  # fmt: skip
    return rows


def together(
    port: int, tasks: Sequence[tuple[dict[str, Any], str]]
) -> tuple[dict[int, str], list[float], float]:
    """Run all tasks concurrently; return the texts by task number, all delays, and seconds."""
    texts: dict[int, str] = {}
    delays: list[float] = []
    visitors = [Visitor(port) for _ in tasks]
    start = threading.Barrier(len(tasks))

    def work(n: int) -> None:
        start.wait()
        texts[n], waits = visitors[n].translate(*tasks[n])
        delays.extend(waits)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(tasks))]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return texts, delays, time.perf_counter() - began


def take_picture(port: int, path: Path) -> None:
    """Write a screenshot of the page with both systems side by side on the fifth example."""
    with tempfile.TemporaryDirectory() as home, browser(Path(home)) as page:
        page.prefer("light")
        page.resize(1440, 900)
        load(page, port)
        page.evaluate("document.querySelector('#pace').value = '0'")
        choose(page, 1, "k", 5)
        page.evaluate("document.querySelectorAll('#examples button')[4].click()")
        page.wait("[...document.querySelectorAll('[name=trace]')].every((b) => !b.disabled)")
        page.evaluate("document.activeElement.blur()")
        time.sleep(1)
        page.screenshot(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs=2, help="the models of recipes/demo.sh")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=60)
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    lines = [line for line in read_lines(options.source) if line.strip()]
    sources = lines[: options.sentences]
    with server(options.models, options.source) as (port, process):
        rows = through_http(port, process, sources)
        if BROWSER is not None:
            rows += on_screen(port, sources[: max(1, len(sources) // 3)])
        rows += at_once(port, process, lines[: options.streams], options.streams)
        if options.picture is not None:
            take_picture(port, options.picture)
    write_table(rows, str(options.out))


if __name__ == "__main__":
    main()
