"""Information transport (ITST; Zhang and Feng, EMNLP 2022), and attention weighted by factors.

`Transport` computes how much information each source token transports to each target token in every
decoder block: the matrices T [T, S], whose rows are trained to sum to 1. The block's attention is
multiplied by its matrix, and a token is written once the source read so far transports enough to
it. `WeightedCache` is a source cache whose attention is multiplied by factors, those of
`TransportCache` or of layers/transformer/information.py. The Transformer with `model.reader` is
built from them.

Letters: B sentences, R rows, H heads, N blocks, T target positions, S columns of the source, d
features of a head.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from nmtgrid.layers.source_cache import SourceCache
from nmtgrid.layers.transformer.attention import SourceSelection

LEAST_FACTOR = 1e-4
"""The least factor of attention: a row whose factors are all 0 could not be normalised."""


def reading_path(
    received: Tensor, needed: float | Tensor, is_source: Tensor, before: Tensor | None = None
) -> Tensor:
    """Return the path [B, T]: the fewest reads with which `received` [B, T, S] reaches `needed`.

    received[b, t, j] is what token t has received after column j is read, and never decreases along
    j; `needed` is a number or [B]. is_source [B, S] is True on the columns that count, which are
    contiguous; reads count these. A path never decreases, reads at least as much as wait-1 and as
    the path `before` [B, T], and at most the source.
    """
    if isinstance(needed, Tensor):
        needed = needed[:, None, None]
    counts = is_source[:, None].expand_as(received)
    reads = ((received < needed) & counts).sum(-1) + 1
    steps = torch.arange(1, reads.shape[1] + 1, device=reads.device)
    reads = torch.maximum(reads, steps) if before is None else torch.maximum(reads, before)
    return torch.minimum(reads.cummax(1).values, is_source.sum(1, keepdim=True))


@dataclasses.dataclass(frozen=True)
class WeightedCache(SourceCache):
    """A source cache with attention softmax(e) f / sum(softmax(e) f), which is softmax(e + log f).

    `biases` has log f [B, 1, T, S] of each block (T is `width` in a step), written by `select`.
    """

    biases: dict[int, Tensor] = dataclasses.field(default_factory=dict, kw_only=True)

    def attend_all(self, block: int, query: Tensor, *, rate: float = 0.0) -> Tensor:
        return self._attend_unfused(block, query, rate)

    def mask_for(self, block: int, like: Tensor) -> Tensor:
        bias = self.biases[block]
        return bias if self.mask is None else bias + self.mask.to(bias.dtype)

    def is_seen(self) -> Tensor:
        """Return [B, T, S], or broadcastable to it: True on visible source tokens.

        Columns before the source are not source tokens.
        """
        columns = torch.arange(self.keys[0].shape[2], device=self.keys[0].device)
        is_token = (columns >= self.lead)[None, None]
        return is_token if self.mask is None else is_token & (self.mask[:, 0] == 0)


class Transport(SourceSelection):
    """The transport matrices of all decoder blocks: T = sigmoid(q k / sqrt(D)) + 1e-4.

    Queries q [D] are projected from decoder states, keys k [D] from source states; all heads of a
    block share one matrix.

    Departs: The authors' code (github.com/ictnlp/ITST) divides the product over all D features by
    the square root of the size of one head. This divides by sqrt(D), the size of the product.
    """

    def matrix(self, block: int, features: Tensor, keys: Tensor) -> Tensor:
        """Return T [B, T, S] in float32 at least, for features [B, T, D], keys [B, H, S, d]."""
        # Split into heads only for the cache: their products are summed.
        query = self.queries(block, features) / math.sqrt(features.shape[-1])
        product = (query @ keys.transpose(-1, -2)).sum(1)
        product = product.to(torch.promote_types(product.dtype, torch.float32))
        return product.sigmoid() + LEAST_FACTOR


@dataclasses.dataclass(frozen=True)
class TransportCache(WeightedCache):
    """A source cache with information transport, for one pass over the target or for one step.

    Built from a cache with the keys of `network` (`with_keys`).
    With a `threshold` (in training), each block sees only as many source tokens as it and all
    earlier blocks need to receive that much information: these reads are `paths` [B, T]. `matrices`
    [B, T, S] contain the transport of all columns, read or not.

    Departs: In the authors' code (github.com/ictnlp/ITST) the reads of a block in training do not
    depend on the earlier blocks, and a block sees one column beyond the threshold and at least one
    more than wait-1. Here a block sees at least as much as the earlier ones, and everything that
    has been read counts, so that the path of the last block is that of `online.policies.ITST`. In
    decoding the earlier blocks see as much as the last one, which may change what it receives.
    """

    network: Transport = dataclasses.field(kw_only=True)
    threshold: float | None = dataclasses.field(default=None, kw_only=True)
    matrices: dict[int, Tensor] = dataclasses.field(default_factory=dict, kw_only=True)
    paths: dict[int, Tensor] = dataclasses.field(default_factory=dict, kw_only=True)

    def select(self, block: int, features: Tensor) -> None:
        """Compute the matrix of `block` for features [B, T, D], or [R, D] in a step."""
        if features.dim() == 2:
            features = features.unflatten(0, (-1, self.width))
        matrix = self.network.matrix(block, features, self.keys[self.network.blocks + block])
        self.matrices[block] = matrix
        bias = matrix.log()[:, None]
        if self.threshold is not None:
            path = self._path(block, matrix.detach(), self.threshold)
            self.paths[block] = path
            columns = torch.arange(matrix.shape[2], device=path.device)
            is_unread = columns >= (path + self.lead)[..., None]
            bias = bias.masked_fill(is_unread[:, None], -math.inf)
        self.biases[block] = bias

    def _path(self, block: int, matrix: Tensor, threshold: float) -> Tensor:
        is_source = self.is_seen()[:, 0].expand(len(matrix), -1)
        received = (matrix * is_source[:, None]).cumsum(-1)
        return reading_path(received, threshold, is_source, self.paths.get(block - 1))

    def transported(self) -> Tensor:
        """Return [B, N, T, S], the blocks' matrices without `lead` columns, 0 on hidden ones."""
        whole = torch.stack([self.matrices[block] for block in range(self.network.blocks)], 1)
        return (whole * self.is_seen()[:, None])[..., self.lead :]

    def received(self) -> Tensor:
        """Return [B, T] ([B, width] in a step): the information received from the source read.

        It is the minimum over blocks, each of which has to receive enough, as in the authors' code.
        """
        is_seen = self.is_seen()
        blocks = [(matrix * is_seen).sum(-1) for matrix in self.matrices.values()]
        return torch.stack(blocks).amin(0)
