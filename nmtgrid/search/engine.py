"""The one decoding loop: greedy search, beams, sampling and ensembles of any architecture.

Rows are sentences x width. Each step feeds every row's last token to the models, lets constraints
rule tokens out, lets a selection pick the continuations, and drops the sentences that are done. The
loop knows of models only what models/api.py says. Called by translate.py, validation
(training/validate.py), online/evaluate.py and adaptive/measure.py.

What it remembers, the tree of prefixes and the hypotheses that have ended, stays in tensors and is
copied to the host once, when the search is over: an accelerator is not waited for.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError, ModelError
from nmtgrid.base.rows import repeat, take
from nmtgrid.models.api import ExitModel, Step, TranslationModel, with_exits
from nmtgrid.search.api import Agent, Halt, Hypothesis, Proposal, SearchPlan, Verified
from nmtgrid.search.constraints import (
    Banned,
    Constraint,
    ForcedPrefix,
    MinLength,
    NotYet,
    Rules,
    length_bounds,
)
from nmtgrid.search.cuda_graphs import Graphs
from nmtgrid.search.select import Beam, Continuations, Greedy, Sample, Select, stable_topk
from nmtgrid.search.verified import VerifiedSearch, check_verified
from nmtgrid.text.vocabulary import BEGIN, PAD

_CHECK_EVERY = 4
"""Steps between two looks at what is done: a look makes an accelerator wait for the host."""
_WORTH_DROPPING = 7 / 8
"""Share of sentences still going at which it pays to copy the others' state for its own sake."""
_LEAST_COVERAGE = 0.01
"""A source token covered less than this counts as covered so much: its logarithm stays finite."""


def check(
    models: Sequence[TranslationModel],
    plan: SearchPlan,
    align: bool = False,
    agent: Agent | None = None,
    halt: Halt | Verified | None = None,
) -> None:
    """Raise ConfigError or ModelError when `models` do not support such a search."""
    if halt is not None:
        if len(models) > 1:
            raise ConfigError(
                f"Early exit decodes one model at a time, but {len(models)} are averaged here.",
                "Leave `--exit` or `--ensemble` away.",
            )
        if not isinstance(halt, Verified):
            with_exits(models[0]).check_halt(halt, has_whole_source=agent is None)
        elif agent is not None:
            raise ConfigError(
                "Verified exits decode offline: drafts would have to be verified with what had "
                "been read when each was written.",
                "Leave `--exit verified` away, or leave early at an exit or by thresholds.",
            )
        else:
            check_verified(models[0], halt, plan)
    for model in models if agent is not None else ():
        if not model.traits.prefix_safe:
            raise model.refusal()
        if agent is not None and agent.wants_reading and not model.traits.reads:
            raise model.no_reader()
        if agent is not None and agent.wants_readiness not in ("none", model.traits.readiness):
            raise model.no_mechanism(agent.wants_readiness)
    if agent is not None and agent.wants_proposals and halt is not None:
        raise ConfigError(
            "A reading policy that looks at predictions runs all blocks for each of them: it does "
            "not go with early exits.",
            "Leave `--exit` away, or read by wait-k or by the model's reader.",
        )
    aligns = agent is not None and agent.wants_alignment
    if align or aligns or plan.coverage_penalty > 0:
        blind = sorted({m.architecture for m in models if not m.traits.aligns})
        if blind:
            what = "`search.coverage_penalty`"
            if align or aligns:
                what = "Alignments" if align else "The alignments that the reading policy needs"
            raise ConfigError(
                f"{what} cannot be had from `{'`, `'.join(blind)}`: "
                "this architecture yields no alignments.",
                "Leave the option away or use a model that aligns.",
            )
    # Probabilities of different vocabularies cannot be averaged.
    sizes = [model.classifier().weight.shape[0] for model in models]
    if len(set(sizes)) > 1:
        raise ModelError(
            f"The models of an ensemble have target vocabularies of different sizes: {sizes}.",
            "Only models made from one dataset can be averaged.",
        )


