"""What a search remembers, as tensors: the tree of all rows, and the hypotheses that ended."""

from __future__ import annotations

import dataclasses
import itertools
import math

import torch
from torch import Tensor

from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.search.select import stable_topk
from nmtgrid.text.vocabulary import BEGIN


@dataclasses.dataclass(frozen=True)
class Prefix:
    """A prefix of T tokens: the whole log-probability after each, and, where they were kept, the
    alignments [T + 1, S], reads and exits (T + 1), and scores of exits [T + 1, N] of the tokens and
    of the prediction that ended it."""

    tokens: list[int]
    log_probabilities: list[float]
    alignment: Tensor | None
    reads: list[int] | None
    exits: list[int] | None
    exit_scores: Tensor | None


class PrefixTree:
    """The tree of prefixes: one node for each row and step, each with a pointer to its parent."""

    def __init__(self, rows: int, device: torch.device, num_exits: int | None = None) -> None:
        """`num_exits` are the decoder's blocks, where rows may leave early."""
        self.num_exits = num_exits
        root = torch.zeros(rows, device=device)
        self._tokens = [torch.full((rows,), BEGIN, device=device)]
        self._parents = [torch.full((rows,), -1, device=device)]
        self._log_probabilities = [root]
        self._alignments: list[Tensor] = []
        self._reads: list[Tensor] = []
        self._exits: list[Tensor] = []
        self._exit_scores: list[Tensor] = []
        self.nodes = torch.arange(rows, device=device)
        self._count = rows

    def add_alignment(self, alignment: Tensor) -> None:
        """Keep the alignment [R, S] of whatever follows the rows that are live now."""
        self._alignments.append(alignment)

    def add_reads(self, reads: Tensor) -> None:
        """Keep the reads [R] with which whatever follows the live rows is written."""
        self._reads.append(reads)

    def add_exits(self, exits: Tensor, scores: Tensor | None) -> None:
        """Keep the exits [R] of whatever follows the live rows, and their scores [R, N]."""
        self._exits.append(exits)
        if scores is not None:
            self._exit_scores.append(scores)

    def grow(self, tokens: Tensor, parents: Tensor, log_probabilities: Tensor) -> None:
        """Make [R'] new nodes the live rows; `parents` [R'] are nodes, not rows."""
        self._tokens.append(tokens)
        self._parents.append(parents)
        self._log_probabilities.append(log_probabilities)
        self.nodes = torch.arange(self._count, self._count + len(tokens), device=tokens.device)
        self._count += len(tokens)

    def trace(self, ends: Tensor) -> list[Prefix]:
        """Follow `ends` [F] (nodes) to the root, all at once."""
        tokens, parents = torch.cat(self._tokens), torch.cat(self._parents)
        paths = [ends]
        while bool((parents[paths[-1]] >= 0).any()):
            above = parents[paths[-1]]
            paths.append(torch.where(above < 0, paths[-1], above))
        # A path that is at its root already repeats it, so the root marks where a path begins.
        nodes = torch.stack(paths[::-1], 1)
        lengths = (parents[nodes] >= 0).sum(1).tolist()
        written, values = tokens[nodes].tolist(), torch.cat(self._log_probabilities)[nodes].tolist()
        alignments, scores = _joined(self._alignments), _joined(self._exit_scores)
        reads, exits = (
            None if held is None else held[nodes].tolist()
            for held in (_joined(self._reads), _joined(self._exits))
        )
        found = []
        for place, length in enumerate(lengths):
            start = len(written[place]) - length
            found.append(
                Prefix(
                    written[place][start:],
                    values[place][start:],
                    None if alignments is None else alignments[nodes[place, start - 1 :]].cpu(),
                    None if reads is None else reads[place][start - 1 :],
                    None if exits is None else exits[place][start - 1 :],
                    None if scores is None else scores[nodes[place, start - 1 :]].cpu(),
                )
            )
        return found


def _joined(held: list[Tensor]) -> Tensor | None:
    return torch.cat(held) if held else None


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

    def enter(
        self, groups: Tensor, length: int, log_probabilities: Tensor, extra: Tensor, nodes: Tensor
    ) -> None:
        """Enter what ended in `groups` [G] with `length` tokens, the end symbol counted.

        log_probabilities [G, E] (-inf: nothing), `extra` [G, E] is added to their scores, and
        nodes [G, E] are the last tokens before the end symbol.
        """
        is_end = log_probabilities > -math.inf
        if groups.device.type == "cpu" and not bool(is_end.any()):
            return
        norm = self.plan.length_norm(torch.full((), length, device=groups.device))
        new = log_probabilities / norm + extra
        scores, kept = stable_topk(torch.cat([self.scores[groups], new], 1), self.width)
        both = torch.cat([self.log_probabilities[groups], log_probabilities], 1)
        self.scores[groups] = scores
        self.log_probabilities[groups] = both.gather(1, kept)
        self.nodes[groups] = torch.cat([self.nodes[groups], nodes], 1).gather(1, kept)
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

    def hypotheses(self, history: PrefixTree, lengths: list[int]) -> list[list[Hypothesis]]:
        """Return each group's hypotheses, best first; `lengths` [G] are the sources'."""
        count = min(self.plan.nbest, self.width)
        places = (self.scores[:, :count] > -math.inf).nonzero()
        group, rank = places[:, 0], places[:, 1]
        traced = history.trace(self.nodes[group, rank])
        scores = self.scores[group, rank].tolist()
        totals = self.log_probabilities[group, rank].tolist()
        found: list[list[Hypothesis]] = [[] for _ in lengths]
        for place, owner in enumerate(group.tolist()):
            one = traced[place]
            steps = [0.0, *one.log_probabilities, totals[place]]
            found[owner].append(
                Hypothesis(
                    one.tokens,
                    [after - before for before, after in itertools.pairwise(steps)],
                    totals[place],
                    scores[place],
                    None if one.alignment is None else one.alignment[:, : lengths[owner]],
                    one.reads,
                    one.exits,
                    one.exit_scores,
                    history.num_exits,
                )
            )
        return found
