"""The HTTP interface: batches, streams and their events as JSON, and the page that shows them.

docs/demo.md describes the requests. A server on loopback answers only pages of this machine: it
rejects other host names (DNS rebinding) and requests that other pages make (`Origin`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import ipaddress
import json
import select
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import urlsplit

from nmtgrid import __version__
from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError, InputError, NmtgridError, nearest
from nmtgrid.base.io.records import NonNegative, convert, parse_json
from nmtgrid.base.own_code import own_line
from nmtgrid.search.traces import Trace
from nmtgrid.serve.streams import Event, Limits, Refusal, Stream, Streams, Worker, trace_values
from nmtgrid.serve.systems import Models, SystemRequest

Kind = TypeVar("Kind")
PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_JSON, _LINES = "application/json", "application/x-ndjson"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_EXAMPLES = "docs/demo.md lists the addresses, each with an example."
_EXAMPLES_SHOWN = 8
_LINES_AT_ONCE = 8
"""Lines of a batch that are translated before streams continue."""
_LEAVE = 5.0
"""Seconds between checks for streams that nobody uses."""


@dataclasses.dataclass(frozen=True)
class TranslateRequest:
    """Whole sentences, one per line; `model` is a name, by default the first one."""

    lines: list[str]
    model: str = ""
    align: bool = False


@dataclasses.dataclass(frozen=True)
class OpenRequest:
    """A stream of one system, or of several side by side."""

    systems: list[SystemRequest] = dataclasses.field(default_factory=lambda: [SystemRequest()])
    idle: NonNegative | None = None
    """Seconds without a request before it may be closed, at most (None) the server's limit."""


@dataclasses.dataclass(frozen=True)
class WordsRequest:
    """Words that have arrived, separated by spaces, and whether the line ends with them."""

    text: str = ""
    end: bool = False


class Service:
    """The operations behind the requests, without HTTP."""

    def __init__(self, models: Models, limits: Limits, examples: Sequence[str]) -> None:
        self.models, self.limits, self.examples = models, limits, list(examples)
        self.worker = Worker(limits)
        self.streams = Streams(self.worker, limits)
        self._began = time.monotonic()
        self.is_stopping = False

    def health(self) -> dict[str, Any]:
        """Return whether the service accepts requests, and its current load."""
        return {
            "status": "stopping" if self.is_stopping else "ok",
            "version": __version__,
            "models": list(self.models.loaded),
            "streams": len(self.streams),
            "requests": self.worker.requests,
            "seconds": round(time.monotonic() - self._began, 3),
        }

    def describe(self) -> dict[str, Any]:
        return {
            "models": self.models.descriptions,
            "limits": dataclasses.asdict(self.limits),
            "examples": self.examples,
        }

    def translate(self, request: TranslateRequest) -> dict[str, Any]:
        """Translate whole lines; return their traces. Raises NmtgridError."""
        lines, limits = request.lines, self.limits
        if len(lines) > limits.lines or sum(map(len, lines)) > limits.characters:
            raise Refusal(
                413,
                f"A request has at most {limits.lines:,} lines and {limits.characters:,} "
                "characters.",
                "Send several.",
            )
        if any("\n" in line for line in lines):
            raise Refusal(400, "`lines` are one sentence each, without a line's end.")
        translator, aligns = self.models.translator(request.model)
        align = request.align and aligns
        translations = []
        with self.worker as deadline:
            for first in range(0, len(lines), _LINES_AT_ONCE):
                some = lines[first : first + _LINES_AT_ONCE]
                translations += self.worker.run(
                    lambda some=some: list(translator.translations(some, align=align)),  # type: ignore[misc]
                    deadline,
                )
        traces = [Trace.of(translation) for translation in translations]
        numbered = [dataclasses.replace(t, line=n) for n, t in enumerate(traces, start=1)]
        return {"translations": [trace_values(trace) for trace in numbered]}

    def open(self, request: OpenRequest) -> dict[str, Any]:
        """Open a stream; return its id and systems, with all names set. Raises NmtgridError."""
        if self.is_stopping:
            raise Refusal(503, "The server is stopping.")
        stream = self.streams.open(
            [self.models.system(each) for each in request.systems], request.idle
        )
        return {
            "stream": stream.id,
            "systems": [
                {**dataclasses.asdict(system.request), "title": system.title}
                for system in stream.systems
            ],
        }


