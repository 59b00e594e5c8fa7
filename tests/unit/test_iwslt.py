"""IWSLT's XML: what is text and what is not."""

from __future__ import annotations

import pytest

from nmtgrid.base.errors import InputError
from nmtgrid.text.iwslt import read_xml

SEGMENTS = """<?xml version="1.0" encoding="UTF-8"?>
<mteval>
<doc docid="1" genre="lectures">
<url>http://example.org</url>
<title>No text</title>
<seg id="1"> One dog’s day. </seg>
<seg id="2">R&amp;D <b>bold</b></seg>
<seg id="3"></seg>
</doc>
</mteval>"""

TAGS = """<url>http://example.org</url>
<keywords>dogs</keywords>
<speaker>A. Dog</speaker>
<talkid>1</talkid>
<title>A day</title>
<description>What happens.</description>
 First dog’s line.
<reviewer href="x">B</reviewer>
<translator href="y">C</translator>

Last <i>line</i>."""


def test_segments_without_tags_and_outer_spaces() -> None:
    assert list(read_xml(SEGMENTS.split("\n"))) == ["One dog's day.", "R&amp;D <b>bold</b>", ""]


def test_tags_keep_title_description_and_text() -> None:
    assert list(read_xml(TAGS.split("\n"))) == [
        "A day", "What happens.", " First dog’s line.", "", "Last <i>line</i>.",
    ]  # fmt: skip


@pytest.mark.parametrize("first", [2, 3, 4, 5])
def test_segments_without_the_head_of_their_file(first: int) -> None:
    """What was cut from such a file begins with tags that a `train.tags` file has too."""
    lines = ["", *SEGMENTS.split("\n")[first:]]
    assert list(read_xml(lines)) == ["One dog's day.", "R&amp;D <b>bold</b>", ""]


def test_tags_that_begin_with_a_document() -> None:
    lines = ['<doc docid="1" genre="lectures">', *TAGS.split("\n")[:7], "</doc>"]
    assert list(read_xml(lines)) == ["A day", "What happens.", " First dog’s line."]


def test_a_segment_must_end_on_its_line() -> None:
    lines = ["<mteval>", '<seg id="1"> One', "dog </seg>"]
    with pytest.raises(InputError, match="does not end") as caught:
        list(read_xml(lines, "dev.xml"))
    assert (caught.value.path, caught.value.line) == ("dev.xml", 2)


def test_a_file_without_text_is_refused() -> None:
    with pytest.raises(InputError, match="no line of text"):
        list(read_xml(["<mteval>", "</mteval>"], "dev.xml"))
