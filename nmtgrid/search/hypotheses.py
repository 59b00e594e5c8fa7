"""The prefixes of a search as a tree of tensors, and the hypotheses that have ended.

Nothing is copied to the host before the search is over, so that an accelerator is not waited for:
engine.py fills both, and `FinishedHypotheses.hypotheses` reads them out once.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.search.select import stable_topk
from nmtgrid.text.vocabulary import BEGIN


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

    def hypotheses(
        self, ends: Tensor, totals: list[float], scores: list[float], lengths: list[int]
    ) -> list[Hypothesis]:
        """Return the hypotheses whose last tokens before the end symbol are the nodes `ends` [F].

        `totals`, `scores` and source `lengths` (F) are those of each, end symbols counted.
        """
        parents = torch.cat(self._parents)
        paths = [ends]
        # All are followed to the root at once.
        while bool((parents[paths[-1]] >= 0).any()):
            above = parents[paths[-1]]
            paths.append(torch.where(above < 0, paths[-1], above))
        # A path that is at its root already repeats it, so the root marks where a path begins.
        nodes = torch.stack(paths[::-1], 1)
        starts = (parents[nodes] < 0).sum(1).tolist()
        tokens = torch.cat(self._tokens)[nodes].tolist()
        sums = torch.cat(self._log_probabilities)[nodes].tolist()
        alignments = torch.cat(self.alignments) if self.alignments else None
        reads = torch.cat(self.reads)[nodes].tolist() if self.reads else None
        exits = torch.cat(self.exits)[nodes].tolist() if self.exits else None
        exit_scores = torch.cat(self.exit_scores) if self.exit_scores else None
        hypotheses = []
        for path, start in enumerate(starts):
            # What belongs to a prediction stands at the node before its token.
            rows = nodes[path, start - 1 :]
            log_probabilities = itertools.pairwise([0.0, *sums[path][start:], totals[path]])
            alignment = None
            if alignments is not None:
                alignment = alignments[rows].cpu()[:, : lengths[path]]
            hypothesis = Hypothesis(
                tokens[path][start:],
                [after - before for before, after in log_probabilities],
                totals[path],
                scores[path],
                alignment,
                None if reads is None else reads[path][start - 1 :],
                None if exits is None else exits[path][start - 1 :],
                None if exit_scores is None else exit_scores[rows].cpu(),
                self.num_exits,
            )
            hypotheses.append(hypothesis)
        return hypotheses


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
        # The largest norm that a row can still get: with it its score is highest, as scores are
        # below zero.
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
        # What ended before stands first, so that it stays ahead on a tie.
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
        owners = group.tolist()
        hypotheses = tree.hypotheses(
            self.nodes[group, rank],
            self.log_probabilities[group, rank].tolist(),
            self.scores[group, rank].tolist(),
            [lengths[owner] for owner in owners],
        )
        nbest_lists: list[list[Hypothesis]] = [[] for _ in lengths]
        for owner, hypothesis in zip(owners, hypotheses, strict=True):
            nbest_lists[owner].append(hypothesis)
        return nbest_lists