@torch.no_grad()  # not inference_mode: autocast keeps no cast weights there
def search(
    models: Sequence[TranslationModel],
    source: Tensor,
    lengths: Tensor,
    plan: SearchPlan,
    *,
    align: bool = False,
    constraints: Sequence[Constraint] = (),
    keys: Tensor | None = None,
    agent: Agent | None = None,
    halt: Halt | Verified | None = None,
    graphs: Graphs | None = None,
) -> list[list[Hypothesis]]:
    """Return for each sentence its best hypotheses, best first.

    source [B, S] ends with `</s>`, padded on the right, lengths [B] count it (pictures [B, S, F]
    have S regions and no end); `models` (in evaluation mode) share both vocabularies and are
    averaged in probability. `keys` [B] (int64) tell sentences apart in sampling and to `halt`, so
    that draws do not depend on the batch (None: their positions in it). `agent` says how much of
    the source each write may look at (None: all of it), `halt` when a row may leave the decoder
    (None: never early), or how tokens are drafted and verified (search/verified.py). Without both,
    steps are replayed from `graphs` (None: each is computed anew). Where a model is not shown the
    source's end, translations are as long as their sources (see `length_bounds`).

    Raises ConfigError when alignments, limited reads or exits are needed that a model does not
    have, ModelError when the models' vocabularies differ in size and where nothing can be written,
    as with scores that are no numbers.
    """
    check(models, plan, align, agent, halt)
    if isinstance(halt, Verified):
        exit_model = with_exits(models[0])
        return _search_verified(exit_model, source, lengths, plan, align, constraints, halt)
    # A recorded step has neither limited reads nor rows that leave it early.
    if agent is not None or halt is not None:
        graphs = None
    if graphs is not None:
        source = graphs.pad_source(source)
    run = _Run(models, source, lengths, plan, align, constraints, keys, agent, halt, graphs)
    for step in range(run.max_steps):
        if not run.advance(step):
            break
    hypotheses = run.tree.hypotheses(run.finished, run.lengths)
    if not all(hypotheses):
        raise _nothing_to_write()
    # Each sample of a sentence was searched as a group of its own.
    score = operator.attrgetter("score")
    return [
        sorted(itertools.chain(*hypotheses[first : first + run.copies]), key=score, reverse=True)
        for first in range(0, len(hypotheses), run.copies)
    ]


def begin(model: TranslationModel, source: Tensor, lengths: Tensor, agent: Agent | None) -> Any:
    """Return the state before the first step, of a model that reads as `agent` wants it to."""
    state = model.begin(source, lengths)
    if agent is None or agent.chooses_from is None:
        return state
    return model.choosing_from(agent.chooses_from, state)


def _rules(
    models: Sequence[TranslationModel],
    plan: SearchPlan,
    lengths: Tensor,
    constraints: Sequence[Constraint],
    is_text: bool,
) -> Rules:
    # Not shown where the source ends, a model cannot know when to end either (appendix C).
    hides_end = any(model.traits.hides_source_end for model in models)
    least, limits = length_bounds(plan, lengths, end_is_hidden=hides_end, of_pictures=not is_text)
    for constraint in constraints:
        if isinstance(constraint, ForcedPrefix):
            # Else the search would end in the middle of a long prefix.
            limits = limits.maximum(constraint.lengths)
    shortest = [MinLength(least)] if plan.min_length or hides_end else []
    banned = Banned((PAD, BEGIN), plan.renormalize)
    return Rules(banned, (*shortest, *constraints), limits, plan.style == "transformers")


def _search_verified(
    model: ExitModel,
    source: Tensor,
    lengths: Tensor,
    plan: SearchPlan,
    align: bool,
    constraints: Sequence[Constraint],
    verified: Verified,
) -> list[list[Hypothesis]]:
    rules = _rules([model], plan, lengths, constraints, source.dim() == 2)
    drafts = model.drafts(model.begin(source, lengths), verified, align)
    run = VerifiedSearch(model, drafts, verified, rules)
    run.run()
    hypotheses = run.hypotheses(plan, lengths.tolist())
    if None in hypotheses:
        raise _nothing_to_write()
    return [[hypothesis] for hypothesis in hypotheses if hypothesis is not None]


