"""Information of source and target tokens (Wait-info; Zhang, Guo and Feng, 2022).

`Information` assigns every token a number I in (0, 2). A token's attention to itself grows with its
information, the attention over the source prefers tokens of similar information
(`InformationCache`), and a token is written once the source read so far has K more information than
the target written so far. The Transformer with `model.reader` information is built from both.

Letters: B sentences, R rows, N blocks, T target positions, S columns of the source, D features.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.layers.transformer.transport import LEAST_FACTOR, WeightedCache


class Information(nn.Module):
    """I = 2 sigmoid(v tanh(W tanh(x))) for the embedded tokens x of one side."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(size, size, bias=False), nn.Linear(size, 1, bias=False)

    def forward(self, embedded: Tensor) -> Tensor:
        """Return [...] in float32 at least, for embeddings [..., D]."""
        scores = self.outer(self.inner(embedded.tanh()).tanh())[..., 0]
        information: Tensor = scores.to(torch.promote_types(scores.dtype, torch.float32)).sigmoid()
        return 2.0 * information


def with_information(memory: SourceCache, information: Tensor) -> SourceCache:
    """Return the cache with the source's information [B, S] after the N blocks' keys and values.

    It is one more entry, all of whose features are the information, and is reordered with the rows.
    """
    like = memory.keys[0]
    entry = information.to(like.dtype)[:, None, :, None].expand_as(like)
    return dataclasses.replace(memory, keys=(*memory.keys, entry), values=(*memory.values, entry))


def consistency(target: Tensor, source: Tensor) -> Tensor:
    """Return 2 - |I_t - I_s| [B, T, S], in (0, 2], the factors of attention."""
    return (2.0 - (target[..., None] - source[:, None]).abs()).clamp(min=LEAST_FACTOR)


@dataclasses.dataclass(frozen=True)
class InformationCache(WeightedCache):
    """A source cache whose attention is multiplied by the consistency of both sides' information.

    Built from a cache `with_information`. target [B, T] ([B, width] in a step) is the information
    of the target tokens that attend.
    """

    target: Tensor = dataclasses.field(kw_only=True)

    def select(self, block: int, features: Tensor) -> None:
        if 0 not in self.biases:
            self.biases[0] = consistency(self.target, self.source()).log()[:, None]
        self.biases[block] = self.biases[0]

    def source(self) -> Tensor:
        """Return [B, S], the information of the source's columns."""
        return self.keys[-1][:, 0, :, 0].to(self.target.dtype)

    def read(self) -> Tensor:
        """Return [B, T] ([B, width] in a step): the information of all source tokens read."""
        is_seen = self.is_seen().expand(-1, self.target.shape[1], -1)
        return (self.source()[:, None] * is_seen).sum(-1)


@dataclasses.dataclass(frozen=True)
class ReadingState:
    """The state of a reading mechanism for R rows, in addition to keys and values.

    `latest` [R] is the information of the newest target token and `written` [R] that of all target
    tokens, with 0 for the begin symbol. `readiness` [R] is the maximum of the step's proposals.
    """

    readiness: Tensor
    latest: Tensor | None = None
    written: Tensor | None = None

    @classmethod
    def at_start(cls, rows: int, device: torch.device, *, informed: bool) -> ReadingState:
        """Return the state before the begin symbol; `informed` if tokens have information."""
        zeros = torch.zeros(rows, device=device)
        return cls(zeros - torch.inf, *((zeros, zeros) if informed else ()))

    def fed(self, latest: Tensor | None) -> ReadingState:
        """Return the state at the start of a step, given the information of its tokens [R].

        None is for the begin symbol, whose information is 1 and does not count as written.
        """
        fresh = torch.full_like(self.readiness, -torch.inf)
        if self.written is None:
            return ReadingState(fresh)
        if latest is None:
            return ReadingState(fresh, torch.ones_like(fresh), self.written)
        return ReadingState(fresh, latest, self.written + latest)

    def proposed(self, readiness: Tensor) -> ReadingState:
        """Return the state after a proposal with `readiness` [R], which never decreases."""
        return dataclasses.replace(self, readiness=torch.maximum(self.readiness, readiness))

    def put(self, rows: Tensor, part: ReadingState) -> ReadingState:
        """Return the state in which the readiness of some rows [R'] is that of `part`."""
        return dataclasses.replace(
            self, readiness=self.readiness.index_copy(0, rows, part.readiness)
        )


def sum_penalty(information: Tensor, is_counted: Tensor, needed: Tensor) -> Tensor:
    """Return [B]: |sum of I - needed| over the tokens [B, L] that are counted.

    Departs: The authors' code (github.com/ictnlp/Wait-info) rescales the information to the
    required sum and takes the Euclidean distance to it over all tokens of a batch. Here it is a sum
    over sentences, so that the loss of a sentence does not depend on its batch.
    """
    return ((information * is_counted).sum(1) - needed).abs()
