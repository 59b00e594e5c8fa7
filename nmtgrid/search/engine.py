"""The one decoding loop: greedy search, beams, sampling and ensembles of any architecture.

Rows are sentences x width. The loop feeds every row's last token to the models, lets constraints
strike tokens out, lets a selection pick what follows, and drops the sentences that are done. It
knows of models only what models/api.py says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError, ModelError
from nmtgrid.base.rows import repeat, take
from nmtgrid.models.api import Step, TranslationModel, with_exits
from nmtgrid.search.api import Agent, Halt, Hypothesis, SearchPlan
from nmtgrid.search.constraints import (
    Banned,
    Constraint,
    MinLength,
    hides_the_end,
    length_bounds,
    room_for_prefixes,
)
from nmtgrid.search.cuda_graphs import Graphs
from nmtgrid.search.hypotheses import FinishedHypotheses, PrefixTree
from nmtgrid.search.select import Beam, Continuations, Greedy, Sample, Select
from nmtgrid.text.vocabulary import BEGIN, END, PAD


def check(
    models: Sequence[TranslationModel],
    plan: SearchPlan,
    align: bool = False,
    agent: Agent | None = None,
    halt: Halt | None = None,
) -> None:
    """Raise ConfigError or ModelError when `models` cannot do what is asked of them."""
    if halt is not None:
        _check_halt(models, agent, halt)
    for model in models if agent is not None else ():
        if not model.traits.prefix_safe:
            raise model.refusal()
    if align or plan.coverage_penalty > 0:
        blind = sorted({m.architecture for m in models if not m.traits.aligns})
        if blind:
            what = "Alignments" if align else "`search.coverage_penalty`"
            raise ConfigError(
                f"{what} cannot be had from `{'`, `'.join(blind)}`: "
                "this architecture yields no alignments.",
                "Leave the option away or use a model that aligns.",
            )
    sizes = [model.classifier().weight.shape[0] for model in models]
    if len(set(sizes)) > 1:
        raise ModelError(
            f"The models of an ensemble have target vocabularies of different sizes: {sizes}.",
            "Only models made from one dataset can be averaged.",
        )


def _check_halt(models: Sequence[TranslationModel], agent: Agent | None, halt: Halt) -> None:
    if len(models) > 1:
        raise ConfigError(
            f"Early exit decodes one model at a time, but {len(models)} are averaged here.",
            "Leave `--exit` or `--ensemble` away.",
        )
    with_exits(models[0]).check_halt(halt, has_whole_source=agent is None)


_CHECK_EVERY = 4
"""Steps between two looks at what is done: a look makes an accelerator wait for the host."""
_WORTH_DROPPING = 7 / 8
"""Share of sentences still going at which it pays to copy the others' state for its own sake."""
_LEAST_COVERAGE = 0.01
"""A source token covered less than this counts as covered so much: its logarithm stays finite."""


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
    halt: Halt | None = None,
    graphs: Graphs | None = None,
) -> list[list[Hypothesis]]:
    """Return for each sentence its best hypotheses, best first.

    source [B, S] ends with `</s>`, padded on the right, lengths [B] count it (pictures [B, S, F]
    have S regions and no end); `models` (in
    evaluation mode) share both vocabularies and are averaged in probability. `keys` [B] (int64)
    tell sentences apart in sampling and to `halt`, so that draws do not depend on the batch (None:
    their places in it). `agent` says how much of the source each write may look at (None: all of
    it), `halt` when a row may leave the decoder (None: never early). Where neither is asked for,
    steps are replayed from `graphs` (None: each is computed anew). Where a model is not shown the
    source's end, translations are as long as their sources (see `length_bounds`).

    Raises ConfigError when alignments, limited reads or exits are needed that a model does not
    have, ModelError when the models' vocabularies differ in size and where nothing can be written,
    as with scores that are no numbers.
    """
    check(models, plan, align, agent, halt)
    if agent is not None or halt is not None:
        graphs = None
    if graphs is not None:
        source = graphs.widened(source)
    run = _Run(models, source, lengths, plan, align, constraints, keys, agent, halt, graphs)
    for step in range(run.most_steps):
        if not run.advance(step):
            break
    found = run.ledger.hypotheses(run.history, run.lengths)
    if not all(found):
        raise ModelError(
            "The model gives no token that may follow a probability above zero.",
            "Its weights are damaged, or its training diverged (NaN), or constraints of your own "
            "strike all tokens out.",
        )
    copies = run.copies
    grouped = [found[first : first + copies] for first in range(0, len(found), copies)]
    return [
        sorted((one for group in some for one in group), key=lambda one: -one.score)
        for some in grouped
    ]