def _nothing_to_write() -> ModelError:
    return ModelError(
        "The model gives no token that may follow a probability above zero.",
        "Its weights are damaged, or its training diverged (NaN), or constraints of your own "
        "strike all tokens out.",
    )


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
        self, finished: FinishedHypotheses, lengths: list[int]
    ) -> list[list[Hypothesis]]:
        """Return each group's finished hypotheses, best first; `lengths` [G] are the sources'."""
        count = min(finished.plan.nbest, finished.width)
        groups, ranks = (finished.scores[:, :count] > -math.inf).nonzero().unbind(1)
        totals = finished.log_probabilities[groups, ranks].tolist()
        scores = finished.scores[groups, ranks].tolist()
        # Concatenated once, here: a tensor that grew at each step would be copied at each step.
        parents = torch.cat(self._parents)
        paths = [finished.nodes[groups, ranks]]
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
        nbest_lists: list[list[Hypothesis]] = [[] for _ in lengths]
        for path, (group, start) in enumerate(zip(groups.tolist(), starts, strict=True)):
            # What belongs to a prediction stands at the node before its token.
            rows = nodes[path, start - 1 :]
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
        long as it may be, would not pass the worst hypothesis to be returned (or, in the style of
        transformers, any of the beam's). Or `width` hypotheses have ended and no row, at its
        present `length`, is ahead of that one.
        """
        best_row = live.amax(1)
        is_own = self.plan.style == "own"
        compared = min(self.plan.nbest, self.width) if is_own else self.width
        worst = self.scores[groups, compared - 1]
        norm = self.plan.length_norm(torch.full((), length, device=groups.device))
        is_behind = (self._ended[groups] >= self.width) & (best_row / norm <= worst)
        return is_behind | (best_row / self._longest_norm[groups] <= worst)


class Averaged(NamedTuple):
    """What models yield together: means of probabilities, alignments and readiness (see `Step`)."""

    log_probabilities: Tensor
    alignment: Tensor | None = None
    readiness: Tensor | None = None

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Averaged:
        """Return the means of all models' steps, log-probabilities [R, V] in float32."""
        alignment = _mean([step.alignment for step in steps])
        readiness = _mean([step.readiness for step in steps])
        # In float32 whatever autocast computed: sums over a sentence need the digits.
        values = [step.logits.float().log_softmax(1) for step in steps]
        if len(values) == 1:
            return cls(values[0], alignment, readiness)
        # The mean of probabilities, from their logarithms without leaving them.
        mean = torch.stack(values).logsumexp(0) - math.log(len(values))
        return cls(mean, alignment, readiness)

    def put(self, rows: Tensor, part: Averaged) -> None:
        """Put those of some rows [R'] in their place."""
        for whole, some in zip(self, part, strict=True):
            if whole is not None and some is not None:
                whole[rows] = some


def _mean(values: Sequence[Tensor | None]) -> Tensor | None:
    present = [value.float() for value in values if value is not None]
    return torch.stack(present).mean(0) if present else None


class _RowHalt:
    """A halt that gets the keys of sentences where the model passes numbers of rows."""

    def __init__(self, halt: Halt, keys: Tensor) -> None:
        self.halt, self.keys, self.needs = halt, keys, halt.needs

    def exits(self, exit: int, step: int, keys: Tensor, scores: Tensor | None) -> Tensor:
        return self.halt.exits(exit, step, self.keys.index_select(0, keys), scores)


class _Run:
    """One search under way: the live rows, their states, and all prefixes so far."""

    def __init__(
        self,
        models: Sequence[TranslationModel],
        source: Tensor,
        lengths: Tensor,
        plan: SearchPlan,
        align: bool,
        constraints: Sequence[Constraint],
        keys: Tensor | None,
        agent: Agent | None,
        halt: Halt | None,
        graphs: Graphs | None,
    ) -> None:
        device, is_text = source.device, source.dim() == 2
        self.models, self.plan, self.align = models, plan, align
        self.agent, self.halt, self.graphs = agent, halt, graphs
        self.source_lengths = lengths
        self.copies = plan.nbest if plan.sample else 1
        count = len(source) * self.copies
        self.groups = torch.arange(count, device=device)
        self.lengths = lengths.repeat_interleave(self.copies).tolist()
        self.rules = _rules(models, plan, lengths, constraints, is_text)
        # Read once: a comparison with Python numbers later needs no wait for the device.
        self.min_limit = int(self.rules.limits.min())
        self.max_steps = int(self.rules.limits.max()) + 1
        self.keys = torch.arange(len(source), device=device) if keys is None else keys.to(device)
        self.select: Select = Greedy() if plan.beam == 1 else Beam(plan.beam)
        if plan.sample:
            copy = torch.arange(self.copies, device=device)
            # A prime stride: keys of different sentences and copies do not meet.
            self.select = Sample(plan, (self.keys[:, None] * 1_000_003 + copy).flatten())
        self.states = [
            repeat(begin(model, source, lengths, agent), self.copies) for model in models
        ]
        self.reads = None if agent is None else torch.ones_like(self.groups)
        self.tokens = torch.full((count,), BEGIN, device=device)
        self.log_probabilities = torch.zeros(count, device=device)
        num_exits = None if halt is None else models[0].traits.num_exits
        self.tree = PrefixTree(count, device, num_exits)
        limits = self.rules.limits.repeat_interleave(self.copies)
        self.finished = FinishedHypotheses(plan, self.select.width, limits)
        self.is_word = self.coverage = None
        if plan.coverage_penalty:
            # All source tokens should be covered but the end symbol, which pictures lack.
            columns = torch.arange(source.shape[1], device=device)
            is_word = columns[None] < lengths[:, None] - int(is_text)
            self.is_word = is_word.repeat_interleave(self.copies, 0)
            self.coverage = torch.zeros(self.is_word.shape, device=device)
        self.check_every = 1 if device.type == "cpu" else _CHECK_EVERY

    def advance(self, step: int) -> bool:
        """Write one token in each live row; return False when all sentences are done."""
        sentence = self.groups
        rows_per_group = len(self.tokens) // len(self.groups)
        if rows_per_group * self.copies > 1:
            # [R]: the position of each row's sentence in the batch.
            sentence = (self.groups // self.copies).repeat_interleave(rows_per_group)
        # Reading comes before writing: a token is predicted from what has been read by then.
        if self.agent is not None and self.reads is not None:
            self.reads = self._next_reads(self.agent, self.reads, step, sentence)
        if self.agent is not None and self.agent.wants_proposals:
            predicted = self._propose(self.agent, step, sentence)
        else:
            predicted = self._predict(sentence)
        if self.reads is not None:
            self.tree.reads.append(self.reads)
        log_probabilities = self._constrain(predicted, step, sentence)
        following = self.select.choose(log_probabilities, self.log_probabilities, self.groups, step)
        ends = following.end_parents
        bonus = torch.zeros_like(ends, dtype=torch.float32)
        if self.coverage is not None and self.is_word is not None:
            # The coverage penalty of Wu et al. (2016).
            logs = self.coverage.clamp(_LEAST_COVERAGE, 1.0).log()
            bonus = self.plan.coverage_penalty * (logs * self.is_word).sum(1)[ends]
        self.finished.add(
            self.groups, step + 1, following.end_log_probabilities, bonus, self.tree.nodes[ends]
        )
        return self._advance_rows(following, step)

    def _next_reads(self, agent: Agent, reads: Tensor, step: int, sentence: Tensor) -> Tensor:
        """Return [R]: how much each row has read when it writes its next token."""
        rho = None
        if agent.wants_reading:
            pairs = zip(self.models, self.states, strict=True)
            # The reader has to see every written token before it can say whether to read on.
            self.states = [model.consider(self.tokens, state) for model, state in pairs]
            pairs = zip(self.models, self.states, strict=True)
            shares = [model.reading_row(state).float().sigmoid() for model, state in pairs]
            rho = torch.stack(shares).mean(0)
        return agent.next_reads(step, sentence, reads, self.source_lengths[sentence], rho)

    def _predict(self, sentence: Tensor) -> Tensor:
        """Return the next tokens' log-probabilities [R, V] (float32), averaged over the models."""
        align = self.align or self.coverage is not None
        steps = []
        for member, (model, state) in enumerate(zip(self.models, self.states, strict=True)):
            if self.graphs is not None:
                width = self.select.width
                step = self.graphs.step(member, model, self.tokens, state, width, align)
            elif self.halt is None:
                step = model.step(self.tokens, state, reads=self.reads, align=align)
            else:
                halt = _RowHalt(self.halt, self.keys[sentence])
                step = with_exits(model).step(
                    self.tokens, state, reads=self.reads, align=align, halt=halt
                )
            if step.exits is not None:
                self.tree.exits.append(step.exits)
            if step.scores is not None:
                self.tree.exit_scores.append(step.scores)
            steps.append(step)
        self.states = [step.state for step in steps]
        predicted = Averaged.of(steps)
        if predicted.alignment is not None:
            self._keep_alignment(predicted.alignment)
        return predicted.log_probabilities

    def _propose(self, agent: Agent, step: int, sentence: Tensor) -> Tensor:
        """Return what `_predict` does, once the policy has written in every row.

        Rows that read on are asked again, those that write keep their prediction.
        """
        assert self.reads is not None
        align = self.align or self.coverage is not None or agent.wants_alignment
        pairs = zip(self.models, self.states, strict=True)
        self.states = [model.feed(self.tokens, state) for model, state in pairs]
        lengths = self.source_lengths[sentence]
        reads, rows = self.reads.clone(), torch.arange(len(self.tokens), device=lengths.device)
        predicted: Averaged | None = None
        while True:
            some = None if predicted is None else rows
            steps = [
                model.propose(state, reads, rows=some, align=align)
                for model, state in zip(self.models, self.states, strict=True)
            ]
            self.states = [step.state for step in steps]
            latest = Averaged.of(steps)
            if predicted is None:
                predicted = latest
            else:
                predicted.put(rows, latest)
            proposal = Proposal(step, sentence[rows], reads[rows], *latest)
            # At the end of the source there is nothing left to read, and what is no hypothesis any
            # more need not read it.
            goes_on = ~agent.writes(proposal) & (proposal.reads < lengths[rows])
            goes_on &= self.log_probabilities[rows] > -math.inf
            rows = rows[goes_on]
            if not len(rows):
                break
            reads[rows] += 1
        self.reads = reads
        pairs = zip(self.models, self.states, strict=True)
        self.states = [model.accept(state) for model, state in pairs]
        if predicted.alignment is not None:
            self._keep_alignment(predicted.alignment)
        return predicted.log_probabilities

    def _keep_alignment(self, alignment: Tensor) -> None:
        if self.align:
            self.tree.alignments.append(alignment)
        if self.coverage is not None:
            self.coverage = self.coverage + alignment

    def _constrain(self, log_probabilities: Tensor, step: int, sentence: Tensor) -> Tensor:
        """Rule out what must not follow; a row at its limit can end whatever the rules say."""
        rules = self.rules
        if self.reads is not None and self.agent is not None and self.agent.finish_reading:
            is_early = NotYet(self.reads < self.source_lengths[sentence])
            rules = dataclasses.replace(rules, constraints=(is_early, *rules.constraints))
        return rules.apply(log_probabilities, step, sentence, at_limit=step >= self.min_limit)

    def _advance_rows(self, following: Continuations, step: int) -> bool:
        """Make the rows that follow the live ones, without the sentences that are done."""
        count = len(self.groups)
        live = following.log_probabilities.view(count, -1)
        is_done = self.finished.is_done(self.groups, live, step + 1)
        # Rows of a sentence that is done stay until the next look, but nothing comes of them.
        log_probabilities = live.masked_fill(is_done[:, None], -math.inf).flatten()
        tokens, parents = following.tokens, following.parents
        if (step + 1) % self.check_every == 0:
            going = (~is_done).nonzero()[:, 0]
            if len(going) == 0:
                return False
            # Rows that move anyway are copied, so dropping costs nothing more.
            moves = parents is not None or len(going) <= _WORTH_DROPPING * count
            if len(going) < count and moves:
                rows = torch.arange(live.numel(), device=going.device).view(count, -1)
                rows = rows[going].flatten()
                tokens, log_probabilities = tokens[rows], log_probabilities[rows]
                self.groups = self.groups[going]
                parents = rows if parents is None else parents[rows]
        nodes = self.tree.nodes
        if parents is not None:
            nodes = nodes[parents]
            # What the rows own is not copied when no row moves; an accelerator would have to wait
            # for the comparison.
            is_cpu = parents.device.type == "cpu"
            if not (is_cpu and torch.equal(parents, torch.arange(len(self.tokens)))):
                self.states = [take(state, parents) for state in self.states]
                if self.reads is not None:
                    self.reads = self.reads[parents]
                if self.coverage is not None and self.is_word is not None:
                    self.coverage, self.is_word = self.coverage[parents], self.is_word[parents]
        self.tree.grow(tokens, nodes, log_probabilities)
        self.tokens, self.log_probabilities = tokens, log_probabilities
        return True
