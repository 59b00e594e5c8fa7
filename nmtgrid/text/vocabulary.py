"""Vocabularies: token types and their ids. Ids 0 to 3 are the special symbols."""

from __future__ import annotations

PAD, BEGIN, END, UNKNOWN = 0, 1, 2, 3
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
