"""A headless Chromium, driven over pipes by the DevTools protocol: for measurements and tests."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    """A page of the browser."""

    def __init__(self, to: int, from_: int) -> None:
        self._to, self._from = to, from_
        self._rest, self._number, self._session = b"", 0, ""
        self.problems: list[str] = []
        """Script errors and console messages."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> Any:
        """Call a protocol method and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _receive(self) -> Any:
        while b"\0" not in self._rest:
            part = os.read(self._from, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        answer = json.loads(message)
        if answer.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(answer["params"]["exceptionDetails"]))
        elif answer.get("method") == "Log.entryAdded":
            self.problems.append(str(answer["params"]["entry"]))
        return answer

    def open(self, address: str) -> None:
        """Go to an address."""
        self.send("Page.navigate", url=address)

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, script: str, seconds: float = 60.0) -> Any:
        """Wait until an expression is true; return its value. Raises TimeoutError."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if value := self.evaluate(script):
                return value
            time.sleep(0.05)
        raise TimeoutError(f"not in {seconds:g} s: {script}; {self.problems}")

    def type(self, text: str) -> None:
        """Type a text key by key; a newline is Enter."""
        for letter in text:
            key = {"\n": "Enter", "\x1b": "Escape"}.get(letter, letter)
            codes = {"\n": 13, "\x1b": 27}
            code = {"windowsVirtualKeyCode": codes[letter]} if letter in codes else {}
            text_of_key = {} if letter == "\x1b" else {"text": letter.replace("\n", "\r")}
            self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text_of_key, **code)
            self.send("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def screenshot(self, path: Path) -> None:
        """Write a PNG of the whole page."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def resize(self, width: int, height: int) -> None:
        """Resize the window."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1.0, mobile=False,
        )  # fmt: skip

    def prefer(self, scheme: str) -> None:
        """Emulate the preference for a light or dark colour scheme."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 64) for end in ends)
    for end in ends:
        os.close(end)
    return read, write


@contextlib.contextmanager
def browser(home: Path) -> Iterator[Page]:
    """Yield an empty page of a browser that writes its files to `home`."""
    assert BROWSER is not None
    # High descriptor numbers, so that none of them is overwritten when 0 to 4 are assigned.
    (to_read, to_write), (from_read, from_write) = _pipe(), _pipe()
    command = [
        BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--disable-dev-shm-usage", "--disable-extensions", "--mute-audio", "--hide-scrollbars",
        f"--user-data-dir={home / 'profile'}", "--window-size=1300,1000",
        "--remote-debugging-pipe", "about:blank",
    ]  # fmt: skip

    # The protocol's pipes are descriptors 3 and 4 of the browser.
    nothing = fcntl.fcntl(os.open(os.devnull, os.O_RDWR), fcntl.F_DUPFD_CLOEXEC, 64)
    descriptors = (nothing, nothing, nothing, to_read, from_write)
    process = os.posix_spawn(
        BROWSER, command, {**os.environ, "HOME": str(home)},
        file_actions=[(os.POSIX_SPAWN_DUP2, fd, n) for n, fd in enumerate(descriptors)],
    )  # fmt: skip
    for descriptor in {*descriptors}:
        os.close(descriptor)
    try:
        yield Page(to_write, from_read)
    finally:
        os.kill(process, signal.SIGTERM)
        os.waitpid(process, 0)
        os.close(to_write)
        os.close(from_read)
