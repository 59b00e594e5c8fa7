"""What a search remembers, as tensors: the tree of all rows, and the hypotheses that ended."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.search.select import best
from nmtgrid.text.vocabulary import BEGIN


class History:
    """The tree of prefixes: one node for each row and step, each with a pointer to its parent."""

    def __init__(self, rows: int, device: torch.device) -> None:
        root = torch.zeros(rows, device=device)
        self._tokens = [torch.full((rows,), BEGIN, device=device)]
        self._parents = [torch.full((rows,), -1, device=device)]
        self._log_probabilities = [root]
        self._alignments: list[Tensor] = []
        self.nodes = torch.arange(rows, device=device)
        self._count = rows

    def add_alignment(self, alignment: Tensor) -> None:
        """Keep the alignment [R, S] of whatever follows the rows that are live now."""
        self._alignments.append(alignment)

    def grow(self, tokens: Tensor, parents: Tensor, log_probabilities: Tensor) -> None:
        """Make [R'] new nodes the live rows; `parents` [R'] are nodes, not rows."""
        self._tokens.append(tokens)
        self._parents.append(parents)
        self._log_probabilities.append(log_probabilities)
        self.nodes = torch.arange(self._count, self._count + len(tokens), device=tokens.device)
        self._count += len(tokens)

    def trace(self, ends: Tensor) -> tuple[list[list[int]], list[list[float]], list[Tensor]]:
        """Follow `ends` [F] (nodes) to the root, all at once.

        Returns for each end its tokens (T), the whole log-probability after each (T), and,
        where alignments were kept, [T + 1, S] with the prediction that ended it.
        """
        tokens, parents = torch.cat(self._tokens), torch.cat(self._parents)
        paths = [ends]
        while bool((parents[paths[-1]] >= 0).any()):
            above = parents[paths[-1]]
            paths.append(torch.where(above < 0, paths[-1], above))
        # A path that is at its root already repeats it, so the root marks where a path begins.
        nodes = torch.stack(paths[::-1], 1)
        lengths = (parents[nodes] >= 0).sum(1).tolist()
        written, values = tokens[nodes].tolist(), torch.cat(self._log_probabilities)[nodes].tolist()
        cut = [len(row) - length for row, length in zip(written, lengths, strict=True)]
        alignments: list[Tensor] = []
        if self._alignments:
            kept = torch.cat(self._alignments)
            alignments = [
                kept[path[start - 1 :]].cpu() for path, start in zip(nodes, cut, strict=True)
            ]
        return (
            [row[start:] for row, start in zip(written, cut, strict=True)],
            [row[start:] for row, start in zip(values, cut, strict=True)],
            alignments,
        )


class Ledger:
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

    def enter(
        self, groups: Tensor, length: int, log_probabilities: Tensor, extra: Tensor, nodes: Tensor
    ) -> None:
        """Enter what ended in `groups` [G] with `length` tokens, the end symbol counted.

        log_probabilities [G, E] (-inf: nothing), `extra` [G, E] is added to their scores, and
        nodes [G, E] are the last tokens before the end symbol.
        """
        norm = self.plan.length_norm(torch.tensor(length, device=groups.device))
        new = log_probabilities / norm + extra
        scores, kept = best(torch.cat([self.scores[groups], new], 1), self.width)
        both = torch.cat([self.log_probabilities[groups], log_probabilities], 1)
        self.scores[groups] = scores
        self.log_probabilities[groups] = both.gather(1, kept)
        self.nodes[groups] = torch.cat([self.nodes[groups], nodes], 1).gather(1, kept)
        self._ended[groups] += (log_probabilities > -math.inf).sum(1)

    def is_done(self, groups: Tensor, live: Tensor, length: int) -> Tensor:
        """Return [G], True where the search of a sentence ends, for rows `live` [G, W].

        Either nothing can change: even the likeliest row, were the rest of it certain and as
        long as it may be, would not pass the worst hypothesis to be returned. Or `width`
        hypotheses have ended and no row, at its present `length`, is ahead of that one.
        """
        best_row = live.amax(1)
        worst = self.scores[groups, min(self.plan.nbest, self.width) - 1]
        norm = self.plan.length_norm(torch.tensor(length, device=groups.device))
        is_behind = (self._ended[groups] >= self.width) & (best_row / norm <= worst)
        return is_behind | (best_row / self._longest_norm[groups] <= worst)

    def hypotheses(self, history: History, lengths: list[int]) -> list[list[Hypothesis]]:
        """Return each group's hypotheses, best first; `lengths` [G] are the sources'."""
        count = min(self.plan.nbest, self.width)
        places = (self.scores[:, :count] > -math.inf).nonzero()
        group, rank = places[:, 0], places[:, 1]
        tokens, values, alignments = history.trace(self.nodes[group, rank])
        scores = self.scores[group, rank].tolist()
        totals = self.log_probabilities[group, rank].tolist()
        found: list[list[Hypothesis]] = [[] for _ in lengths]
        for place, owner in enumerate(group.tolist()):
            steps = [0.0, *values[place], totals[place]]
            found[owner].append(
                Hypothesis(
                    tokens[place],
                    [after - before for before, after in itertools.pairwise(steps)],
                    totals[place],
                    scores[place],
                    alignments[place][:, : lengths[owner]] if alignments else None,
                )
            )
        return found
