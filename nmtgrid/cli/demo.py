"""`nmtgrid demo`: a local web page that shows how models read and write, and its HTTP interface."""

from __future__ import annotations

import dataclasses
import ipaddress
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nmtgrid.base import console
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.io.atomic import folder_name, name_faults, split_label
from nmtgrid.base.io.text import read_lines
from nmtgrid.cli.options import (
    CommandArguments,
    Device,
    Precision,
    Weights,
    argument,
    flag,
    option,
    takes,
)

if TYPE_CHECKING:
    from nmtgrid.serve.server import Server


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoArguments(CommandArguments):
    models: list[str] = argument("Model directories; NAME=MODEL names one.", "MODEL")
    policy: list[str] | None = option(
        "Initial reading policy, such as `confidence threshold=0.8`, or one of your own, "
        "`FILE.py:Class`, which the page then offers; may be repeated.",
        "TEXT",
    )
    examples: Path | None = option(
        "Example sentences, one per line; the first eight are used.", "FILE"
    )
    host: str = option(
        "Address to listen on; with any but the local address, everybody who can reach the machine "
        "has access.",
        "ADDRESS",
        default="127.0.0.1",
    )
    public_url: str = option(
        "Public address of the server if it is behind a proxy, such as https://demo.example.org; "
        "requests from other sites are refused.",
        "URL",
        default="",
    )
    port: int = option("Port; 0: any free one.", "N", default=8765, min=0, max=65535)
    no_page: bool = flag("--no-page", "HTTP interface only, without the page.")
    max_streams: int = option("Maximum number of open streams.", "N", default=64, min=1, max=10_000)
    max_words: int = option(
        "Maximum number of source words per stream.", "N", default=400, min=1, max=100_000
    )
    time_limit: float = option("Time limit of a request, in seconds.", "X", default=30.0, min=0.1)
    idle: float = option(
        "Seconds after which an unused stream is closed.", "X", default=300.0, min=0.1
    )
    max_source: int | None = option(
        "Maximum source length in units before splitting.  [default: as in training]", "N", min=1
    )
    weights: Weights = "best"
    precision: Precision = "fp32"
    device: Device = "auto"


@takes(
    DemoArguments,
    {
        "Page": "policy examples no_page",
        "Server": "host port public_url max_streams max_words max_source time_limit idle",
    },
    "nmtgrid demo MODEL",
    "nmtgrid demo grid=MODEL1 transformer=MODEL2 --policy 'confidence threshold=0.8'",
    "nmtgrid demo MODEL --no-page --port 0",
)
def command(arguments: DemoArguments) -> None:
    """Serve a local web page that shows how models read and write while you type.

    The same is available as JSON over HTTP, for services and other pages; docs/demo.md describes
    both. Ctrl-C or SIGTERM stops the server once the requests in progress are done.
    """
    names = _names(arguments.models)
    server = _make_server(arguments, names)
    server.begin()
    try:
        _announce(arguments, server.url)
        # The signal that ends this wait must not interrupt the hand-over of a request. If another
        # thread receives it, a wait without a time limit would not end.
        while True:
            time.sleep(0.2)
    except KeyboardInterrupt:
        console.say("Finishing the requests in progress.")
        if not server.end(arguments.time_limit):
            console.warn("some requests did not finish in time and were cancelled.")


def _announce(arguments: DemoArguments, url: str) -> None:
    what = "Requests are answered at" if arguments.no_page else "The page is at"
    console.say(f"{what} {url} (Ctrl-C ends it).")
    if not _is_loopback(arguments.host):
        console.warn(
            f"`--host {arguments.host}` makes the models available to everybody who can reach this "
            "machine, without encryption or a password."
        )


def _names(texts: Sequence[str]) -> dict[str, Path]:
    """Return the model directories by their display names. Raises ConfigError."""
    paths = [split_label(text) for text in texts]
    named = [(label or folder_name(path), path) for label, path in paths]
    if faults := name_faults(named):
        raise ConfigError(faults)
    return dict(named)


def _make_server(arguments: DemoArguments, names: dict[str, Path]) -> Server:
    from nmtgrid.base.devices import find_device
    from nmtgrid.serve.server import Server, Service, read_examples
    from nmtgrid.serve.streams import Limits
    from nmtgrid.serve.systems import Models

    examples: list[str] = []
    if arguments.examples is not None:
        examples = read_examples(read_lines(arguments.examples))
    models = Models(
        names,
        device=find_device(arguments.device),
        precision=arguments.precision,
        weights=arguments.weights,
        max_source=arguments.max_source,
        policies=arguments.policy or [],
        warn=console.warn,
    )
    limits = Limits(
        streams=arguments.max_streams,
        words=arguments.max_words,
        seconds=arguments.time_limit,
        idle=arguments.idle,
    )
    service = Service(models, limits, examples)
    _ = models.descriptions  # computed now, so that the first visitor does not wait for them
    has_page, public_url = not arguments.no_page, arguments.public_url
    return Server(service, arguments.host, arguments.port, has_page, public_url)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
