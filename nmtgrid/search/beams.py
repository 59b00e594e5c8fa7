"""Bookkeeping of a search: its live rows, the tree of their prefixes, and finished hypotheses.

`write_tokens` is one step of it, on tensors of fixed shapes and without synchronising with a
device, so that search/cuda_graphs.py can record it after the models' step. Called by engine.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from nmtgrid.base.rows import take
from nmtgrid.search.api import Hypothesis, SearchPlan
from nmtgrid.search.select import Candidates, Select, is_on_cpu, stable_topk
from nmtgrid.text.vocabulary import BEGIN

_LEAST_COVERAGE = 0.01
"""Smallest coverage of a source token in the coverage penalty: its logarithm stays finite."""
_STEP = 1 << 32
"""A node of the tree has the number step * _STEP + row."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """The R live rows: sentences x beam, those of a sentence side by side.

    tokens [R] are their last tokens, parents [R] the rows that they continue, and log_probabilities
    [R] those of whole rows, -inf for dead rows. If the search needs them: coverage [R, S], the sum
    of the alignments, is_word [R, S], the source tokens that should be covered, and reads [R] of
    the last write.
    """

    tokens: Tensor
    parents: Tensor
    log_probabilities: Tensor
    coverage: Tensor | None = None
    is_word: Tensor | None = None
    reads: Tensor | None = None

    @classmethod
    def begin(cls, count: int, device: torch.device) -> Rows:
        """Return `count` rows before their first token."""
        tokens = torch.full((count,), BEGIN, device=device)
        zeros = torch.zeros(count, device=device)
        return cls(tokens, torch.arange(count, device=device), zeros)


@dataclasses.dataclass(frozen=True)
class Groups:
    """The G live groups, each a sentence or one sample of it, and their best finished hypotheses.

    numbers [G] are those at the start of the search, keys [G] distinguish groups in sampling, and
    longest_norm [G] is the largest length norm that a row can still reach. scores,
    log_probabilities and nodes [G, W] (the last tokens before the end symbol) are of the best
    finished hypotheses, best first, the earlier one on a tie; scores are -inf where there is none.
    ended [G] counts all that have finished. is_done [G] marks groups whose search is over.
    """

    numbers: Tensor
    keys: Tensor
    longest_norm: Tensor
    scores: Tensor
    log_probabilities: Tensor
    nodes: Tensor
    ended: Tensor
    is_done: Tensor

    @classmethod
    def begin(cls, plan: SearchPlan, width: int, limits: Tensor, keys: Tensor) -> Groups:
        """Return the groups at the start of a search.

        `limits` [G] are the maximum lengths of hypotheses; `width` hypotheses are kept.
        """
        nothing = torch.full((len(limits), width), -math.inf, device=limits.device)
        return cls(
            torch.arange(len(limits), device=limits.device),
            keys,
            # Scores are negative, so the largest norm gives a row its highest score.
            plan.length_norm(limits + 1),
            nothing,
            nothing.clone(),
            torch.zeros_like(nothing, dtype=torch.long),
            torch.zeros_like(limits),
            torch.zeros_like(limits, dtype=torch.bool),
        )

    def add(
        self, following: Candidates, norm: Tensor, bonus: Tensor | float, step: int | Tensor
    ) -> Groups:
        """Add hypotheses ended after `step` tokens; `bonus` [G, W] is added to their scores."""
        ends, log_probabilities = following.end_parents, following.end_log_probabilities
        is_end = log_probabilities > -math.inf
        # Earlier hypotheses come first, so that they stay ahead on a tie.
        scores = torch.cat([self.scores, log_probabilities / norm + bonus], 1)
        scores, ranks = stable_topk(scores, self.scores.shape[1])
        totals = torch.cat([self.log_probabilities, log_probabilities], 1)
        nodes = torch.cat([self.nodes, ends + step * _STEP], 1)
        return dataclasses.replace(
            self,
            scores=scores,
            log_probabilities=totals.gather(1, ranks),
            nodes=nodes.gather(1, ranks),
            ended=self.ended + is_end.sum(1),
        )

    def mark_done(self, plan: SearchPlan, live: Tensor, norm: Tensor) -> Groups:
        """Return the groups with `is_done` for rows `live` [G, W] of a length with this `norm`.

        A search is over if nothing can change: even the most probable row, continued with certainty
        to the maximum length, would not overtake the worst hypothesis to be returned (in the style
        of transformers, the worst of the beam). It is also over if W hypotheses have finished and
        no row, at its current length, is ahead of that one.
        """
        best_row, width = live.amax(1), self.scores.shape[1]
        compared = min(plan.nbest, width) if plan.style == "own" else width
        worst = self.scores[:, compared - 1]
        is_behind = (self.ended >= width) & (best_row / norm <= worst)
        is_done = is_behind | (best_row / self.longest_norm <= worst)
        return dataclasses.replace(self, is_done=is_done)


class StepResult(NamedTuple):
    """The result of a step; alignment [R, S] is that of its predictions, None unless needed."""

    rows: Rows
    groups: Groups
    alignment: Tensor | None


def write_tokens(
    plan: SearchPlan,
    select: Select,
    log_probabilities: Tensor,
    alignment: Tensor | None,
    rows: Rows,
    groups: Groups,
    step: int | Tensor,
) -> StepResult:
    """Write one token in each row; rows of a finished sentence are dead from then on.

    log_probabilities [R, V] are those of the next tokens, -inf for forbidden ones; `step` tokens (a
    tensor [1] in a recording) have been written before.
    """
    following = select.choose(log_probabilities, rows.log_probabilities, groups.keys, step)
    coverage = rows.coverage
    bonus: Tensor | float = 0.0
    if coverage is not None and rows.is_word is not None and alignment is not None:
        # The coverage penalty of Wu et al. (2016).
        coverage = coverage + alignment
        logs = coverage.clamp(_LEAST_COVERAGE, 1.0).log()
        bonus = plan.coverage_penalty * (logs * rows.is_word).sum(1)[following.end_parents]
    totals, ended = following.log_probabilities, following.end_log_probabilities
    # In most steps nothing ends. Without a beam no further search is over then.
    has_ended = not is_on_cpu(ended) or bool((ended > -math.inf).any())
    if has_ended or select.width > 1:
        norm = plan.length_norm(groups.ended.new_full((1,), 1) + step)
        groups = groups.add(following, norm, bonus, step) if has_ended else groups
        live = totals.view(len(groups.numbers), -1)
        groups = groups.mark_done(plan, live, norm)
        totals = live.masked_fill(groups.is_done[:, None], -math.inf).flatten()
    moved = take((coverage, rows.is_word, rows.reads), following.parents)
    return StepResult(Rows(following.tokens, following.parents, totals, *moved), groups, alignment)


class PrefixTree:
    """The tree of prefixes: the rows of each step, with their parents in the previous step.

    The lists hold a tensor for each step: alignments [R, S], reads [R], exits [R] and exit_scores
    [R, N] of the predictions from the rows that were live then.
    """

    def __init__(self, rows: Rows, num_exits: int | None) -> None:
        """`num_exits` is the number of decoder blocks if rows may exit early, else None."""
        self.num_exits = num_exits
        self.alignments: list[Tensor] = []
        self.reads: list[Tensor] = []
        self.exits: list[Tensor] = []
        self.exit_scores: list[Tensor] = []
        self._tokens: list[Tensor] = []
        self._parents: list[Tensor] = []
        self._log_probabilities: list[Tensor] = []
        self.grow(rows)

    def grow(self, rows: Rows) -> None:
        """Append the live rows of the next step."""
        self._tokens.append(rows.tokens)
        self._parents.append(rows.parents)
        self._log_probabilities.append(rows.log_probabilities)

    @torch.inference_mode(False)  # alignments and scores are tensors that callers may change
    def hypotheses(
        self, finished: FinishedHypotheses, lengths: list[int]
    ) -> list[list[Hypothesis]]:
        """Return each group's finished hypotheses, best first; `lengths` [G] are of the sources."""
        groups, ranks = (finished.scores[:-1] > -math.inf).nonzero().unbind(1)
        totals = finished.log_probabilities[groups, ranks].tolist()
        scores = finished.scores[groups, ranks].tolist()
        paths = self._paths(finished.nodes[groups, ranks])
        # Paths shorter than T repeat their root, so the last root marks where a path begins.
        starts = (paths < len(self._tokens[0])).sum(1).tolist()
        # Concatenated only here: a tensor that grew at each step would be copied at each step.
        tokens = torch.cat(self._tokens)[paths].tolist()
        sums = torch.cat(self._log_probabilities)[paths].tolist()
        alignments = torch.cat(self.alignments) if self.alignments else None
        reads = torch.cat(self.reads)[paths].tolist() if self.reads else None
        exits = torch.cat(self.exits)[paths].tolist() if self.exits else None
        exit_scores = torch.cat(self.exit_scores) if self.exit_scores else None
        nbest_lists: list[list[Hypothesis]] = [[] for _ in lengths]
        for path, (group, start) in enumerate(zip(groups.tolist(), starts, strict=True)):
            # Values of a prediction are stored at the node before its token.
            rows = paths[path, start - 1 :]
            log_probabilities = itertools.pairwise([0.0, *sums[path][start:], totals[path]])
            hypothesis = Hypothesis(
                tokens[path][start:],
                [after - before for before, after in log_probabilities],
                totals[path],
                scores[path],
                None if alignments is None else alignments[rows].cpu()[:, : lengths[group]],
                None if reads is None else reads[path][start - 1 :],
                None if exits is None else exits[path][start - 1 :],
                None if exit_scores is None else exit_scores[rows].cpu(),
                self.num_exits,
            )
            nbest_lists[group].append(hypothesis)
        return nbest_lists

    def _paths(self, ends: Tensor) -> Tensor:
        """Return the paths [N, T] to the nodes `ends` [N], as indices into all steps' rows."""
        sizes = [len(tokens) for tokens in self._tokens]
        first = [0, *itertools.accumulate(sizes)]
        # For each step: its number of rows, its first row and the first row of the previous step;
        # roots are their own parents.
        table = torch.tensor([sizes, first[:-1], [0, *first[:-2]]])
        counts, first_row, first_parent = table.to(ends.device, non_blocking=True)
        parents = torch.cat(self._parents)
        parents += first_parent.repeat_interleave(counts, output_size=len(parents))
        paths = [first_row[ends // _STEP] + ends % _STEP]
        # All paths are followed to their roots at once.
        for _ in sizes[1:]:
            paths.append(parents[paths[-1]])
        return torch.stack(paths[::-1], 1)


class FinishedHypotheses:
    """The best finished hypotheses of each group: best first, the earlier one on a tie."""

    def __init__(self, groups: Groups, count: int) -> None:
        """`groups` are all groups of a search; `count` hypotheses of each are returned."""
        # The last row is for groups of padding, which have its number.
        shape = len(groups.numbers) + 1, count
        self.scores = groups.scores.new_full(shape, -math.inf)
        self.log_probabilities = self.scores.clone()
        self.nodes = groups.nodes.new_zeros(shape)

    def store(self, groups: Groups) -> None:
        """Store the finished hypotheses of `groups`."""
        for name in ("scores", "log_probabilities", "nodes"):
            values = getattr(groups, name)[:, : self.scores.shape[1]]
            getattr(self, name)[groups.numbers] = values
