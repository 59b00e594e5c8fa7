"""The one decoding loop: greedy search, beams, sampling and ensembles of any architecture.

Rows are sentences x width. Each step feeds every row's last token to the models, lets constraints
forbid tokens, lets a selection pick the continuations, and drops finished sentences. The loop uses
only the interface of models/api.py. Called by translate.py, validation (training/validate.py),
online/evaluate.py and adaptive/measure.py.

Its records, the tree of prefixes and the finished hypotheses, stay in tensors and are copied to the
host once, at the end of the search, so that they never synchronise with the accelerator.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from nmtgrid.base.devices import without_gradients
from nmtgrid.base.errors import ConfigError, ModelError
from nmtgrid.base.io.workers import chunks
from nmtgrid.base.rows import is_token, repeat, take
from nmtgrid.models.api import Halt, TranslationModel, Verified, check_step, with_exits
from nmtgrid.search.api import Agent, Hypothesis, Proposal, SearchPlan
from nmtgrid.search.beams import (
    FinishedHypotheses,
    Groups,
    PrefixTree,
    Rows,
    StepResult,
    write_tokens,
)
from nmtgrid.search.constraints import Constraint, ForbidEnd, Rules
from nmtgrid.search.cuda_graphs import Graphs, RecordedSearch
from nmtgrid.search.select import is_on_cpu
from nmtgrid.search.steps import Averaged, SearchStep
from nmtgrid.search.verified import VerifiedSearch, check_verified

_CHECK_EVERY = 4
"""Number of steps between checks for finished sentences on an accelerator, which each synchronise.
"""
_CELLS_AHEAD = {"cpu": 16, "accelerator": 1024}
"""Number of grid cells per policy query when only a few rows keep reading; every query synchronises
with the accelerator."""
_BATCHES_BY_EXIT = 4
"""Number of batches that are encoded together if exits are predicted for whole sentences."""


def check(
    models: Sequence[TranslationModel],
    plan: SearchPlan,
    align: bool = False,
    agent: Agent | None = None,
    halt: Halt | Verified | None = None,
) -> None:
    """Raise ConfigError or ModelError if `models` do not support such a search."""
    if halt is not None:
        if len(models) > 1:
            raise ConfigError(
                f"Early exit decodes one model at a time, but {len(models)} are averaged here.",
                "Leave out `--exit` or `--ensemble`.",
            )
        if not isinstance(halt, Verified):
            with_exits(models[0]).check_halt(halt, has_whole_source=agent is None)
        elif agent is not None:
            raise ConfigError(
                "Verified exits decode offline only: online, each draft would have to be verified "
                "with the source that had been read when it was written.",
                "Leave out `--exit verified`, or exit at a fixed block or by thresholds.",
            )
        else:
            check_verified(models[0], halt, plan)
    if agent is not None:
        for model in models:
            if not model.traits.prefix_safe:
                raise model.refusal()
            if agent.wants_reading and not model.traits.reads:
                raise model.no_reader()
            if agent.wants_readiness not in ("none", model.traits.readiness):
                raise model.no_mechanism(agent.wants_readiness)
        if agent.wants_proposals and halt is not None:
            raise ConfigError(
                "A reading policy that inspects predictions runs all blocks for each of them, so "
                "it cannot be combined with early exits.",
                "Leave out `--exit`, or read by wait-k or by the model's reader.",
            )
    needs = {
        "the output": align,
        "the reading policy": agent is not None and agent.wants_alignment,
        "`search.coverage_penalty`": plan.coverage_penalty > 0,
    }
    need = next((name for name, is_needed in needs.items() if is_needed), "")
    blind = sorted({model.architecture for model in models if not model.traits.aligns})
    if need and blind:
        raise ConfigError(
            f"`{'`, `'.join(blind)}` yields no alignments, which {need} needs.",
            "Leave out the option, or use a model that aligns.",
        )
    # Probabilities of different vocabularies cannot be averaged.
    sizes = [model.classifier().weight.shape[0] for model in models]
    if len(set(sizes)) > 1:
        raise ModelError(
            f"The models of an ensemble have target vocabularies of different sizes: {sizes}.",
            "Only models made from one dataset can be averaged.",
        )


def batches_together(halt: Halt | Verified | None) -> int:
    """Return how many batches should be searched together, as `parts` of one search."""
    if halt is None or isinstance(halt, Verified) or halt.needs != "sequence":
        return 1
    return _BATCHES_BY_EXIT


@without_gradients()
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
    parts: int = 1,
) -> list[list[Hypothesis]]:
    """Return the best hypotheses of each sentence, best first.

    source [B, S] ends with `</s>`, padded on the right, lengths [B] count it (pictures [B, S, F]
    have S regions and no end); `models` (in evaluation mode) share both vocabularies and are
    averaged in probability. `keys` [B] (int64) identify sentences in sampling and to `halt`, so
    that draws do not depend on the batch (None: their positions in it). `agent` decides how much of
    the source each write may use (None: all of it), `halt` when a row exits early (None: never), or
    how tokens are drafted and verified (search/verified.py). Without both, steps are replayed from
    `graphs` (None: no replay). With several `parts`, if exits are predicted for whole sentences,
    the sentences are encoded together and searched in this many parts with similar exits, without
    constraints. If a model does not see the source's end, translations are as long as their sources
    (see `length_bounds`).

    Raises ConfigError if alignments, limited reads or exits are needed that a model does not have,
    ModelError if the models' vocabularies differ in size or if nothing can be written, for example
    because scores are NaN.
    """
    check(models, plan, align, agent, halt)
    if isinstance(halt, Verified):
        model = with_exits(models[0])
        rules = _rules(models, plan, lengths, constraints, source.dim() == 2)
        verified = VerifiedSearch(
            model, model.drafts(model.begin(source, lengths), halt, align), halt, rules
        )
        verified.run()
        results = verified.hypotheses(plan, lengths.tolist())
        if None in results:
            raise _nothing_to_write()
        return [[hypothesis] for hypothesis in results if hypothesis is not None]
    if parts > 1 and halt is not None and batches_together(halt) > 1:
        assert not constraints, "they belong to the order of the sentences"
        return _search_by_exit(models, source, lengths, plan, align, keys, halt, parts)
    # With reads and exits the computation depends on the data; a recording is always the same.
    if agent is not None or halt is not None:
        graphs = None
    if graphs is not None:
        source = graphs.pad_source(source)
    states = [begin(model, source, lengths, agent) for model in models]
    return SearchRun(
        models, states, source, lengths, plan, align, constraints, keys, agent, halt, graphs
    ).run()


def _search_by_exit(
    models: Sequence[TranslationModel],
    source: Tensor,
    lengths: Tensor,
    plan: SearchPlan,
    align: bool,
    keys: Tensor | None,
    halt: Halt,
    parts: int,
) -> list[list[Hypothesis]]:
    """Search the sentences in parts, in the order of their exits.

    A block runs in a step if any row needs it, so in mixed batches nearly all blocks run.
    """
    (model,) = models
    state = model.begin(source, lengths)
    keys = (torch.arange(len(source)) if keys is None else keys).to(source.device)
    # A stable order: sentences with the same exit stay sorted by length.
    order = with_exits(model).sentence_exits(state).argsort(stable=True)
    results: list[list[Hypothesis]] = [[] for _ in order]
    for rows in order.tensor_split(min(parts, len(order))):
        run = SearchRun(
            models, [take(state, rows)], source[rows], lengths[rows], plan, align,
            keys=keys[rows], halt=halt,
        )  # fmt: skip
        for row, nbest in zip(rows.tolist(), run.run(), strict=True):
            results[row] = nbest
    return results


def begin(model: TranslationModel, source: Tensor, lengths: Tensor, agent: Agent | None) -> Any:
    """Return the model's state before the first step, with the selection threshold of `agent`."""
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
    return Rules.of(
        plan, lengths, constraints,
        end_is_hidden=hides_source_end(models), of_pictures=not is_text,
    )  # fmt: skip


