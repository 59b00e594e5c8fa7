"""Replacements of the files that paths name, of whole files and of JSON values."""

import contextlib
import copy
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nmtgrid.base.io import arrays
from nmtgrid.data import directory
from tests.fuzz.commands.values import CONTENTS, LEAVES, SPLICED

Address = tuple[Any, ...]
"""The keys that lead to a value in JSON; in JSON lines, the first one is the line."""
_MARK = "a place for what Python does not write"
_NAMES = {
    "missing": "no-such-file", "missing folder": "no/such/file", "folder": "text-folder",
    "empty folder": "empty-folder", "file": "some-file", "FIFO": "pipe", "link": "a-link",
    "link to nothing": "dangling", "link to itself": "loop", "binary": "binary",
    "empty file": "empty", "zero width": "a\u200b\u202eb", "one word": "w" * 5000,
    "CJK": "\u6f22\u5b57", "unreadable": "closed", "standard": "-",
}  # fmt: skip


def replace(folder: Path, kind: str, good: str | None, is_output: bool) -> str:
    """Return a path below `folder` that replaces `good`, and create a file of this `kind` there."""
    name = _NAMES.get(kind, kind)
    path = folder / name
    meant = folder / good if good and (folder / good).exists() else None
    if kind in ("folder", "empty folder"):
        path.mkdir()
        if kind == "folder":
            (path / "note").write_text("here\n")
    elif kind == "FIFO":
        os.mkfifo(path)
        _attend(path, meant.read_bytes() if meant and meant.is_file() else b"a b\n", is_output)
    elif kind == "link":
        path.symlink_to(meant or folder / "some-file")
    elif kind == "link to nothing":
        path.symlink_to("nowhere")
    elif kind == "link to itself":
        path.symlink_to(name)
    elif kind == "binary":
        path.write_bytes(CONTENTS["binary"])
    elif kind == "empty file":
        path.write_bytes(b"")
    elif kind in ("file", "zero width", "CJK", "unreadable"):
        path.unlink(missing_ok=True)
        if meant is not None and meant.is_dir():
            shutil.copytree(meant, path)
        else:
            path.write_bytes(meant.read_bytes() if meant else b"a b\n")
        if kind == "unreadable":
            path.chmod(0)
    suffix = Path(good or "").suffix
    # Some outputs are recognised by their suffixes.
    if is_output and suffix and kind in ("missing", "missing folder", "one word", "CJK"):
        return name[: 5000 - len(suffix)] + suffix
    return name


def _attend(path: Path, content: bytes, is_output: bool) -> None:
    """Start a process at the other end of a pipe, which ends with this one's group."""
    if os.fork():
        return
    with contextlib.suppress(OSError):
        if is_output:
            with open(path, "rb") as file:
                while file.read(1 << 16):
                    pass
        else:
            with open(path, "wb") as file:
                file.write(content)
    os._exit(0)


def rewrite(path: Path, kind: str) -> None:
    """Put the content `kind` into a file."""
    before = path.read_bytes()
    content = {"half": before[: len(before) // 2], "twice": before * 2}.get(kind, CONTENTS[kind])
    path.write_bytes(content)


def addresses(path: Path) -> list[Address]:
    """Return the addresses of the values in a JSON file, in JSON lines or in a header of arrays."""
    with contextlib.suppress(ValueError, OSError, struct.error):
        return [address for address, _ in _walk(_read(path))]
    return []


def _walk(values: Any, above: Address = ()) -> Iterator[tuple[Address, Any]]:
    yield above, values
    items: Any = ()
    if isinstance(values, dict):
        items = values.items()
    elif isinstance(values, list):
        # The first ones of a long list represent all.
        items = list(enumerate(values))[:3]
    for key, value in items:
        yield from _walk(value, (*above, key))


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        content = path.read_bytes()
        header = json.loads(content[8 : _header_end(content)])
        header.get("__metadata__", {}).pop(arrays.CHECKSUM, None)
        return header
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".jsonl", ".log"):
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text)


def _header_end(content: bytes) -> int:
    size: int = struct.unpack("<Q", content[:8])[0]
    return 8 + size


def change(path: Path, address: Address, kind: str) -> None:
    """Put the value `kind` at an address; checksums are updated or removed."""
    whole = _changed(_unsealed(path, _read(path), address), address, kind)
    before = path.read_bytes()
    start = _header_end(before) if path.suffix == ".safetensors" else 0
    is_lines = path.suffix in (".jsonl", ".log") and isinstance(whole, list)
    text = "\n".join(map(json.dumps, whole)) + "\n" if is_lines else json.dumps(whole)
    # Python does not write integers of thousands of digits.
    text = text.replace(json.dumps(_MARK), SPLICED.get(kind, ""))
    content = text.encode()
    if start:
        padded = content + b" " * (-len(content) % 8)
        content = struct.pack("<Q", len(padded)) + padded + before[start:]
    path.write_bytes(content)


def _changed(whole: Any, address: Address, kind: str) -> Any:
    value = _MARK if kind in SPLICED else copy.deepcopy(LEAVES[kind])
    if not address:
        return value
    holder = whole
    for key in address[:-1]:
        holder = holder[key]
    if kind == "left out":
        del holder[address[-1]]
    else:
        holder[address[-1]] = value
    return whole


def _unsealed(path: Path, values: Any, address: Address) -> Any:
    """Return values without their own checksums, unless these are what is changed."""
    if path.name == "text.json" and address[:1] != ("sha256",) and isinstance(values, dict):
        return {**values, "sha256": {}}
    for row in values if isinstance(values, list) else [values]:
        for name in ("sha256", "check"):
            if isinstance(row, dict) and name not in address:
                row.pop(name, None)
    return values


def seal(folder: Path, changed: Path) -> None:
    """Update the checksums of `changed` in other files of its folder."""
    facts = changed.parent / "text.json"
    if facts.is_file() and facts != changed:
        values = json.loads(facts.read_bytes())
        facts.write_text(json.dumps({**values, "sha256": {}}))
    for home in changed.parents[: len(changed.relative_to(folder).parts)]:
        manifest = home / directory.NAME
        if not manifest.is_file() or manifest == changed:
            continue
        values = json.loads(manifest.read_bytes())
        values.pop("sha256", None)
        for name in values["files"]:
            if (home / name).is_file():
                content = (home / name).read_bytes()
                digest = hashlib.sha256(content).hexdigest()
                values["files"][name] = {"size": len(content), "sha256": digest}
        manifest.write_text(json.dumps(values))
