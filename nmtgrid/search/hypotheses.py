"""The prefixes of a search as a tree of tensors, and the hypotheses that have ended.

Nothing is copied to the host before the search is over, so that an accelerator is not waited for:
engine.py fills both, and `FinishedHypotheses.hypotheses` reads them out once.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import torch
from torch import Tensor

from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.search.select import stable_topk
from nmtgrid.text.vocabulary import BEGIN


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prefix:
    """A prefix of T tokens: the whole log-probability after each, and, where they were recorded,
    the alignments [T + 1, S], reads and exits (T + 1), and scores of exits [T + 1, N] of the tokens
    and of the prediction that ended it."""

    tokens: list[int]
    log_probabilities: list[float]
    alignment: Tensor | None
    reads: list[int] | None
    exits: list[int] | None
    exit_scores: Tensor | None


class PrefixTree:
    """The tree of prefixes: one node for each row and step, each with a pointer to its parent.

    The lists hold a tensor for each step: alignments [R, S], reads [R], exits [R] and exit_scores
    [R, N] of the prediction that follows the rows which were live then.
    """

    def __init__(self, rows: int, device: torch.device, num_exits: int | None = None) -> None:
        """`num_exits` are the decoder's blocks, where rows may leave early."""
        self.num_exits = num_exits
        self.alignments: list[Tensor] = []
        self.reads: list[Tensor] = []
        self.exits: list[Tensor] = []
        self.exit_scores: list[Tensor] = []
        self._tokens = [torch.full((rows,), BEGIN, device=device)]
        self._parents = [torch.full((rows,), -1, device=device)]
        self._log_probabilities = [torch.zeros(rows, device=device)]
        self.nodes = torch.arange(rows, device=device)
        self._count = rows

    def grow(self, tokens: Tensor, parents: Tensor, log_probabilities: Tensor) -> None:
        """Make [R'] new nodes the live rows; `parents` [R'] are nodes, not rows."""
        self._tokens.append(tokens)
        self._parents.append(parents)
        self._log_probabilities.append(log_probabilities)
        self.nodes = torch.arange(self._count, self._count + len(tokens), device=tokens.device)
        self._count += len(tokens)

    def trace(self, ends: Tensor) -> list[Prefix]:
        """Follow `ends` [F] (nodes) to the root, all at once."""
        parents = torch.cat(self._parents)
        paths = [ends]
        while bool((parents[paths[-1]] >= 0).any()):
            above = parents[paths[-1]]
            paths.append(torch.where(above < 0, paths[-1], above))
        # A path that is at its root already repeats it, so the root marks where a path begins.
        nodes = torch.stack(paths[::-1], 1)
        lengths = (parents[nodes] >= 0).sum(1).tolist()
        tokens = torch.cat(self._tokens)[nodes].tolist()
        log_probabilities = torch.cat(self._log_probabilities)[nodes].tolist()
        alignments = torch.cat(self.alignments) if self.alignments else None
        reads = torch.cat(self.reads)[nodes].tolist() if self.reads else None
        exits = torch.cat(self.exits)[nodes].tolist() if self.exits else None
        scores = torch.cat(self.exit_scores) if self.exit_scores else None
        prefixes = []
        for path, length in enumerate(lengths):
            start = len(tokens[path]) - length
            # What belongs to a prediction stands at the node before its token.
            before = start - 1
            rows = nodes[path, before:]
            prefix = Prefix(
                tokens=tokens[path][start:],
                log_probabilities=log_probabilities[path][start:],
                alignment=None if alignments is None else alignments[rows].cpu(),
                reads=None if reads is None else reads[path][before:],
                exits=None if exits is None else exits[path][before:],
                exit_scores=None if scores is None else scores[rows].cpu(),
            )
            prefixes.append(prefix)
        return prefixes


class FinishedHypotheses:
    """The best hypotheses that have ended, for each group: best first, the earlier on a tie."""

    def __init__(self, plan: SearchPlan, width: int, limits: Tensor) -> None:
        """`limits` [G] are the most tokens that a hypothesis of each group can have."""
        shape, device = (len(limits), width), limits.device
        self.plan, self.width = plan, width
        self.scores = torch.full(shape, -math.inf, device=device)
        self.log_probabilities = torch.full(shape, -math.inf, device=device)
        self.nodes = torch.zeros(shape, dtype=torch.long, device=device)
        self._ended = torch.zeros(len(limits), dtype=torch.long, device=device)
        self._longest_norm = plan.length_norm(limits + 1)

    def add(
        self, groups: Tensor, length: int, log_probabilities: Tensor, bonus: Tensor, nodes: Tensor
    ) -> None:
        """Add what ended in `groups` [G] with `length` tokens, the end symbol counted.

        log_probabilities [G, E] (-inf: nothing), `bonus` [G, E] is added to their scores, and
        nodes [G, E] are the last tokens before the end symbol.
        """
        is_end = log_probabilities > -math.inf
        # On the CPU a look costs nothing and saves most steps; elsewhere it would be a wait.
        if groups.device.type == "cpu" and not bool(is_end.any()):
            return
        norm = self.plan.length_norm(torch.full((), length, device=groups.device))
        scores = torch.cat([self.scores[groups], log_probabilities / norm + bonus], 1)
        totals = torch.cat([self.log_probabilities[groups], log_probabilities], 1)
        all_nodes = torch.cat([self.nodes[groups], nodes], 1)
        self.scores[groups], ranks = stable_topk(scores, self.width)
        self.log_probabilities[groups] = totals.gather(1, ranks)
        self.nodes[groups] = all_nodes.gather(1, ranks)
        self._ended[groups] += is_end.sum(1)

    def is_done(self, groups: Tensor, live: Tensor, length: int) -> Tensor:
        """Return [G], True where the search of a sentence ends, for rows `live` [G, W].

        Either nothing can change: even the likeliest row, were the rest of it certain and as
        long as it may be, would not pass the worst hypothesis to be returned. Or `width`
        hypotheses have ended and no row, at its present `length`, is ahead of that one.
        """
        best_row = live.amax(1)
        worst = self.scores[groups, min(self.plan.nbest, self.width) - 1]
        norm = self.plan.length_norm(torch.full((), length, device=groups.device))
        is_behind = (self._ended[groups] >= self.width) & (best_row / norm <= worst)
        return is_behind | (best_row / self._longest_norm[groups] <= worst)

    def hypotheses(self, tree: PrefixTree, lengths: list[int]) -> list[list[Hypothesis]]:
        """Return each group's hypotheses, best first; `lengths` [G] are the sources'."""
        count = min(self.plan.nbest, self.width)
        group, rank = (self.scores[:, :count] > -math.inf).nonzero().unbind(1)
        prefixes = tree.trace(self.nodes[group, rank])
        scores = self.scores[group, rank].tolist()
        totals = self.log_probabilities[group, rank].tolist()
        hypotheses: list[list[Hypothesis]] = [[] for _ in lengths]
        for owner, prefix, score, total in zip(
            group.tolist(), prefixes, scores, totals, strict=True
        ):
            sums = [0.0, *prefix.log_probabilities, total]
            alignment = prefix.alignment
            hypothesis = Hypothesis(
                prefix.tokens,
                [after - before for before, after in itertools.pairwise(sums)],
                log_probability=total,
                score=score,
                alignment=None if alignment is None else alignment[:, : lengths[owner]],
                reads=prefix.reads,
                exits=prefix.exits,
                exit_scores=prefix.exit_scores,
                num_exits=tree.num_exits,
            )
            hypotheses[owner].append(hypothesis)
        return hypotheses
