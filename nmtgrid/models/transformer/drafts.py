"""Tokens drafted at an early exit and verified by the blocks behind it (search/verified.py).

Drafting runs the blocks up to the exit, token by token; verifying runs the others over all drafted
tokens of all rows at once. Both share keys and values, so no block runs twice for a token. Rows
keep different numbers of drafts: see `DraftKVCache`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nmtgrid.base.rows import take
from nmtgrid.layers.embedding import Embedding
from nmtgrid.layers.kernels.linear import linear, working_dtype
from nmtgrid.layers.source_cache import SourceCache, without_lead
from nmtgrid.layers.transformer.blocks import Cells, DecoderBlock
from nmtgrid.layers.transformer.kv_cache import DraftKVCache
from nmtgrid.models.api import Classifier, Verified
from nmtgrid.models.transformer.source import narrowed

if TYPE_CHECKING:
    from nmtgrid.models.transformer.exits import TransformerExits


_WORTH_SELECTING = 0.9
"""Share of the positions from which on all of them are run rather than copied."""


class TransformerDrafts:
    """The caches of rows whose tokens are drafted; see `models.api.Drafts`."""

    def __init__(
        self, model: TransformerExits, memory: SourceCache, verified: Verified, align: bool
    ) -> None:
        """`memory` is what the rows, one a sentence, may look at."""
        self.model, self.memory, self.exit = model, memory, verified.exit
        assert isinstance(model.target_embedding, Embedding)
        self.embedding = model.target_embedding
        self.blocks = [block for block in model.decoder if isinstance(block, DecoderBlock)]
        self.cache = DraftKVCache(len(self.blocks))
        self.is_aligned = align
        self.takes_mean = align and model.config.alignment == "mean"
        classifier, types = model.classifier(self.exit), verified.types
        # Converted once: autocast would convert a part of a matrix at every step.
        dtype = working_dtype(classifier.weight)
        bias = None if classifier.bias is None else classifier.bias[:types].to(dtype)
        self.classifier = Classifier(classifier.weight[:types].to(dtype), bias)
        self._fed: list[Tensor] = []
        self._shares: list[Tensor] = []

    def feed(self, tokens: Tensor, positions: Tensor, last: int, *, predict: bool) -> Tensor | None:
        features = narrowed(self.embedding.at(tokens, positions, last))
        weights: list[Tensor] | None = [] if self.takes_mean else None
        for block in self.blocks[: self.exit]:
            features = block.step(features, self.cache, self.memory, weights)
        self.cache.advance()
        self._fed.append(features)
        if weights:
            self._shares.append(torch.stack(weights).sum(0))
        if not predict:
            return None
        normed = self.model.normed(features, self.exit)
        return linear(normed, self.classifier.weight, self.classifier.bias)

    def verify(self, wanted: Tensor) -> tuple[Tensor, Tensor | None]:
        features, rows, count = torch.stack(self._fed, 1).flatten(0, 1), *wanted.shape
        indices: Tensor | None = wanted.flatten().nonzero()[:, 0]
        if indices is not None and len(indices) > _WORTH_SELECTING * len(features):
            indices = None
        cells = Cells(rows, indices, self.cache.mask_of(count))
        if indices is not None:
            features = features.index_select(0, indices)
        weights: list[Tensor] | None = [] if self.is_aligned else None
        for block in self.blocks[self.exit :]:
            features = block.step_several(features, self.cache, self.memory, cells, weights)
        if indices is None and not bool(wanted.all()):
            features = features[wanted.flatten()]
        logits = self.model.classify(self.model.normed(features, len(self.blocks)))
        return logits, None if weights is None else self._alignment(weights)

    def keep(self, kept: Tensor) -> None:
        self.cache.keep(kept, len(self._fed))
        self._fed, self._shares = [], []

    def take_rows(self, rows: Tensor) -> None:
        self.cache, self.memory = take(self.cache, rows), take(self.memory, rows)

    def _alignment(self, weights: list[Tensor]) -> Tensor:
        """Return [R, Q, S], what steps through all blocks return."""
        shares = weights[-1]
        if self.takes_mean:
            drafted = torch.stack(self._shares, 1)
            shares = (torch.stack(weights).sum(0) + drafted) / len(self.blocks)
        return without_lead(shares, self.memory.lead)
