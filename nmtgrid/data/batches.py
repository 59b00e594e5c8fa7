"""Batches of sentence pairs, cut by tokens and by grid cells."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from nmtgrid.base.masks import is_token
from nmtgrid.text.vocabulary import BEGIN, END, PAD


@dataclasses.dataclass(frozen=True)
class Batch:
    """B sentence pairs, padded on the right with `<pad>`.

    source [B, S] ends with `</s>`; target_input [B, T] starts with `<s>`, target_output [B, T]
    is the same moved by one and ends with `</s>`. The lengths [B] count those symbols. `indices`
    [B] are the pairs' places in their split.
    """

    source: Tensor
    source_lengths: Tensor
    target_input: Tensor
    target_output: Tensor
    target_lengths: Tensor
    indices: Tensor

    def __len__(self) -> int:
        return self.source.shape[0]

    @cached_property
    def is_source(self) -> Tensor:
        """[B, S], True on source tokens (end symbol included)."""
        return is_token(self.source_lengths, self.source.shape[1])

    @cached_property
    def is_target(self) -> Tensor:
        """[B, T], True where there is a token to predict (end symbol included)."""
        return is_token(self.target_lengths, self.target_input.shape[1])

    def to(self, device: torch.device) -> Batch:
        """Return the batch on `device`."""
        moved = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return Batch(**{n: t.to(device, non_blocking=True) for n, t in moved.items()})

    def select(self, rows: Tensor) -> Batch:
        """Return the sentences `rows` as a batch of their own, cut to their longest lengths."""
        source_lengths, target_lengths = self.source_lengths[rows], self.target_lengths[rows]
        width, height = int(source_lengths.max()), int(target_lengths.max())
        return Batch(
            self.source[rows, :width],
            source_lengths,
            self.target_input[rows, :height],
            self.target_output[rows, :height],
            target_lengths,
            self.indices[rows],
        )


def collate(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    indices: Sequence[int] | None = None,
) -> Batch:
    """Return the batch of these pairs of token ids, given without begin and end symbols."""
    source = _pad([[*tokens, END] for tokens in sources])
    target_output = _pad([[*tokens, END] for tokens in targets])
    target_input = _pad([[BEGIN, *tokens] for tokens in targets])
    return Batch(
        source,
        torch.tensor([len(tokens) + 1 for tokens in sources]),
        target_input,
        target_output,
        torch.tensor([len(tokens) + 1 for tokens in targets]),
        torch.tensor(list(range(len(sources)) if indices is None else indices)),
    )


def _pad(rows: list[list[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
