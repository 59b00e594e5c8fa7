"""Pharaoh files: what is read and refused, and the alignment error rate by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmtgrid.analysis.alignment.pharaoh import (
    GoldLinks,
    error_rate,
    read_gold,
    read_links,
    write_links,
)
from nmtgrid.base.errors import InputError


def test_what_is_written_is_read(tmp_path: Path) -> None:
    links = [[(0, 1), (2, 0)], [], [(1, 1)]]
    path = tmp_path / "a.links"
    write_links(path, links)
    assert path.read_text() == "0-1 2-0\n\n1-1\n"
    assert read_links(path, [(3, 2), (0, 0), (2, 2)]) == links


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0-0\n0-0 3-0\n", r":2: the link `3-0` points outside .* source has 3 words, 0 to 2"),
        ("0-0\n1-1\n", r":2: the link `1-1` points outside the sentence: its target has 1 words"),
        ("0-0\n0:0\n", r":2: `0:0` is not a link"),
        ("0-0\n0?0\n", r":2: `0\?0` is not a link"),
        ("0-0\n", r":2: it has 1 lines, but there are 2 sentence pairs"),
        ("0-0\n0-0\n\n", r":3: it has 3 lines, but there are 2 sentence pairs"),
        ("0-0\n0-0\n\n\n\n", r":3: it has 5 lines, but there are 2 sentence pairs"),
        ("", "the file is empty"),
        ("0-0\n0--1\n", ":2: `0--1` is not a link"),
    ],
)
def test_bad_files_name_line_and_link(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "bad"
    path.write_text(text)
    with pytest.raises(InputError, match=told):
        read_links(path, [(1, 1), (3, 1)])


def test_an_empty_sentence_has_no_place_for_links(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_text("0-0\n")
    with pytest.raises(InputError, match="its source has no words"):
        read_links(path, [(0, 1)])


def test_error_rate_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "gold"
    path.write_text("0-0 1?1 2p2\n0-1\n")
    gold = read_gold(path, [(3, 3), (2, 2)])
    assert gold[0] == GoldLinks([(0, 0)], [(0, 0), (1, 1), (2, 2)])
    found = [[(0, 0), (1, 1), (1, 2)], [(0, 0)]]
    rate = error_rate(found, gold)
    # |A| = 4, |S| = 2, A and S: 1, A and P: 2.
    assert rate.aer == pytest.approx(1 - (1 + 2) / (4 + 2))
    assert (rate.precision, rate.recall) == (2 / 4, 1 / 2)
    assert rate.f1 == pytest.approx(2 * 1 / (4 + 2))
    assert error_rate([[]], [GoldLinks([], [])]).aer == 0.0
    assert error_rate([gold[0].sure, gold[1].sure], gold).aer == 0.0