def origin_of(url: str) -> str:
    """Return the `Origin` of pages at `url`. Raises ConfigError if it is not a site's address."""
    try:
        parts = urlsplit(url.lower())
        is_site = bool(parts.hostname) and parts.scheme in ("http", "https")
        port = parts.port
    except ValueError:
        is_site = False
    if not is_site or parts.path not in ("", "/") or "@" in parts.netloc or parts.query:
        raise ConfigError(
            f"`--public-url {url}` is not the address of a site.",
            "Give it without a path, such as https://demo.example.org.",
        )
    usual = {"http": 80, "https": 443}[parts.scheme]
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    return f"{parts.scheme}://{host}" + ("" if port in (None, usual) else f":{port}")


class Server(ThreadingHTTPServer):
    """Serves a `Service`; each connection has a thread, and their number is bounded."""

    daemon_threads, block_on_close = True, False
    request_queue_size = 128

    def __init__(
        self, service: Service, host: str, port: int, page: bool = True, public_url: str = ""
    ) -> None:
        """Bind the address; raises ConfigError if that fails.

        `public_url` is the server's address for visitors, if it is behind a proxy.
        """
        self.service, self._host = service, host
        self.public_origin = origin_of(public_url) if public_url else ""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        folder = files("nmtgrid.serve") / "page"
        self.page = {
            path: ((folder / name).read_bytes(), kind)
            for path, (name, kind) in (PAGE.items() if page else ())
        }
        self.connections: dict[socket.socket, bool] = {}
        """Each open connection, and whether it is serving a request."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        try:
            super().__init__((host, port), Handler)
        except OSError as fault:
            advice = "Name an address of this machine; 127.0.0.1 is open to this machine alone."
            if fault.errno in (errno.EADDRINUSE, errno.EACCES):
                advice = "Give another port, or 0 for any free one."
            raise ConfigError(
                f"The server cannot listen on `--host {host} --port {port}`: "
                f"{fault.strerror or fault}.",
                advice,
            ) from fault

    def server_bind(self) -> None:
        # Not http.server's, which asks a name server for this machine's name.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self._host, self.server_address[1]

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.server_port}/"

    def begin(self) -> None:
        """Serve, in separate threads."""
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()
        threading.Thread(target=self._close_idle, daemon=True).start()

    def end(self, seconds: float) -> bool:
        """Accept no more requests and finish the current ones; return whether all ended in time."""
        self.service.is_stopping = True
        self._stop.set()
        self.shutdown()
        self.server_close()
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.connections:
            with self._lock:
                idle = [connection for connection, busy in self.connections.items() if not busy]
            for connection in idle:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)
            time.sleep(0.02)
        self.service.worker.close()
        return not self.connections

    def knows_host(self, name: str | None) -> bool:
        """Return whether a request's `Host` is valid: an address, or one of this server's names.

        A page that binds its own name to this address (DNS rebinding) sends that name.
        """
        if not name:
            return False
        try:
            host = urlsplit(f"//{name}").hostname or ""
        except ValueError:
            return False
        if host in ("localhost", self._host.lower(), socket.gethostname().lower()):
            return True
        if self.public_origin and name.lower() == urlsplit(self.public_origin).netloc:
            return True
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(host))
        return False

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, or reject it if there are too many."""
        with self._lock:
            is_full = len(self.connections) >= self.service.limits.connections
            if not is_full:
                self.connections[request] = False
        if is_full:
            with contextlib.suppress(OSError):
                request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self.connections.pop(request, None)
        super().shutdown_request(request)

    def mark(self, connection: socket.socket, busy: bool) -> None:
        """Record whether a connection is serving a request."""
        with self._lock:
            if connection in self.connections:
                self.connections[connection] = busy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that broke off."""

    def _close_idle(self) -> None:
        while not self._stop.wait(min(_LEAVE, self.service.limits.idle)):
            self.service.streams.close_idle()


class Handler(BaseHTTPRequestHandler):
    """Reads the requests of one connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = f"nmtgrid/{__version__}", ""
    timeout = 30.0
    # A word's events must not wait for the acknowledgement of the previous word's.
    disable_nagle_algorithm = True

    def handle_one_request(self) -> None:
        """Serve a request; the connection may be closed while waiting for the next one."""
        self.server.mark(self.connection, False)
        self._has_begun = self._is_chunked = False
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True
        if self.server.service.is_stopping:
            self.close_connection = True

    def parse_request(self) -> bool:
        self.server.mark(self.connection, True)
        return super().parse_request()

    def do_GET(self) -> None:
        """Answer a GET."""
        self._answer()

    do_HEAD = do_POST = do_DELETE = do_PUT = do_PATCH = do_OPTIONS = do_GET

    def log_message(self, format: str, *arguments: Any) -> None:
        """Keep no log, because visitors' texts are private."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer requests that http.server rejects, in our format."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self._send_fault(code, message or "The request is not HTTP.", "")

    def _answer(self) -> None:
        try:
            try:
                self._check_sender()
                self._route()
            except Refusal as fault:
                self._send_fault(fault.status, fault.problem, fault.advice)
            except NmtgridError as fault:
                self._send_fault(400, fault.problem, fault.advice)
        except (BrokenPipeError, ConnectionError, TimeoutError):
            self.close_connection = True  # the visitor has gone
        except Exception as fault:  # a visitor must not learn more, nor end the server
            self.close_connection = True
            with contextlib.suppress(OSError):
                self._send_fault(500, *_report(fault))

    def _check_sender(self) -> None:
        """Raise Refusal if another page sent the request."""
        host, origin = self.headers.get("Host"), self.headers.get("Origin")
        if not self.server.knows_host(host):
            self.close_connection = True
            raise Refusal(403, "This server does not have that name.", "Use its address.")
        own = {f"http://{host}".lower(), self.server.public_origin}
        if origin is not None and origin.lower() not in own - {""}:
            self.close_connection = True
            raise Refusal(403, "Requests of other pages are refused.", "Use this server's own.")

    def _route(self) -> None:
        path, service = urlsplit(self.path).path, self.server.service
        parts = path.strip("/").split("/")
        routes: dict[str, Callable[[], None]] = {}
        if path in self.server.page:
            routes["GET"] = lambda: self._send(200, *self.server.page[path])
        elif path == "/health":
            routes["GET"] = lambda: self._send_json(service.health())
        elif path == "/models":
            routes["GET"] = lambda: self._send_json(service.describe())
        elif path == "/translate":
            routes["POST"] = lambda: self._send_json(
                service.translate(self._body(TranslateRequest))
            )
        elif path == "/streams":
            routes["POST"] = lambda: self._open_stream(self._body(OpenRequest))
        elif parts[0] == "streams" and len(parts) == 2:
            routes["DELETE"] = lambda: self._close_stream(parts[1])
        elif parts[0] == "streams" and parts[2:] == ["words"]:
            routes["POST"] = lambda: self._feed(parts[1], self._body(WordsRequest))
        elif parts[0] == "streams" and parts[2:] == ["end"]:
            routes["POST"] = lambda: self._feed(parts[1], WordsRequest("", True))
        elif parts[0] == "streams" and parts[2:] == ["events"]:
            routes["GET"] = lambda: self._send_events(service.streams.get(parts[1]))
        if not routes:
            self._drop_body()
            raise Refusal(404, "There is nothing at this address.", _EXAMPLES)
        method = "GET" if self.command == "HEAD" else self.command
        if method not in routes:
            self._drop_body()
            raise Refusal(405, f"This address answers to {', '.join(routes)} only.", _EXAMPLES)
        if self.command != "POST" or parts[-1] == "end":
            self._drop_body()
        routes[method]()

    def _body(self, kind: type[Kind]) -> Kind:
        """Return the JSON of a request. Raises Refusal if it is too large or invalid."""
        content = self._read_body()
        try:
            values = parse_json(content or b"{}")
            if not isinstance(values, dict):
                raise ValueError("it is not an object")
            _check_names(values, kind)
            return convert(values, kind)
        except ValueError as fault:
            reason = str(fault) if str(fault).endswith("?") else f"{fault}."
            raise Refusal(400, f"The request body is invalid: {reason}", _EXAMPLES) from fault

    def _read_body(self) -> bytes:
        most = self.server.service.limits.body
        text = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not (text.isascii() and text.isdigit()):
            self.close_connection = True
            raise Refusal(411, "The request does not say how long its body is.")
        if len(text) > 12 or int(text) > most:
            self.close_connection = True
            raise Refusal(413, f"A request has at most {most:,} bytes.", "Send several.")
        content = self.rfile.read(int(text))
        if len(content) < int(text):
            raise ConnectionError("the body ended early")
        return content

    def _drop_body(self) -> None:
        """Read the body of a rejected request, which would be taken for the next request."""
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self._read_body()

    def _open_stream(self, request: OpenRequest) -> None:
        answer = self.server.service.open(request)
        try:
            self._check_visitor()
            self._send_json(answer, 201)
        except OSError:  # nobody will ever learn its id
            self.server.service.streams.close(answer["stream"])
            raise

    def _close_stream(self, id: str) -> None:
        self.server.service.streams.close(id)
        self._send(204, b"", _JSON)

    def _feed(self, id: str, request: WordsRequest) -> None:
        """Feed a stream, and write its events as they happen, one line of JSON each."""
        events = self.server.service.streams.get(id).feed(request.text, request.end)
        with contextlib.closing(events):
            first = next(events, [])  # requests are rejected before the answer begins
            self._send_head(200, _LINES, None)
            try:
                self._write_events(first)
                for some in events:
                    self._write_events(some)
                    self._check_visitor()
            except NmtgridError as fault:
                self._write_fault(fault.problem, fault.advice)
            except OSError:
                raise  # the visitor has gone
            except Exception as fault:  # as in `_answer`, whose status would come too late
                self._write_fault(*_report(fault))
            self._write_chunk(b"")

    def _write_fault(self, problem: str, advice: str) -> None:
        line = {"event": "error", "error": problem, "advice": advice}
        self._write_chunk(json.dumps(line).encode() + b"\n")

    def _send_events(self, stream: Stream) -> None:
        self._send_head(200, _LINES, None)
        self._write_events(list(stream.events))
        self._write_chunk(b"")

    def _check_visitor(self) -> None:
        """Raise ConnectionError if the visitor has closed the connection."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        if readable and not self.connection.recv(1, socket.MSG_PEEK):
            raise ConnectionError("the visitor has gone")

    def _write_events(self, events: Sequence[Event]) -> None:
        lines = (json.dumps(event, ensure_ascii=False) for event in events)
        if content := "".join(f"{line}\n" for line in lines):
            self._write_chunk(content.encode())

    def _write_chunk(self, content: bytes) -> None:
        """Write a part of a body of unknown length; an empty part ends it."""
        if self._is_chunked:
            content = b"%x\r\n%b\r\n" % (len(content), content)
        if self.command != "HEAD":
            self.wfile.write(content)

    def _send_json(self, values: Any, status: int = 200) -> None:
        self._send(status, json.dumps(values, ensure_ascii=False).encode() + b"\n", _JSON)

    def _send_fault(self, status: int, problem: str, advice: str) -> None:
        if self._has_begun:  # an answer has begun: it can only break off
            self.close_connection = True
            return
        self._send_json({"error": problem, "advice": advice}, status)

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self._send_head(status, kind, len(content))
        if self.command != "HEAD":
            self.wfile.write(content)

    def _send_head(self, status: int, kind: str, length: int | None) -> None:
        self._has_begun = True
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        if length is not None:
            self.send_header("Content-Length", str(length))
        elif self.request_version == "HTTP/1.1":
            self._is_chunked = True
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.close_connection = True  # the end of the connection is that of the body
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if status == 503:
            self.send_header("Retry-After", "1")
        if self.close_connection or self.server.service.is_stopping:
            self.send_header("Connection", "close")
        self.end_headers()


