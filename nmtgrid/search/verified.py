"""Greedy decoding by verified exits: an early exit drafts tokens, the full stack verifies them.

Self-speculative decoding (Zhang et al., 2024; Elhoushi et al., 2024): blocks up to the exit draft a
few tokens, one after the other; the blocks behind it then run once over all drafted positions of
all rows. A draft stands as long as it is what the full stack, at the same position and under the
same constraints, finds likeliest; the first that is not is replaced by that token. Rows advance by
different numbers of tokens. Called by engine.py.

The translations are those of greedy search with the full stack, ties broken alike. Sums are taken
in another order where several positions run at once, as they are in batches of another size: where
the two likeliest tokens are nearer to each other than that rounding (some 1e-6 of a log-probability
in float32, 1e-2 in bfloat16), either may be written.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.models.api import Drafts, ExitModel, TranslationModel, Verified, with_exits
from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.search.constraints import Banned, Constraint, MinLength, constrain
from nmtgrid.search.select import stable_max
from nmtgrid.text.vocabulary import BEGIN, END

_WORTH = 0.5
"""The last draft of a row should stand with at least this probability."""
_PRIOR = 4.0, 5.0
"""Drafts that stood, of those that were looked at, before any was."""
_MEMORY = 0.9
"""What earlier verifications count, with each one that follows."""


def check_verified(model: TranslationModel, verified: Verified, plan: SearchPlan) -> None:
    """Raise ConfigError where `verified` does not fit the model or the search."""
    count = with_exits(model).traits.num_exits
    faults = []
    if verified.exit >= count:
        faults.append(
            f"Verified exits draft at an exit before the last, from 1 to {count - 1}, but "
            f"{verified.exit} is asked for."
        )
    if plan.beam > 1:
        faults.append(
            f"Verified exits decode greedily, but the beam is {plan.beam} wide: a draft stands "
            "where it is the one likeliest token, which a beam does not look for (`--beam 1`)."
        )
    if plan.sample:
        faults.append("Verified exits decode greedily: what is drawn cannot be verified.")
    if plan.coverage_penalty:
        faults.append("Verified exits know no `search.coverage_penalty`: set it to 0.")
    if faults:
        raise ConfigError(faults)


class DraftLength:
    """How many tokens are drafted next, from how many of the latest drafts stood.

    Of a running rate alpha of drafts that stand, k drafts all stand with probability alpha^k: k is
    the most for which that is at least one half, from 1 to `most`.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._stood, self._seen = _PRIOR

    def add(self, stood: int, seen: int) -> None:
        """Count drafts that were looked at and those of them that stood."""
        self._stood = _MEMORY * self._stood + stood
        self._seen = _MEMORY * self._seen + seen

    def __int__(self) -> int:
        rate = self._stood / self._seen
        if rate >= 1:
            return self.most
        if rate <= _WORTH:
            return 1
        return min(self.most, int(math.log(_WORTH) / math.log(rate)))


class _Pass(NamedTuple):
    """One verification of R rows: their sentences, what Q positions hold, and how many count.

    tokens and log_probabilities [R, Q]; `written` and `stood` [R] are the tokens, end symbol
    counted, that the rows got, and how many of them had been drafted, of K = `drafts`.
    """

    sentence: Tensor
    tokens: Tensor
    log_probabilities: Tensor
    alignments: Tensor | None
    written: Tensor
    stood: Tensor
    drafts: int