class _ForRows:
    """A halt that is asked with the keys of the sentences which the rows belong to."""

    def __init__(self, halt: Halt, keys: Tensor) -> None:
        """`keys` [R] are those of the rows of the next step."""
        self.halt, self.keys, self.needs = halt, keys, halt.needs

    def exits(self, exit: int, step: int, keys: Tensor, scores: Tensor | None) -> Tensor:
        """Return [R'], True where a row leaves; `keys` [R'] are numbers of rows."""
        return self.halt.exits(exit, step, self.keys.index_select(0, keys), scores)


class _Run:
    """One search under way: the live rows, their states, and what is remembered."""

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
        device = source.device
        self.models, self.plan, self.aligned = models, plan, align
        self.copies = plan.nbest if plan.sample else 1
        groups = len(source) * self.copies
        hides, of_pictures = hides_the_end(models), source.dim() == 3
        least, self.limits = length_bounds(
            plan, lengths, end_is_hidden=hides, of_pictures=of_pictures
        )
        self.limits = room_for_prefixes(self.limits, constraints)
        self.shortest_limit, self.most_steps = int(self.limits.min()), int(self.limits.max()) + 1
        self.lengths = lengths.repeat_interleave(self.copies).tolist()
        shortest = [MinLength(least)] if plan.min_length or hides else []
        self.constraints: list[Constraint] = [Banned((PAD, BEGIN)), *shortest, *constraints]
        self.states = [repeat(m.begin(source, lengths), self.copies) for m in models]
        self.agent, self.halt, self.source_lengths = agent, halt, lengths
        self.graphs = graphs
        self.keys = torch.arange(len(source), device=device) if keys is None else keys.to(device)
        self.select = _selection(plan, self.keys, self.copies)
        self.groups = torch.arange(groups, device=device)
        self.reads = None if agent is None else torch.ones_like(self.groups)
        self.tokens = torch.full((groups,), BEGIN, device=device)
        self.so_far = torch.zeros(groups, device=device)
        num_exits = None if halt is None else models[0].traits.num_exits
        self.history = PrefixTree(groups, device, num_exits)
        limits = self.limits.repeat_interleave(self.copies)
        self.ledger = FinishedHypotheses(plan, self.select.width, limits)
        self.is_word = self.coverage = None
        if plan.coverage_penalty:
            self.is_word = _covered_words(source, lengths, self.copies)
            self.coverage = torch.zeros(self.is_word.shape, device=device)
        self.check_every = 1 if device.type == "cpu" else _CHECK_EVERY

    def advance(self, step: int) -> bool:
        """Write one token in each live row; return False when all sentences are done."""
        self._read(step)
        following = self._rule(self._predict(), step)
        choice = self.select.choose(following, self.so_far, self.groups, step)
        self.ledger.enter(
            self.groups,
            step + 1,
            choice.end_log_probabilities,
            self._coverage_score(choice.end_parents),
            self.history.nodes[choice.end_parents],
        )
        return self._move(choice, step)

    def _rule(self, following: Tensor, step: int) -> Tensor:
        """Strike out what must not follow; a row at its limit can end whatever the rules say."""
        sentence = self._sentence()
        end = following[:, END].clone() if step >= self.shortest_limit else None
        if self.reads is not None and self.agent is not None and self.agent.finish_reading:
            is_early = self.reads < self.source_lengths[sentence]
            following[:, END] = following[:, END].masked_fill(is_early, -math.inf)
        for constraint in self.constraints:
            following = constraint.apply(following, step, sentence)
        if end is None:
            return following
        only_end = torch.full_like(following, -math.inf)
        only_end[:, END] = end
        return torch.where((self.limits[sentence] <= step)[:, None], only_end, following)

    def _sentence(self) -> Tensor:
        """Return [R]: the place of each row's sentence in the batch."""
        rows_per_group = len(self.tokens) // len(self.groups)
        if rows_per_group == self.copies == 1:
            return self.groups
        return (self.groups // self.copies).repeat_interleave(rows_per_group)

    def _read(self, step: int) -> None:
        """Let the agent decide how much each row has read when it writes its next token."""
        if self.agent is None or self.reads is None:
            return
        rho = None
        if self.agent.wants_reading:
            considered = zip(self.models, self.states, strict=True)
            self.states = [model.consider(self.tokens, state) for model, state in considered]
            rows = zip(self.models, self.states, strict=True)
            rho = torch.stack([model.reading_row(s).float().sigmoid() for model, s in rows]).mean(0)
        sentence = self._sentence()
        lengths = self.source_lengths[sentence]
        self.reads = self.agent.next_reads(step, sentence, self.reads, lengths, rho)
        self.history.add_reads(self.reads)

    def _predict(self) -> Tensor:
        """Return the next tokens' log-probabilities [R, V] (float32), averaged over the models."""
        wanted = self.aligned or self.coverage is not None
        if self.graphs is not None:
            held = zip(self.models, self.states, strict=True)
            steps = [
                self.graphs.step(member, model, self.tokens, state, self.select.width, wanted)
                for member, (model, state) in enumerate(held)
            ]
        elif self.halt is None:
            steps = [
                model.step(self.tokens, state, reads=self.reads, align=wanted)
                for model, state in zip(self.models, self.states, strict=True)
            ]
        else:
            steps = [self._step_until(self.halt, wanted)]
        self.states = [step.state for step in steps]
        if wanted:
            shares = [step.alignment.float() for step in steps if step.alignment is not None]
            alignment = torch.stack(shares).mean(0)
            if self.aligned:
                self.history.add_alignment(alignment)
            if self.coverage is not None:
                self.coverage = self.coverage + alignment
        values = [step.logits.float().log_softmax(1) for step in steps]
        if len(values) == 1:
            return values[0]
        return torch.stack(values).logsumexp(0) - math.log(len(values))

    def _step_until(self, halt: Halt, align: bool) -> Step:
        """Return the step of the one model, whose rows leave when `halt` says so."""
        for_rows = _ForRows(halt, self.keys[self._sentence()])
        model = with_exits(self.models[0])
        step = model.step(self.tokens, self.states[0], reads=self.reads, align=align, halt=for_rows)
        assert step.exits is not None
        self.history.add_exits(step.exits, step.scores)
        return step

    def _coverage_score(self, rows: Tensor) -> Tensor:
        """Return [G, E], the coverage penalty (Wu et al., 2016) of hypotheses that end."""
        if self.coverage is None or self.is_word is None:
            return torch.zeros_like(rows, dtype=torch.float32)
        logs = self.coverage.clamp(_LEAST_COVERAGE, 1.0).log()
        return self.plan.coverage_penalty * (logs * self.is_word).sum(1)[rows]

    def _move(self, choice: Continuations, step: int) -> bool:
        """Make the chosen rows the live ones, without the sentences that are done."""
        count = len(self.groups)
        live = choice.log_probabilities.view(count, -1)
        is_done = self.ledger.is_done(self.groups, live, step + 1)
        # Rows of a sentence that is done stay until the next look, but nothing comes of them.
        so_far = live.masked_fill(is_done[:, None], -math.inf).flatten()
        tokens, parents = choice.tokens, choice.parents
        if (step + 1) % self.check_every == 0:
            going = (~is_done).nonzero()[:, 0]
            if len(going) == 0:
                return False
            moves = parents is not None or len(going) <= _WORTH_DROPPING * count
            if len(going) < count and moves:
                rows = torch.arange(len(so_far), device=going.device).view(count, -1)[going]
                rows = rows.flatten()
                tokens, so_far, self.groups = tokens[rows], so_far[rows], self.groups[going]
                parents = rows if parents is None else parents[rows]
        self._take(parents)
        nodes = self.history.nodes
        self.history.grow(tokens, nodes if parents is None else nodes[parents], so_far)
        self.tokens, self.so_far = tokens, so_far
        return True

    def _take(self, parents: Tensor | None) -> None:
        """Reorder, drop and repeat what the rows own; nothing is copied when no row moves."""
        if parents is None:
            return
        still = torch.arange(len(self.tokens), device=parents.device)
        if parents.device.type == "cpu" and torch.equal(parents, still):
            return
        self.states = [take(state, parents) for state in self.states]
        if self.reads is not None:
            self.reads = self.reads[parents]
        if self.coverage is not None and self.is_word is not None:
            self.coverage, self.is_word = self.coverage[parents], self.is_word[parents]


def _selection(plan: SearchPlan, keys: Tensor, copies: int) -> Select:
    if plan.sample:
        copy = torch.arange(copies, device=keys.device)
        return Sample(plan, (keys[:, None] * 1_000_003 + copy).flatten())
    return Greedy() if plan.beam == 1 else Beam(plan.beam)


def _covered_words(source: Tensor, lengths: Tensor, copies: int) -> Tensor:
    """Return [R, S], True on source tokens that should be covered: all but the end symbol."""
    places = torch.arange(source.shape[1], device=source.device)
    ends = 1 if source.dim() == 2 else 0
    return (places[None] < lengths[:, None] - ends).repeat_interleave(copies, 0)
