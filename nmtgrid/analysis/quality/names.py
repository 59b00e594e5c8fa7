"""The names of scores, and of properties for buckets of sentences; it imports nothing slow."""

from __future__ import annotations

from typing import Literal, get_args

Measure = Literal["bleu", "sentence-bleu", "chrf"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
Property = Literal[
    "reference-length", "length-ratio", "difficulty", "source-length", "sentence-bleu"
]
PROPERTIES: tuple[Property, ...] = get_args(Property)
