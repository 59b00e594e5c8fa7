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
from nmtgrid.base.errors import ConfigError, NmtgridError
from nmtgrid.text.bpe import Codes
from nmtgrid.text.cleaning import Cleaner, Filters
from nmtgrid.text.counting import WordCounts, count_units, merge_counts, most_frequent
from nmtgrid.text.moses import Moses
from nmtgrid.text.workers import chunks, map_ordered


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
    rows = [("A dog.", "Un chien.", ""), ("Yes", "Oui, oui!", "")]
    cleaned = Cleaner(Moses("en"), Moses("fr"), Filters())(rows)
    assert cleaned.sources == ["A dog .", "Yes"]
    assert cleaned.targets == ["Un chien .", "Oui , oui !"]
    assert cleaned.reasons == ["", "ratio"]
    assert Cleaner(Moses("en"), Moses("fr"), None)(rows).reasons == ["", ""]


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
        "from nmtgrid.text.workers import map_ordered\n"
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
    counts.add(["a a a b b", "c d"])
    assert counts.counts == Counter(a=3, b=2, c=1, d=1)
    counts.add(["e a"])
    assert counts.counts == Counter(a=4, b=2)
    assert (counts.words, counts.forgotten) == (9, 3)


def test_most_frequent_keeps_exactly_as_many() -> None:
    counts = {"a": 1, "b": 3, "c": 2, "d": 2, "e": 2}
    assert most_frequent(counts, 3) == {"b": 3, "c": 2, "d": 2}
    assert most_frequent(counts, 9) == counts
    assert merge_counts({"a": 1, "b": 1}, {"b": 1, "c": 5}) == {"a": 1, "b": 2, "c": 5}


def test_units_are_counted_through_words() -> None:
    codes = Codes(["a b"])
    assert count_units({"abc": 3, "c": 2}, codes) == {"ab@@": 3, "c": 5}
    assert count_units({"abc": 3}, None) == {"abc": 3}
