"""The filters, word counts and the pool of processes."""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from nmtgrid.base.config import check
from nmtgrid.base.errors import ConfigError, InputError, NmtgridError
from nmtgrid.base.io.text import open_writer, read_lines
from nmtgrid.base.io.workers import chunks, map_ordered
from nmtgrid.data.subwords import WordCounts, count_units, merge_counts, most_frequent
from nmtgrid.text import shards
from nmtgrid.text.bpe import Codes
from nmtgrid.text.cleaning import Cleaner, Filters, PairShard
from nmtgrid.text.moses import Moses
from nmtgrid.text.shards import LineSegmenter, LineShard, read_shards


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("a", "", "empty"),
        ("", "", "empty"),
        ("a b c", "a b", ""),
        ("a b c d", "a b", "ratio"),
        ("a", "a b", "ratio"),
        ("a " * 175, "b " * 175, ""),
        ("a " * 176, "b " * 175, "too_long"),
        ("a " * 175, "b " * 176, "too_long"),
        ("a" * 1000, "b", ""),
        ("a" * 1001, "b", "long_word"),
    ],
)
def test_filters_at_their_edges(source: str, target: str, reason: str) -> None:
    assert Filters().refuse(source.strip(), target.strip()) == reason


def test_faulty_filters_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        check(Filters(max_words=0, max_ratio=float("nan")))
    assert len(caught.value.faults) == 2


def test_the_cleaner_counts_tokenised_words() -> None:
    part = PairShard(
        LineShard(b"A dog.\nYes\nNo\n"), LineShard(b"Un chien.\nOui, oui!\n\n"), ["x", "y", "z"]
    )
    cleaned = Cleaner(Moses("en"), Moses("fr"), Filters())(part)
    assert cleaned.text == (b"A dog .\n", b"Un chien .\n")
    assert cleaned.raw == (b"A dog.\n", b"Un chien.\n")
    assert cleaned.truth == b"x\n"
    assert (cleaned.pairs_read, cleaned.pairs_kept) == (3, 1)
    assert cleaned.dropped == {"ratio": 1, "empty": 1}
    whole = Cleaner(Moses("en"), Moses("fr"), None, raw=False)(part)
    assert whole.text == (b"A dog .\nYes\nNo\n", b"Un chien .\nOui , oui !\n\n")
    assert whole.raw == (b"", b"") and whole.pairs_kept == 3


@pytest.mark.parametrize("ending", [b"\n", b""])
@pytest.mark.parametrize("first", [1, 7])
def test_a_part_is_read_as_its_file_is(tmp_path: Path, first: int, ending: bytes) -> None:
    """Byte-order marks, carriage returns and separators, as `read_lines` sees them."""
    raw = "\ufeffa\r\n\nb\u2028c\r\r\n\x0b\n\r\nö".encode() + ending
    path = tmp_path / "x"
    path.write_bytes(b"-\n" * (first - 1) + raw)
    wanted: Counter[str] = Counter()
    lines = list(read_lines(path, wanted))[first - 1 :]
    found: Counter[str] = Counter()
    assert LineShard(raw, "x", first).read(found) == lines
    assert found == wanted


def test_what_is_no_text_is_named_by_its_line() -> None:
    for raw in (b"a\n\xe9\n", b"a\n\0\n"):
        with pytest.raises(InputError, match="x:8: "):
            LineShard(raw, "x", 7).read(Counter())


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_parts_of_a_file_are_cut_as_its_lines_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(shards, "_READ_SIZE", 9)
    path = tmp_path / f"x{ending}"
    with open_writer(path) as file:
        file.write(b"abc ab\n\nc  abc\r\nab")
    parts = list(read_shards(path))
    assert len(parts) == (1 if ending else 2)
    cut = b"".join(map(LineSegmenter(Codes(["a b"])), parts))
    assert cut == b"ab@@ c a@@ b\n\nc ab@@ c\na@@ b\n"
    (tmp_path / "none").write_bytes(b"")
    with pytest.raises(InputError, match="empty"):
        list(read_shards(tmp_path / "none"))


def test_chunks() -> None:
    assert list(chunks(range(5), 2)) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_and_the_input_is_not_read_ahead(workers: int) -> None:
    taken = 0

    def parts() -> Iterator[int]:
        nonlocal taken
        for part in range(30):
            taken += 1
            yield part

    for done, (part, result) in enumerate(map_ordered(operator.neg, parts(), workers)):
        assert (part, result) == (done, -done)
        assert taken <= done + 1 + 2 * workers
    assert taken == 30


def test_a_dead_process_is_told() -> None:
    work = operator.methodcaller("__call__")
    with pytest.raises(NmtgridError, match="worker process died"):
        list(map_ordered(work, [_Killer()], 2))


def test_processes_leave_with_the_one_that_started_them(project: Path) -> None:
    code = (
        "import os, operator, signal\n"
        "from nmtgrid.base.io.workers import map_ordered\n"
        "if __name__ == '__main__':\n"
        "    call = operator.methodcaller('__call__')\n"
        "    for _, process in map_ordered(call, [os.getpid] * 9, 2):\n"
        "        print(process, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # Standard output ends only when the last process that holds it has left.
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(project)},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    assert int(done.stdout.split()[0]) > 0


class _Killer:
    def __call__(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def test_counts_forget_only_the_rarest() -> None:
    counts = WordCounts(largest=4)
    counts.add(Counter("aaabbcd"))
    assert counts.counts == Counter(a=3, b=2, c=1, d=1)
    counts.add(Counter("ea"))
    assert counts.counts == Counter(a=4, b=2)
    assert counts.forgotten == 3


def test_most_frequent_keeps_exactly_as_many() -> None:
    counts = {"a": 1, "b": 3, "c": 2, "d": 2, "e": 2}
    assert most_frequent(counts, 3) == {"b": 3, "c": 2, "d": 2}
    assert most_frequent(counts, 9) == counts
    assert merge_counts({"a": 1, "b": 1}, {"b": 1, "c": 5}) == {"a": 1, "b": 2, "c": 5}


def test_units_are_counted_through_words() -> None:
    codes = Codes(["a b"])
    assert count_units({"abc": 3, "c": 2}, codes) == {"ab@@": 3, "c": 5}
    assert count_units({"abc": 3}, None) == {"abc": 3}