class VerifiedSearch:
    """One greedy search under way."""

    def __init__(
        self,
        model: ExitModel,
        state: Drafts,
        verified: Verified,
        constraints: Sequence[Constraint],
        limits: Tensor,
    ) -> None:
        """`limits` [B] are the most tokens that each sentence's translation may have."""
        count, device = len(limits), limits.device
        self.exit, self.num_exits = verified.exit, model.traits.num_exits
        self.state, self.constraints, self.limits = state, constraints, limits
        # Read once: no row can be at its limit before.
        self.min_limit = int(limits.min())
        self.types = model.classifier().weight.shape[0]
        # Only these look at none but special symbols, which are the first types.
        self.is_plain = all(isinstance(rule, Banned | MinLength) for rule in constraints)
        self.length = DraftLength(verified.drafts)
        self.sentence = torch.arange(count, device=device)
        self.tokens = torch.full((count,), BEGIN, device=device)
        self.written = torch.zeros(count, dtype=torch.long, device=device)
        self.passes: list[_Pass] = []

    def run(self) -> None:
        """Write all translations."""
        while len(self.sentence):
            remaining = int((self.limits[self.sentence] - self.written).max())
            drafted = self._draft(min(int(self.length), remaining))
            self._verify(drafted)

    def _draft(self, count: int) -> Tensor:
        """Feed the last tokens and what is drafted, up to `count`; return the drafts [R, K]."""
        last, drafts, token = int(self.written.max()) + count, [], self.tokens
        is_over = torch.zeros_like(token, dtype=torch.bool)
        for step in range(count):
            logits = self.state.feed(token, self.written + step, last, predict=True)
            assert logits is not None
            token = self._likeliest(logits, self.written + step, last)
            drafts.append(token)
            is_over |= token == END
            # Nothing follows the end symbol; on a GPU looking would cost more than it saves.
            if token.device.type == "cpu" and bool(is_over.all()):
                return torch.stack(drafts, 1)
        self.state.feed(token, self.written + count, last, predict=False)
        return torch.stack(drafts, 1) if drafts else token.new_empty(len(token), 0)

    def _likeliest(self, logits: Tensor, step: Tensor, last: int) -> Tensor:
        """Return the draft [R] of logits [R, V'], as the constraints will have it.

        `step` [R] tokens stand in the rows, `last` at most.
        """
        missing = self.types - logits.shape[1]
        if missing and not self.is_plain:
            logits = torch.nn.functional.pad(logits, (0, missing), value=-math.inf)
        limits = self.limits if last >= self.min_limit else None
        logits = constrain(logits, step, self.sentence, self.constraints, limits)
        return stable_max(logits)[1]

    def _verify(self, drafts: Tensor) -> None:
        """Write what the full stack finds, as far as each row's drafts [R, K] agree with it."""
        logits, alignments = self.state.verify()
        rows, count = len(drafts), len(logits) // len(drafts)
        steps = (self.written[:, None] + torch.arange(count, device=drafts.device)).flatten()
        sentence = self.sentence.repeat_interleave(count)
        values = logits.float().log_softmax(1)
        limits = self.limits if int(steps.max()) >= self.min_limit else None
        values = constrain(values, steps, sentence, self.constraints, limits)
        value, token = (column.view(rows, count) for column in stable_max(values))
        stood = accepted(drafts, token)
        # One token more than stood: the correction, or what follows the last draft.
        written = (stood + 1).clamp(max=count)
        is_end = token == END
        first_end = torch.where(is_end.any(1), is_end.int().argmax(1), count)
        is_done = first_end < written
        written = torch.where(is_done, first_end + 1, written)
        stood = stood.minimum(written)
        shares = None if alignments is None else alignments.view(rows, count, -1)
        self.passes.append(
            _Pass(self.sentence, token, value, shares, written, stood, drafts.shape[1])
        )
        wrong = (stood < written) & (stood < drafts.shape[1])
        stood_now = int(stood.sum())
        self.length.add(stood_now, stood_now + int(wrong.sum()))
        self._go_on(token.gather(1, written[:, None] - 1)[:, 0], written, is_done)

    def _go_on(self, tokens: Tensor, written: Tensor, is_done: Tensor) -> None:
        """Go on with the rows that are not done, from the last of what was `written` [R]."""
        self.state.keep(written)
        self.tokens, self.written = tokens, self.written + written
        going = (~is_done).nonzero()[:, 0]
        if len(going) < len(is_done):
            self.tokens, self.written = self.tokens[going], self.written[going]
            self.sentence = self.sentence[going]
            if len(going):
                self.state.take_rows(going)

    def hypotheses(self, plan: SearchPlan, lengths: Sequence[int]) -> list[Hypothesis | None]:
        """Return each sentence's translation, None where nothing could be written.

        `lengths` [B] are those of the sources, for alignments.
        """
        columns = [_Columns() for _ in lengths]
        for part in self.passes:
            rows = zip(
                part.sentence.tolist(), part.tokens.tolist(), part.log_probabilities.tolist(),
                part.written.tolist(), part.stood.tolist(), strict=True,
            )  # fmt: skip
            for row, (sentence, tokens, values, written, stood) in enumerate(rows):
                column = columns[sentence]
                column.tokens += tokens[:written]
                column.log_probabilities += values[:written]
                column.exits += [self.exit] * stood + [self.num_exits] * (written - stood)
                column.passes.append((part.drafts, part.tokens.shape[1]))
                if part.alignments is not None:
                    column.alignments.append(part.alignments[row, :written].cpu())
        return [
            column.hypothesis(plan, self.num_exits, length)
            for column, length in zip(columns, lengths, strict=True)
        ]


def accepted(drafts: Tensor, tokens: Tensor) -> Tensor:
    """Return [R]: how many of the drafts [R, K] are what the full stack has there, tokens [R, Q].

    Up to the first that is not.
    """
    agrees = drafts == tokens[:, : drafts.shape[1]]
    return agrees.long().cumprod(1).sum(1)


@dataclasses.dataclass
class _Columns:
    """What one sentence's translation consists of, token by token, and the passes it took."""

    tokens: list[int] = dataclasses.field(default_factory=list)
    log_probabilities: list[float] = dataclasses.field(default_factory=list)
    exits: list[int] = dataclasses.field(default_factory=list)
    passes: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    alignments: list[Tensor] = dataclasses.field(default_factory=list)

    def hypothesis(self, plan: SearchPlan, num_exits: int, length: int) -> Hypothesis | None:
        total = sum(self.log_probabilities)
        if not total > -math.inf:
            return None
        norm = float(plan.length_norm(torch.tensor(len(self.tokens))))
        return Hypothesis(
            self.tokens[:-1],
            self.log_probabilities,
            total,
            total / norm,
            torch.cat(self.alignments)[:, :length] if self.alignments else None,
            exits=self.exits,
            num_exits=num_exits,
            passes=self.passes,
        )
