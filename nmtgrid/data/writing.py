"""Text files of a split, written as they come, with their size and hash."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from nmtgrid.base.io.atomic import atomic_file


class LineFile:
    """Takes lines; knows the size and SHA-256 of what it wrote."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0
        self.count = 0

    def extend(self, lines: bytes) -> None:
        """Write whole lines."""
        if lines:
            self._file.write(lines)
            self._digest.update(lines)
            self._size += len(lines)
            self.count += lines.count(b"\n")

    @property
    def facts(self) -> dict[str, Any]:
        """The size in bytes and the hash, as the manifest wants them."""
        return {"size": self._size, "sha256": self._digest.hexdigest()}


class SplitWriter:
    """The text files of one split: `text/`, for validation and test also `raw/`, and `truth/`."""

    def __init__(self, folder: Path, name: str, languages: tuple[str, str], *, truth: bool) -> None:
        self.name = name
        kinds = ["text"] if name == "train" else ["text", "raw"]
        self._names = {
            (kind, side): f"{kind}/{name}.{language}"
            for kind in kinds
            for side, language in enumerate(languages)
        }
        if truth:
            self._names["truth", 0] = f"truth/{name}.jsonl"
        self._folder = folder
        self._files: dict[tuple[str, int], LineFile] = {}

    @contextlib.contextmanager
    def open(self) -> Iterator[SplitWriter]:
        """Open the files. Raises StorageError when the disk is full."""
        with contextlib.ExitStack() as stack:
            for key, name in self._names.items():
                path = self._folder / name
                path.parent.mkdir(exist_ok=True)
                self._files[key] = LineFile(stack.enter_context(atomic_file(path)))
            yield self

    def write(self, kind: str, side: int, lines: bytes) -> None:
        """Append lines to the file of a kind and side; kinds that are not kept are passed over."""
        if (kind, side) in self._files:
            self._files[kind, side].extend(lines)

    @property
    def count(self) -> int:
        """The number of pairs written."""
        return self._files["text", 0].count

    @property
    def facts(self) -> dict[str, dict[str, Any]]:
        """Sizes and hashes by file name."""
        return {self._names[key]: file.facts for key, file in self._files.items()}
