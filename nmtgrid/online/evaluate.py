"""Decodes sentences along settings: wait-k, an agent's thresholds, the oracle's paths.

Batched; what is written, and when, does not depend on the batch. Unless they are asked for by line,
nothing is known of a source but what a stream would know: its words are tokenised one by one.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy
import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import Batch, collate, cut_by_length
from nmtgrid.models.api import with_exits
from nmtgrid.online.agents import AlongPaths, Threshold, WaitK
from nmtgrid.online.bounded import Bounded
from nmtgrid.online.oracle import ReadingCost, oracle_paths
from nmtgrid.online.sentences import Sentence
from nmtgrid.online.settings import Setting
from nmtgrid.online.writing_costs import refuse_oracle, writing_costs
from nmtgrid.search import engine
from nmtgrid.search.api import Agent, Hypothesis
from nmtgrid.search.constraints import hides_the_end
from nmtgrid.search.translate import Translator

_MOST_CELLS = 1 << 17
"""Grid cells of a batch whose writing costs are asked for."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a sentence: units, tokenised words, raw text, and the reads of each unit.

    `reads` has one entry more than `units`, the end symbol's; they count the source's end symbol.
    An empty source has no entries at all. With early exit, `exits` are the blocks behind which
    units were predicted, `exit_scores` what was decided from, and `num_exits` the blocks there are
    (see `Hypothesis`).
    """

    units: list[str]
    words: str
    text: str
    reads: list[int]
    log_probabilities: list[float]
    exits: list[int] | None = None
    exit_scores: Tensor | None = None
    num_exits: int | None = None


@dataclasses.dataclass(frozen=True)
class Decoded:
    """All sentences along one setting, and how long that took (the oracle's costs not counted)."""

    setting: Setting
    outcomes: list[Outcome]
    seconds: float

    @property
    def target_tokens(self) -> int:
        """Units written, end symbols counted."""
        return sum(len(one.reads) for one in self.outcomes)

    @property
    def average_exit(self) -> float | None:
        """The mean block behind which units were predicted; None without early exit."""
        exits = [exit for one in self.outcomes for exit in one.exits or ()]
        return sum(exits) / len(exits) if exits else None


class OnlineDecoder:
    """One translator, or several models averaged, that decodes along settings.

    Tokens leave the decoder where the translator's halt says so.
    """

    def __init__(
        self,
        translator: Translator,
        *,
        finish_reading: bool = False,
        oracle_cost: ReadingCost = "delay",
    ) -> None:
        """`finish_reading` allows no end before the whole source is read (appendix C)."""
        self.translator = translator
        self.finish_reading = finish_reading
        self.oracle_cost: ReadingCost = oracle_cost

    def faults(self, settings: Sequence[Setting]) -> list[str]:
        """Return what the models cannot do of these settings."""
        found: list[str] = []
        policies = {one.policy for one in settings if not one.is_offline}
        for model in self.translator.models:
            if not model.traits.prefix_safe and policies:
                found.append(str(model.refusal()))
                continue
            if "oracle" in policies and (refusal := refuse_oracle(model)):
                found.append(refusal)
            if "threshold" in policies and not model.traits.reads:
                found.append(str(model.no_reader()))
        halt = self.translator.halt
        if halt is not None and policies and not found:
            try:
                with_exits(self.translator.models[0]).check_halt(halt, has_whole_source=False)
            except ConfigError as fault:
                found.append(str(fault))
        return found

    def run(
        self,
        sentences: Sequence[Sentence],
        settings: Sequence[Setting],
        advance: Callable[[Setting, int, int], None] = lambda setting, lines, tokens: None,
    ) -> Iterator[Decoded]:
        """Yield what becomes of the sentences along each setting, in the settings' order.

        `advance` is told of the sentences and target tokens of each batch. The oracle's paths are
        made from costs that all its settings share.
        """
        weights = [one.value for one in settings if one.policy == "oracle"]
        paths: dict[float, dict[int, list[int]]] = {}
        for setting in settings:
            if setting.policy == "oracle" and not paths:
                paths = self.oracle(sentences, weights)
            started = time.perf_counter()
            outcomes = self._decode(sentences, setting, paths.get(setting.value, {}), advance)
            yield Decoded(setting, outcomes, time.perf_counter() - started)

    @torch.no_grad()
    def oracle(
        self, sentences: Sequence[Sentence], weights: Sequence[float]
    ) -> dict[float, dict[int, list[int]]]:
        """Return for each lambda the oracle's path of each sentence that has a source, by line.

        A path has one entry for each target token and one for the end symbol.
        """
        found: dict[float, dict[int, list[int]]] = {weight: {} for weight in weights}
        for chosen in self._batches(sentences, _MOST_CELLS):
            batch = self._batch(chosen)
            with self._precision():
                costs = torch.stack([writing_costs(m, batch) for m in self.translator.models])
            costs = -((-costs).logsumexp(0) - math.log(len(costs)))
            lengths = batch.source_lengths, batch.target_lengths
            for weight in weights:
                paths = oracle_paths(costs, *lengths, weight, self.oracle_cost).tolist()
                for one, path in zip(chosen, paths, strict=True):
                    found[weight][one.line] = path[: len(one.target) + 1]
        return found

    def _decode(
        self,
        sentences: Sequence[Sentence],
        setting: Setting,
        paths: dict[int, list[int]],
        advance: Callable[[Setting, int, int], None],
    ) -> list[Outcome]:
        done: dict[int, Outcome] = {}
        for chosen in self._batches(sentences):
            hypotheses = self._search(chosen, setting, [paths.get(one.line, []) for one in chosen])
            for one, best in zip(chosen, hypotheses, strict=True):
                done[one.line] = self._restore(one, best)
            advance(setting, len(chosen), sum(len(best.tokens) + 1 for best in hypotheses))
        advance(setting, sum(not one.source for one in sentences), 0)
        nothing = Outcome([], "", "", [], [])
        return [done.get(one.line, nothing) for one in sentences]

    def _search(
        self, chosen: Sequence[Sentence], setting: Setting, paths: list[list[int]]
    ) -> list[Hypothesis]:
        batch = self._batch(chosen)
        with self._precision():
            found = engine.search(
                self.translator.models,
                batch.source,
                batch.source_lengths,
                self.translator.plan,
                agent=self._agent(setting, paths),
                halt=self.translator.halt,
            )
        return [hypotheses[0] for hypotheses in found]

    def _agent(self, setting: Setting, paths: list[list[int]]) -> Agent | None:
        if setting.is_offline:
            return None
        if setting.policy != "oracle":
            kind = WaitK if setting.policy == "wait-k" else Threshold
            agent = kind(setting.value, self.finish_reading)
            # A stream does not know how long its source will be, which limits what is written.
            return Bounded(agent, self.translator.plan, hides_the_end(self.translator.models))
        device = self.translator.device
        lengths = torch.tensor([len(path) for path in paths], device=device)
        return AlongPaths(_padded(paths).to(device), lengths, self.finish_reading)

    def _restore(self, one: Sentence, best: Hypothesis) -> Outcome:
        pipeline, whole = self.translator.pipeline, len(one.source) + 1
        reads = [whole] * (len(best.tokens) + 1) if best.reads is None else best.reads
        return Outcome(
            pipeline.target_vocabulary.decode(best.tokens),
            pipeline.restore_tokenized(best.tokens),
            pipeline.restore(best.tokens),
            reads,
            best.log_probabilities,
            best.exits,
            best.exit_scores,
            best.num_exits,
        )

    def _batch(self, chosen: Sequence[Sentence]) -> Batch:
        batch = collate([one.source for one in chosen], [one.target for one in chosen])
        return batch.to(self.translator.device)

    def _batches(self, sentences: Sequence[Sentence], cells: int = 0) -> Iterator[list[Sentence]]:
        """Yield the sentences that have a source, in batches of alike lengths."""
        source = numpy.array([len(one.source) for one in sentences])
        target = numpy.array([len(one.target) for one in sentences])
        width = self.translator.plan.beam if not cells else 1
        limit = max(1, self.translator.options.batch_tokens // width)
        columns = (source, target) if cells else (source, source)
        for chosen in cut_by_length(*columns, numpy.flatnonzero(source), limit, cells):
            yield [sentences[place] for place in chosen.tolist()]

    def _precision(self) -> torch.autocast:
        kind, bf16 = self.translator.device.type, self.translator.bf16
        return torch.autocast(kind, torch.bfloat16, enabled=bf16)


def _padded(paths: Sequence[Sequence[int]]) -> Tensor:
    """Return the paths as [B, T], their last value repeated."""
    size = max(map(len, paths))
    return torch.tensor([[*path, *[path[-1]] * (size - len(path))] for path in paths])
