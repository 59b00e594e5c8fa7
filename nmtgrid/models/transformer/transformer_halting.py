"""A decoding step of a Transformer whose rows leave as soon as they may (section 5.3).

Each block runs on the rows that go on alone. Those that have left leave it keys and values of the
state that they left with (section 5.2.1): beside those of the rows that go on, or, once none does,
for all blocks that remain in one product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nmtgrid.layers.source_cache import SourceMemory
from nmtgrid.layers.transformer.blocks import DecoderBlock
from nmtgrid.models.api import Step
from nmtgrid.models.halt import Halt
from nmtgrid.models.transformer.exits import TransformerExits, without_lead
from nmtgrid.models.transformer.source import TransformerState


class HaltingStep:
    """One step under way: the rows that go on, and what those that left have left."""

    def __init__(
        self,
        model: TransformerExits,
        halt: Halt,
        features: Tensor,
        state: TransformerState,
        memory: SourceMemory,
        align: bool,
    ) -> None:
        """`features` [R, D] are the embedded tokens, `memory` is what the rows may look at."""
        self.model, self.halt, self.state, self.memory = model, halt, state, memory
        self.features, self.chosen, self.is_aligned = features, state.chosen, align
        self.depth = len(model.decoder)
        count, device = len(features), features.device
        self.every = torch.arange(count, device=device)
        self.rows: Tensor | None = None
        """The rows [R'] that go on, None for all."""
        self.exits = torch.ones_like(self.every)
        self.logits: Tensor | None = None
        self.shares: Tensor | None = None
        self.scores: Tensor | None = None
        if halt.needs in ("confidence", "geometric"):
            self.scores = torch.full((count, self.depth), torch.nan, device=device)

    def run(self) -> Step:
        """Run blocks until all rows have left."""
        for exit, block in enumerate(self.model.decoder, start=1):
            assert isinstance(block, DecoderBlock)
            some = self._enter(block, exit)
            if exit == self.depth or not self._leave(some, exit):
                break
        self.state.cache.advance()
        logits = self.logits
        if logits is None:
            logits = self.model.classify_exits(self.features, self.exits)
        return Step(logits, self.state, self._alignment(), self.exits, self.scores)

    def _enter(self, block: DecoderBlock, exit: int) -> Tensor:
        """Run block `exit` on the rows that go on and return their states [R', D]."""
        weights: list[Tensor] | None = [] if self.is_aligned else None
        cache, rows = self.state.cache, self.rows
        if rows is None:
            some = self.features = block.step(self.features, cache, self.memory, weights)
        else:
            assert self.state.maps is not None
            maps = self.state.maps.of(exit - 1)
            some = block.step_some(self.features, rows, cache, self.memory, maps, weights)
            copied = self.features.clone() if torch.is_grad_enabled() else self.features
            self.features = copied.index_copy_(0, rows, some)
        if weights is not None:
            self._add_shares(weights[0])
        if self.halt.needs == "confidence":
            self._predict(some, exit)
        return some

    def _leave(self, some: Tensor, exit: int) -> bool:
        """Let rows leave after block `exit`; return False when none goes on."""
        rows = self.every if self.rows is None else self.rows
        scores = self._scores(some, exit)
        going = (~self.halt.exits(exit, self.state.cache.filled, rows, scores)).nonzero()[:, 0]
        if not len(going):
            assert self.state.maps is not None
            self.state.maps.copy(self.features, self.state.cache, exit)
            return False
        if len(going) < len(rows):
            rows = self.rows = rows.index_select(0, going)
        self.exits.index_fill_(0, rows, exit + 1)
        return True

    def _scores(self, some: Tensor, exit: int) -> Tensor | None:
        """Return what `halt` decides from [R']."""
        needs = self.halt.needs
        if needs == "nothing":
            return None
        if needs in ("multinomial", "sequence"):
            if needs == "multinomial" and exit == 1:
                self.chosen = self.model.choose_exits(some)
            assert self.chosen is not None
            return self.chosen if self.rows is None else self.chosen.index_select(0, self.rows)
        assert self.scores is not None
        if needs == "geometric":
            self._keep(self.scores[:, exit - 1], self.model.stopping_chance(some, exit))
        found = self.scores[:, exit - 1]
        return found if self.rows is None else found.index_select(0, self.rows)

    def _predict(self, some: Tensor, exit: int) -> None:
        """Predict from block `exit`, and keep how sure the prediction is. Eq. (5.18)."""
        assert self.scores is not None
        logits = self.model.classify(self.model.normed(some, exit), exit)
        sure = logits.float().log_softmax(1).amax(1).exp()
        self._keep(self.scores[:, exit - 1], sure)
        if self.rows is None or self.logits is None:
            self.logits = logits
        else:
            self.logits.index_copy_(0, self.rows, logits)

    def _keep(self, column: Tensor, values: Tensor) -> None:
        """Write `values` [R'] into `column` [R], at the rows that go on."""
        if self.rows is None:
            column.copy_(values)
        else:
            column.index_copy_(0, self.rows, values)

    def _add_shares(self, shares: Tensor) -> None:
        """Keep the attention [R', S] of a block: of the last that runs, or of all of them."""
        if self.rows is None or self.shares is None:
            is_first = self.shares is None or self.model.config.alignment == "last"
            self.shares = shares if is_first or self.shares is None else self.shares + shares
        elif self.model.config.alignment == "last":
            self.shares = self.shares.index_copy(0, self.rows, shares)
        else:
            self.shares = self.shares.index_add(0, self.rows, shares)

    def _alignment(self) -> Tensor | None:
        if self.shares is None:
            return None
        if self.model.config.alignment == "mean":
            self.shares = self.shares / self.exits[:, None]
        return without_lead(self.shares, self.memory.lead)