def hides_source_end(models: Sequence[TranslationModel]) -> bool:
    """Return whether a model does not see where the source ends, so cannot know when to stop.

    Appendix C.
    """
    return any(model.traits.hides_source_end for model in models)


def _nothing_to_write() -> ModelError:
    return ModelError(
        "The model gives no allowed token a probability above zero.",
        "Its weights are damaged, or its training diverged (NaN), or constraints of your own "
        "forbid all tokens.",
    )


class _RowHalt:
    """A halt that gets the keys of sentences instead of the row numbers that the model passes."""

    def __init__(self, halt: Halt, keys: Tensor) -> None:
        self.halt, self.keys, self.needs = halt, keys, halt.needs

    def exits(self, exit: int, step: int, keys: Tensor, scores: Tensor | None) -> Tensor:
        return self.halt.exits(exit, step, self.keys.index_select(0, keys), scores)


class SearchRun:
    """A search in progress: the live rows, their states, and all prefixes so far."""

    def __init__(
        self,
        models: Sequence[TranslationModel],
        states: Sequence[Any],
        source: Tensor,
        lengths: Tensor,
        plan: SearchPlan,
        align: bool = False,
        constraints: Sequence[Constraint] = (),
        keys: Tensor | None = None,
        agent: Agent | None = None,
        halt: Halt | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        """Prepare a search; `states` are from `begin`, other arguments are those of `search`."""
        device, is_text = source.device, source.dim() == 2
        self.models, self.plan, self.align = models, plan, align
        self.agent, self.halt = agent, halt
        self.source_lengths, self.columns = lengths, source.shape[1]
        self.copies = plan.nbest if plan.sample else 1
        count = len(source) * self.copies
        self.lengths = lengths.repeat_interleave(self.copies).tolist()
        self.rules = _rules(models, plan, lengths, constraints, is_text)
        # Read once, so that later comparisons do not synchronise with the device.
        self.min_limit = int(self.rules.limits.min())
        self.max_steps = int(self.rules.limits.max()) + 1
        self.keys = torch.arange(len(source), device=device) if keys is None else keys.to(device)
        self.fn = SearchStep(tuple(models), plan, align)
        keys, self.select = self.keys, self.fn.select
        if plan.sample:
            # A prime stride: keys of different sentences and copies do not collide.
            copy = torch.arange(self.copies, device=device)
            keys = (keys[:, None] * 1_000_003 + copy).flatten()
        self.states = [repeat(state, self.copies) for state in states]
        self.rows = Rows.begin(count, device)
        if agent is not None:
            self.rows = dataclasses.replace(self.rows, reads=torch.ones_like(self.rows.tokens))
        if plan.coverage_penalty:
            # All source tokens should be covered, except the end symbol, which pictures lack.
            is_word = is_token(lengths - int(is_text), source.shape[1])
            is_word = is_word.repeat_interleave(self.copies, 0)
            coverage = torch.zeros(is_word.shape, device=device)
            self.rows = dataclasses.replace(self.rows, coverage=coverage, is_word=is_word)
        limits = self.rules.limits.repeat_interleave(self.copies)
        self.groups = Groups.begin(plan, self.select.width, limits, keys)
        self.tree = PrefixTree(self.rows, None if halt is None else models[0].traits.num_exits)
        self.finished = FinishedHypotheses(self.groups, min(plan.nbest, self.select.width))
        has_static_form = graphs is not None and graphs.can_record(self.states, self.rules)
        self.graphs = graphs if has_static_form else None
        self.recorded: RecordedSearch | None = None
        self.check_every = 1 if is_on_cpu(source) else _CHECK_EVERY

    def run(self) -> list[list[Hypothesis]]:
        """Search, and return the best hypotheses of each sentence, best first.

        Raises ModelError if nothing can be written.
        """
        for step in range(self.max_steps):
            if not self.advance(step):
                break
        hypotheses = self.hypotheses()
        if not all(hypotheses):
            raise _nothing_to_write()
        # Each sample of a sentence was searched as a separate group.
        score = operator.attrgetter("score")
        return [
            sorted(itertools.chain(*samples), key=score, reverse=True)
            for samples in chunks(hypotheses, self.copies)
        ]

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each sentence, or of each of its samples."""
        self.finished.store(self.groups)
        return self.tree.hypotheses(self.finished, self.lengths)

    def advance(self, step: int) -> bool:
        """Write one token in each live row; return False when all sentences are done."""
        if self.recorded is None and self.graphs is not None:
            self.recorded = self.graphs.begin(
                self.fn, self.states, self.rows, self.groups, self.rules, self.copies, self.columns
            )
        following = self._step(step) if self.recorded is None else self.recorded.step(step)
        if self.align and following.alignment is not None:
            # Without those of the padding rows of a recording.
            self.tree.alignments.append(following.alignment[: len(self.rows.tokens)])
        self.groups = following.groups
        return self._drop_done(following.rows, step)

    def _pairs(self) -> Iterable[tuple[TranslationModel, Any]]:
        return zip(self.models, self.states, strict=True)

    def _sentence(self) -> Tensor:
        """Return the position [R] of each row's sentence in the batch."""
        rows_per_group = len(self.rows.tokens) // len(self.groups.numbers)
        return (self.groups.numbers // self.copies).repeat_interleave(rows_per_group)

    def _step(self, step: int) -> StepResult:
        sentence = self._sentence()
        # READ comes before WRITE: a token is predicted from the source read by then.
        if self.agent is not None and self.rows.reads is not None:
            reads = self._next_reads(self.agent, self.rows.reads, step, sentence)
            self.rows = dataclasses.replace(self.rows, reads=reads)
        if self.agent is not None and self.agent.wants_proposals:
            predicted = self._propose(self.agent, step, sentence)
        else:
            predicted = self._predict(sentence)
        if self.rows.reads is not None:
            self.tree.reads.append(self.rows.reads)
        log_probabilities = self._constrain(predicted.log_probabilities, step, sentence)
        return write_tokens(
            self.plan, self.select, log_probabilities, predicted.alignment, self.rows,
            self.groups, step,
        )  # fmt: skip

    def _next_reads(self, agent: Agent, reads: Tensor, step: int, sentence: Tensor) -> Tensor:
        """Return the reads [R] with which each row writes its next token."""
        rho = None
        if agent.wants_reading:
            # The reader has to see every written token before it can predict READ or WRITE.
            tokens = self.rows.tokens
            self.states = [model.consider(tokens, state) for model, state in self._pairs()]
            shares = [model.reading_row(state).float().sigmoid() for model, state in self._pairs()]
            rho = torch.stack(shares).mean(0)
        return agent.next_reads(step, sentence, reads, self.source_lengths[sentence], rho)

    def _predict(self, sentence: Tensor) -> Averaged:
        """Return the next tokens' log-probabilities [R, V] (float32), averaged over the models."""
        align = self.fn.wants_alignment
        tokens, reads, steps = self.rows.tokens, self.rows.reads, []
        for model, state in self._pairs():
            if self.halt is None:
                step = model.step(tokens, state, reads=reads, align=align)
                check_step(model, step, len(tokens))
            else:
                halt = _RowHalt(self.halt, self.keys[sentence])
                step = with_exits(model).step(tokens, state, reads=reads, align=align, halt=halt)
            if step.exits is not None:
                self.tree.exits.append(step.exits)
            if step.scores is not None:
                self.tree.exit_scores.append(step.scores)
            steps.append(step)
        self.states = [step.state for step in steps]
        return Averaged.of(steps)

    def _propose(self, agent: Agent, step: int, sentence: Tensor) -> Averaged:
        """Return the same as `_predict`, once the policy has decided to write in every row.

        The policy is queried again for rows that read; those that write keep their prediction.
        """
        assert self.rows.reads is not None
        align = self.fn.wants_alignment or agent.wants_alignment
        self.states = [model.feed(self.rows.tokens, state) for model, state in self._pairs()]
        lengths, reads = self.source_lengths[sentence], self.rows.reads.clone()
        # Dead rows need not read.
        is_live = self.rows.log_probabilities > -math.inf
        predicted = self._proposed(reads, None, align)
        proposal = Proposal(step, sentence, reads, *predicted)
        # At the end of the source there is nothing left to read.
        goes_on = ~agent.writes(proposal) & (reads < lengths) & is_live
        rows = goes_on.nonzero()[:, 0]
        while len(rows):
            # If few rows are left, several columns of each at once: the call costs the same.
            ahead = self._columns_ahead(agent, len(rows))
            cells, columns = rows, reads[rows] + 1
            if ahead > 1:
                cells = rows.repeat_interleave(ahead)
                columns = columns[:, None] + torch.arange(ahead, device=rows.device)
                columns = torch.minimum(columns.flatten(), lengths[cells])
            latest = self._proposed(columns, cells, align)
            proposal = Proposal(step, sentence[cells], columns, *latest)
            goes_on = ~agent.writes(proposal) & (columns < lengths[cells])
            if ahead > 1:
                # A row stays at the first of its columns where it writes.
                passed = goes_on.view(-1, ahead).cumprod(1).sum(1)
                first = torch.arange(0, len(cells), ahead, device=rows.device)
                chosen = first + passed.clamp(max=ahead - 1)
                latest = Averaged(*take(latest, chosen))
                columns, goes_on = columns[chosen], passed == ahead
            predicted.put(rows, latest)
            reads[rows] = columns
            rows = rows[goes_on]
        self.rows = dataclasses.replace(self.rows, reads=reads)
        self.states = [model.accept(state) for model, state in self._pairs()]
        return predicted

    def _columns_ahead(self, agent: Agent, rows: int) -> int:
        """Return for how many further reads each of `rows` rows is proposed at once."""
        if not agent.judges_rows_alone or not all(m.traits.every_cell for m in self.models):
            return 1
        kind = "cpu" if is_on_cpu(self.source_lengths) else "accelerator"
        return max(1, _CELLS_AHEAD[kind] // rows)

    def _proposed(self, reads: Tensor, rows: Tensor | None, align: bool) -> Averaged:
        """Return the models' proposals for `rows` (None: all) with these `reads`."""
        steps = [
            model.propose(state, reads, rows=rows, align=align) for model, state in self._pairs()
        ]
        self.states = [step.state for step in steps]
        return Averaged.of(steps)

    def _constrain(self, log_probabilities: Tensor, step: int, sentence: Tensor) -> Tensor:
        """Apply the rules; a row at its limit can end whatever the constraints."""
        rules = self.rules
        if self.rows.reads is not None and self.agent is not None and self.agent.finish_reading:
            is_early = ForbidEnd(self.rows.reads < self.source_lengths[sentence])
            rules = dataclasses.replace(rules, constraints=(is_early, *rules.constraints))
        return rules.apply(log_probabilities, step, sentence, at_limit=step >= self.min_limit)

    def _drop_done(self, rows: Rows, step: int) -> bool:
        """Continue with `rows`, without finished sentences; return False if none is left."""
        is_dropping = False
        # Rows of a finished sentence stay until the next check, but they are dead.
        if (step + 1) % self.check_every == 0:
            going = (~self.groups.is_done).nonzero()[:, 0]
            if len(going) == 0:
                return False
            if self.recorded is not None:
                is_dropping = self.recorded.is_worth_dropping(len(going))
            else:
                is_dropping = count_few(len(going)) < len(self.groups.numbers)
        if is_dropping:
            self.finished.store(self.groups)
            if self.recorded is None:
                going = self.groups.is_done.sort(stable=True).indices[: count_few(len(going))]
                going = going.sort().values
            index = torch.arange(len(rows.tokens), device=going.device)
            rows = take(rows, index.view(len(self.groups.numbers), -1)[going].flatten())
            self.groups = take(self.groups, going)
        self.tree.grow(rows)
        before, self.rows = self.rows, rows
        if self.recorded is not None:
            if is_dropping:
                self.recorded.drop(rows, self.groups)
            return True
        # On a CPU states are not copied if no row moves; elsewhere this check would synchronise.
        moves = is_dropping or self.select.width > 1
        if moves and is_on_cpu(rows.parents):
            moves = not torch.equal(rows.parents, torch.arange(len(before.tokens)))
        if moves:
            self.states = [take(state, rows.parents) for state in self.states]
        return True


def count_few(groups: int) -> int:
    """Return `groups` rounded up to one of a few numbers, four for each power of two.

    On a CPU oneDNN compiles each product for its number of rows, which takes as long as ten
    products.
    """
    step = 1 << max(0, (groups - 1).bit_length() - 3)
    return -(-groups // step) * step
