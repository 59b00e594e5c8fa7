"""Greedy decoding by verified exits: an early exit drafts tokens, the full stack verifies them.

Self-speculative decoding (Zhang et al., 2024; Elhoushi et al., 2024): blocks up to the exit draft a
few tokens, one after the other; the later blocks then run once over all drafted positions of all
rows. Drafts are accepted as long as each is the most probable token of the full stack at its
position, under the same constraints; the first that is not is replaced by that token. Rows advance
by different numbers of tokens. Called by engine.py.

The translations are those of greedy search with the full stack, with the same tie-breaking. As with
batches of another size, sums are computed in another order when several positions run at once: if
the two most probable tokens are closer than this rounding error (some 1e-6 of a log-probability in
float32, 1e-2 in bfloat16), either may be written.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.rows import is_token
from nmtgrid.models.api import Drafts, ExitModel, TranslationModel, Verified, with_exits
from nmtgrid.search.api import Hypothesis, SearchPlan, VerifiedPass
from nmtgrid.search.constraints import MinLength, Rules
from nmtgrid.search.select import stable_max
from nmtgrid.text.vocabulary import BEGIN, END, PAD

_WORTH = 0.5
"""The last draft of a row should be accepted with at least this probability."""
_GOING = 0.6
"""If at most this share of the rows still drafts, all stop: the others would wait for a few."""
_PRIOR = 4.0, 5.0, -2.0
"""Initial numbers of accepted and of verified drafts, and initial sum of their log p."""
_MEMORY = 0.9
"""Factor by which earlier verifications decay with each new one."""


def check_verified(model: TranslationModel, verified: Verified, plan: SearchPlan) -> None:
    """Raise ConfigError if `verified` does not fit the model or the search."""
    count = with_exits(model).traits.num_exits
    faults = []
    if verified.exit >= count:
        faults.append(
            f"Verified exits draft at an exit before the last, from 1 to {count - 1}, not "
            f"{verified.exit}."
        )
    if plan.beam > 1:
        faults.append(
            f"Verified exits decode greedily, but the beam size is {plan.beam}: a draft is "
            "accepted if it is the most probable token, which a beam does not rely on (`--beam 1`)."
        )
    if plan.sample:
        faults.append("Verified exits decode greedily: samples cannot be verified.")
    if plan.coverage_penalty:
        faults.append("Verified exits do not support `search.coverage_penalty`: set it to 0.")
    if faults:
        raise ConfigError(faults)


class DraftLength:
    """Number of tokens that a row drafts, from its confidence and the recent acceptance rate.

    All of k drafts with probabilities p_1 .. p_k at their exit are expected to be accepted with
    probability (p_1 .. p_k)^c, where c fits the acceptance rate of recent drafts. A row keeps
    drafting while that is at least one half.
    """

    def __init__(self) -> None:
        self._accepted, self._seen, self._logs = _PRIOR

    def add(self, accepted: int, seen: int, logs: float) -> None:
        """Count `accepted` drafts among those verified (`seen`), and the sum of their log p."""
        self._accepted = _MEMORY * self._accepted + accepted
        self._seen = _MEMORY * self._seen + seen
        self._logs = _MEMORY * self._logs + logs

    @property
    def least(self) -> float:
        """The sum of log p below which a row stops drafting."""
        # If all were accepted, or all were certain, nothing limits a row's drafts.
        rate = math.log(self._accepted / self._seen) if self._accepted < self._seen else 0.0
        return math.log(_WORTH) * self._logs / (self._seen * rate) if rate else -math.inf


class _Drafts(NamedTuple):
    """Drafts of R rows: tokens and log-probabilities [R, K], of which the first `counts` [R] count.

    In each row `fed` tokens were fed to the blocks up to the exit, and its classifier made
    `predicted` predictions. `needed` [R] are the positions to verify: one more than drafts, unless
    the last is the end symbol.
    """

    tokens: Tensor
    logs: Tensor
    counts: Tensor
    needed: Tensor
    fed: int
    predicted: int


class _Pass(NamedTuple):
    """One verification of R rows: their sentences and the tokens of the full stack at Q positions.

    tokens and log_probabilities [R, Q] (0 where nothing was verified), alignments [R, Q, S];
    `written` [R] are the numbers of tokens added to the rows, including the end symbol, and
    `accepted` [R] those of them that had been drafted.
    """

    sentence: Tensor
    tokens: Tensor
    log_probabilities: Tensor
    alignments: Tensor | None
    written: Tensor
    accepted: Tensor
    drafts: _Drafts


class VerifiedSearch:
    """A greedy search in progress."""

    def __init__(
        self,
        model: ExitModel,
        state: Drafts,
        verified: Verified,
        rules: Rules,
    ) -> None:
        count, device = len(rules.limits), rules.limits.device
        self.exit, self.num_exits = verified.exit, model.traits.num_exits
        self.state, self.rules = state, rules
        # Read once: no row can reach its limit earlier.
        self.min_limit = int(rules.limits.min())
        self.types = model.classifier().weight.shape[0]
        # These rules affect only special symbols, which are the first types.
        self.is_plain = all(isinstance(rule, MinLength) for rule in rules.constraints)
        self.most, self.length = verified.drafts, DraftLength()
        self.sentence = torch.arange(count, device=device)
        self.tokens = torch.full((count,), BEGIN, device=device)
        self.written = torch.zeros(count, dtype=torch.long, device=device)
        # Maxima over the live rows: of the tokens that may still be written, and of those written.
        self.remaining, self.longest = int(rules.limits.max()), 0
        self.passes: list[_Pass] = []

    def run(self) -> None:
        """Write all translations."""
        while len(self.sentence):
            self._verify(self._draft(min(self.most, self.remaining)))

    def _draft(self, most: int) -> _Drafts:
        """Feed the last tokens and draft up to `most` in each row, feeding the drafts too."""
        last, least, token = self.longest + most, self.length.least, self.tokens
        counts, total = torch.zeros_like(token), torch.zeros(len(token), device=token.device)
        goes_on = torch.ones_like(token, dtype=torch.bool)
        is_over = torch.zeros_like(goes_on)
        drafts: list[tuple[Tensor, Tensor]] = []
        for step in range(most):
            logits = self.state.feed(token, self.written + step, last, predict=True)
            assert logits is not None
            logits = logits.float()
            # Constraints also apply to drafts, so that drafts can be accepted; not if they affect
            # only special symbols, which are rarely the most probable tokens.
            if not self.is_plain:
                missing = self.types - logits.shape[1]
                logits = torch.nn.functional.pad(logits, (0, missing), value=-math.inf)
                logits = self.rules.apply(
                    logits, self.written + step, self.sentence, at_limit=last >= self.min_limit
                )
            log, token = logits.log_softmax(1).max(1)
            drafts.append((token, log))
            total = total + log
            goes_on = goes_on & (total >= least)
            counts = counts + goes_on
            is_over = is_over | (goes_on & (token == END))
            # Nothing follows the end symbol.
            goes_on = goes_on & ~is_over
            if int(goes_on.sum()) <= _GOING * len(goes_on):
                fed = step + 1
                break
        else:
            self.state.feed(token, self.written + most, last, predict=False)
            fed = most + 1
        if not drafts:
            drafts.append((token, total))
        tokens, logs = (torch.stack(parts, 1) for parts in zip(*drafts, strict=True))
        needed = (counts + ~is_over).clamp(max=fed)
        return _Drafts(tokens, logs, counts, needed, fed, min(fed, most))

    def _verify(self, drafts: _Drafts) -> None:
        """Write the tokens of the full stack, as far as each row's drafts agree with them."""
        shape = len(drafts.tokens), drafts.fed
        columns = torch.arange(drafts.fed, device=drafts.tokens.device)
        is_needed = columns < drafts.needed[:, None]
        cells = is_needed.flatten().nonzero()[:, 0]
        logits, alignments = self.state.verify(cells)
        values = logits.float().log_softmax(1)
        steps = (self.written[:, None] + columns).flatten()[cells]
        sentence = self.sentence[cells // drafts.fed]
        at_limit = self.longest + drafts.fed > self.min_limit
        value, token = stable_max(self.rules.apply(values, steps, sentence, at_limit=at_limit))
        tokens = token.new_full((is_needed.numel(),), PAD).index_copy(0, cells, token).view(shape)
        log_probabilities = value.new_zeros(tokens.numel()).index_copy(0, cells, value).view(shape)
        accepted = count_accepted(drafts.tokens, drafts.counts, tokens)
        # One token more than was accepted: the correction, or the one after the last draft. An end
        # symbol can only be the last token: no draft follows one.
        written = (accepted + 1).minimum(drafts.needed)
        last = tokens.gather(1, written[:, None] - 1)[:, 0]
        self.passes.append(
            _Pass(self.sentence, tokens, log_probabilities, alignments, written, accepted, drafts)
        )
        self._go_on(drafts, accepted, last, written)

    def _go_on(self, drafts: _Drafts, accepted: Tensor, tokens: Tensor, written: Tensor) -> None:
        """Continue with the unfinished rows, from the last (`tokens` [R]) of the tokens `written`.

        Counts the drafts that were accepted, and the first rejected one of each row.
        """
        self.state.keep(written)
        self.tokens, self.written = tokens, self.written + written
        is_done = tokens == END
        seen = (accepted + 1).minimum(drafts.counts)
        is_seen = is_token(seen, drafts.tokens.shape[1])
        remaining = self.rules.limits[self.sentence] - self.written
        # All numbers in one copy, which synchronises with an accelerator only once.
        numbers = torch.stack(
            [
                accepted.sum().double(),
                seen.sum().double(),
                drafts.logs.masked_fill(~is_seen, 0.0).sum().double(),
                is_done.sum().double(),
                remaining.masked_fill(is_done, 0).max().double(),
                self.written.masked_fill(is_done, 0).max().double(),
            ]
        ).tolist()
        self.length.add(int(numbers[0]), int(numbers[1]), numbers[2])
        done, self.remaining, self.longest = map(int, numbers[3:])
        if not done:
            return
        going = is_done.sort(stable=True).indices[: len(is_done) - done]
        self.tokens, self.written = self.tokens[going], self.written[going]
        self.sentence = self.sentence[going]
        if len(going):
            self.state.take_rows(going)

    def hypotheses(self, plan: SearchPlan, lengths: Sequence[int]) -> list[Hypothesis | None]:
        """Return each sentence's translation, None if nothing could be written.

        `lengths` [B] are those of the sources, for alignments.
        """
        columns = [_Columns() for _ in lengths]
        for part in self.passes:
            needed = part.drafts.needed.tolist()
            rows = zip(
                part.sentence.tolist(), part.tokens.tolist(), part.log_probabilities.tolist(),
                part.written.tolist(), part.accepted.tolist(), strict=True,
            )  # fmt: skip
            for row, (sentence, tokens, values, written, count) in enumerate(rows):
                column = columns[sentence]
                column.tokens += tokens[:written]
                column.log_probabilities += values[:written]
                column.exits += [self.exit] * count + [self.num_exits] * (written - count)
                fed, verified = part.drafts.fed, needed[row]
                blocks = self.exit * fed + (self.num_exits - self.exit) * verified
                column.passes.append(
                    VerifiedPass(fed, part.drafts.predicted, verified, written, blocks)
                )
                if part.alignments is not None:
                    column.alignments.append(part.alignments[row, :written].cpu())
        return [
            column.hypothesis(plan, self.num_exits, length)
            for column, length in zip(columns, lengths, strict=True)
        ]


def count_accepted(drafts: Tensor, counts: Tensor, tokens: Tensor) -> Tensor:
    """Return the number [R] of drafts [R, K] that equal tokens [R, Q], up to the first difference.

    Only the first `counts` [R] drafts of each row are compared.
    """
    length = drafts.shape[1]
    agrees = (drafts == tokens[:, :length]) & is_token(counts, length)
    return agrees.long().cumprod(1).sum(1)


@dataclasses.dataclass
class _Columns:
    """The tokens of one sentence's translation with their values, and its verifications."""

    tokens: list[int] = dataclasses.field(default_factory=list)
    log_probabilities: list[float] = dataclasses.field(default_factory=list)
    exits: list[int] = dataclasses.field(default_factory=list)
    passes: list[VerifiedPass] = dataclasses.field(default_factory=list)
    alignments: list[Tensor] = dataclasses.field(default_factory=list)

    @torch.inference_mode(False)  # alignments are tensors that callers may change
    def hypothesis(self, plan: SearchPlan, num_exits: int, length: int) -> Hypothesis | None:
        total = sum(self.log_probabilities)
        if not total > -math.inf:
            return None
        norm = plan.length_norm_of(len(self.tokens))
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