def _report(fault: Exception) -> tuple[str, str]:
    """Print on the terminal where a request failed; return a message for its visitor, and advice.

    The fault's own message is left out of both: it may contain what another visitor has typed.
    """
    kind, where = type(fault).__name__, own_line(fault)
    if where:
        console.error(f"{where}: your own code failed while a request was answered: {kind}")
    else:
        frame = traceback.extract_tb(fault.__traceback__)[-1]
        console.error(
            f"This is a bug in nmtgrid, while a request was answered: {kind} "
            f"({frame.filename}:{frame.lineno}).",
            "Please report it.",
        )
    return f"The server failed: {kind}.", "Its terminal says where."


def _check_names(values: Mapping[str, Any], kind: Any) -> None:
    """Raise ValueError for keys that a request does not have, so that typing errors are noticed."""
    names = [field.name for field in dataclasses.fields(kind)]
    for name in values:
        if name not in names:
            raise ValueError(f"there is no `{name[:40]}`. {nearest(name, names)}".rstrip(" ."))
    for system in values["systems"] if isinstance(values.get("systems"), list) else ():
        if isinstance(system, dict):
            _check_names(system, SystemRequest)


def read_examples(lines: Iterator[str]) -> list[str]:
    """Return the first lines that are not empty. Raises InputError if there are none."""
    examples = [text for line in lines if (text := " ".join(line.split()))][:_EXAMPLES_SHOWN]
    if not examples:
        raise InputError("the file has no sentences.")
    return examples
