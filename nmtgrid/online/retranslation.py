"""Policies that retranslate source prefixes: LocalAgreement, hold-n and re-translation.

Any model can translate simultaneously in this way, bidirectional ones included: whenever the source
has grown, the prefix is translated by an offline search (search/engine.py, with any beam).
`LocalAgreement` and `HoldN` commit the stable part of each translation, from which the next one
continues (Liu et al. 2020; Polak et al. 2022); `Retranslation` shows all of it and revises what it
has shown (Arivazhagan et al. 2020).

`PrefixDecoder` decodes many sentences in batches, `PrefixStream` one while it arrives; an invariant
test checks that both write the same tokens with the same delays.

A prefix gets the source's end symbol, like the sentences of training: an offline model has seen no
other sources, and would seldom end its translation without it. A model trained along READ/WRITE
paths may do better without the end symbol (`end_of_prefix`), because it has learned to predict from
unfinished sources; that requires a prefix-safe model. For models that never see the end symbol
(`traits.hides_source_end`) the setting makes no difference; their translations have as many tokens
as the prefix.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

import numpy
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nmtgrid.base.config import WHOLE_FROM_0, WHOLE_FROM_1, CheckedSettings, Range
from nmtgrid.base.config import check as check_config
from nmtgrid.base.devices import HeapTrimmer, autocast
from nmtgrid.base.errors import ConfigError
from nmtgrid.data.batches import cut_by_length, pad
from nmtgrid.metrics.erasure import common_prefix, erased_tokens, final_delays
from nmtgrid.models.api import Halt, TranslationModel, Verified
from nmtgrid.search import engine
from nmtgrid.search.api import Agent, Hypothesis, SearchPlan, VerifiedPass
from nmtgrid.search.constraints import ForcedPrefix
from nmtgrid.search.translate import check_text
from nmtgrid.text.vocabulary import END


def _or_infinite(whole: Range) -> Range:
    text = f"{whole.text}, or infinite"
    return Range(text, lambda value: value == math.inf or whole.contains(value))


_FROM_0_OR_ALL, _FROM_1_OR_ALL = _or_infinite(WHOLE_FROM_0), _or_infinite(WHOLE_FROM_1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefixPolicy(CheckedSettings):
    """The common base of policies that translate prefixes; reads exclude the end symbol here."""

    stride: Annotated[int, WHOLE_FROM_1] = 1
    """Source tokens between two prefixes that are translated."""
    floor: Annotated[int, WHOLE_FROM_0] = 0
    """Always reads at least as much as wait-k with this k (0: no minimum)."""
    end_of_prefix: bool = True
    """Whether a prefix is translated with an end symbol, like a whole sentence; `false` needs a
    model with a causal encoder."""

    def __post_init__(self) -> None:
        """Raise ConfigError with what is wrong with the values."""
        check_config(self)

    @property
    def memory(self) -> float:
        """Number of successive prefixes whose translations are compared."""
        return 1

    @property
    def is_offline(self) -> bool:
        """Whether nothing is written before the source has ended, however long it is."""
        return False

    def faults(self) -> list[str]:
        """Return what is wrong with the values, those of the policy's own settings first."""
        common = "`stride`", "`floor`", "`cap`"
        return sorted(super().faults(), key=lambda fault: fault.startswith(common))

    def translates(self, reads: int) -> bool:
        """Return whether the prefix of `reads` tokens is translated if the source may go on."""
        # For the first token at the floor, the translations of earlier prefixes must be known.
        first = math.ceil(max(1, self.floor) / self.stride) - (self.memory - 1)
        return not self.is_offline and not reads % self.stride and reads >= first * self.stride

    def most_tokens(self, reads: int) -> float:
        """Return the maximum number of tokens that the floor allows after `reads` source tokens."""
        return max(0, reads - self.floor + 1) if self.floor else math.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommitPolicy(PrefixPolicy):
    """A policy that writes the stable part of each translation and never revises it.

    The end symbol is written only at the end of the source, so reading is always finished (appendix
    C).
    """

    cap: Annotated[int, WHOLE_FROM_0] = 0
    """Never reads more than wait-k with this k (0: no maximum), provided that the prefix of this
    length is translated and its translation is long enough."""
    n: float
    """How long the policy waits; infinity reads the whole source."""
    finish_reading: ClassVar[bool] = True

    @property
    def is_offline(self) -> bool:
        return math.isinf(self.n) and not self.cap

    def faults(self) -> list[str]:
        faults = super().faults()
        if 0 < self.cap < self.floor:
            faults.append(f"`cap` ({self.cap}) must not be below `floor` ({self.floor}).")
        return faults

    def stable_tokens(self, translations: Sequence[Sequence[int]]) -> int:
        """Return the number of stable tokens in the last of several successive translations."""
        raise NotImplementedError

    def committed_tokens(self, translations: Sequence[Sequence[int]], reads: int) -> int:
        """Return the number of tokens to write of the last of several successive translations."""
        due = max(0, reads - self.cap + 1) if self.cap else 0
        stable = max(self.stable_tokens(translations), min(due, len(translations[-1])))
        return int(min(stable, self.most_tokens(reads)))


@dataclasses.dataclass(frozen=True)
class LocalAgreement(CommitPolicy):
    """Writes the common prefix of the translations of n successive prefixes (LocalAgreement-n).

    Liu, Spanakis and Niehues (2020), "Low-Latency Sequence-to-Sequence Speech Recognition and
    Translation by Partial Hypothesis Selection", n = 2; Polák et al. (2022), "CUNI-KIT System for
    Simultaneous Speech Translation Task at IWSLT 2022", any n.
    """

    n: Annotated[float, _FROM_1_OR_ALL] = 2
    """Successive prefixes whose translations must agree; 1 writes each translation as a whole,
    infinity reads the whole source."""

    @property
    def memory(self) -> float:
        return self.n

    def stable_tokens(self, translations: Sequence[Sequence[int]]) -> int:
        if len(translations) < self.n:
            return 0
        return common_prefix(translations[-int(self.n) :])


@dataclasses.dataclass(frozen=True)
class HoldN(CommitPolicy):
    """Writes all but the last n tokens of each translation (hold-n).

    Liu, Spanakis and Niehues (2020), "Low-Latency Sequence-to-Sequence Speech Recognition and
    Translation by Partial Hypothesis Selection".
    """

    n: Annotated[float, _FROM_0_OR_ALL] = 3
    """Last tokens of a translation that are not written; infinity reads the whole source."""

    def stable_tokens(self, translations: Sequence[Sequence[int]]) -> int:
        return int(max(0, len(translations[-1]) - self.n))


@dataclasses.dataclass(frozen=True)
class Retranslation(PrefixPolicy):
    """Shows the translation of each prefix, and revises what it has shown.

    Arivazhagan et al. (2020), "Re-translation versus Streaming for Simultaneous Translation", with
    their mask-k.

    Departs: The paper also biases the search of a prefix towards the translation before it. Here
    every prefix is translated anew.
    """

    mask: Annotated[float, _FROM_0_OR_ALL] = 0
    """Last tokens of a prefix's translation that are not shown; infinity reads the whole source."""

    @property
    def is_offline(self) -> bool:
        return math.isinf(self.mask)

    def shown_tokens(self, translation: Sequence[int], reads: int) -> Sequence[int]:
        """Return the part of a prefix's translation that is shown."""
        count = min(len(translation) - self.mask, self.most_tokens(reads))
        return translation[: int(max(0, count))]


@dataclasses.dataclass(frozen=True)
class PrefixTranslation:
    """A policy's translation of a sentence, and the number of tokens erased on the way.

    `reads` of the hypothesis are the reads when each token was written, or became final if the
    policy revises (metrics/erasure.py). Its log-probabilities are those of the translation that
    each token was written from, or of the last one if the policy revises.
    """

    hypothesis: Hypothesis
    erased: int = 0


class WrittenTokens:
    """The tokens written for a sentence, with their `log_probabilities` and `reads`.

    Both lists end with the entry of the end symbol, once the sentence `is_finished`. Reads count
    the source's end symbol.
    """

    def __init__(self, plan: SearchPlan) -> None:
        """`plan` determines the length norm of the finished translation's score."""
        self._plan = plan
        self._exit_scores: list[Tensor] = []
        self._num_exits: int | None = None
        self.tokens: list[int] = []
        self.log_probabilities: list[float] = []
        self.reads: list[int] = []
        self.exits: list[int] | None = None
        self._passes: list[VerifiedPass] | None = None
        self.alignments: list[Tensor] | None = None
        """Alignment to the source tokens read, one row for each of `reads`; rows include the
        source's end symbol once it has been read."""
        self.written_at: list[float] = []
        """When each of `reads` was written, by `time.perf_counter`."""
        self.is_finished = False

    def hypothesis(self) -> Hypothesis:
        """Return the finished translation as a search would."""
        total = sum(self.log_probabilities)
        norm = self._plan.length_norm_of(len(self.tokens) + 1)
        scores = torch.cat(self._exit_scores).float().cpu() if self._exit_scores else None
        return Hypothesis(
            self.tokens, self.log_probabilities, total, total / norm, self._alignment(),
            reads=self.reads, exits=self.exits, exit_scores=scores, num_exits=self._num_exits,
            passes=self._passes,
        )  # fmt: skip

    def _alignment(self) -> Tensor | None:
        """Return [T + 1, S], 0 for source tokens that were read later."""
        return pad_sequence(self.alignments, batch_first=True) if self.alignments else None


class CommittedTokens(WrittenTokens):
    """The tokens that a policy commits from the translations of a sentence's prefixes."""

    def __init__(self, policy: CommitPolicy, plan: SearchPlan) -> None:
        super().__init__(plan)
        self._policy = policy
        self._translations: list[list[int]] = []

    def add(self, translation: Hypothesis, reads: int, *, is_whole: bool) -> None:
        """Write the stable part of a prefix's translation, or all of the whole source's."""
        self._translations.append(translation.tokens)
        if len(self._translations) > self._policy.memory:
            del self._translations[0]
        start = len(self.tokens)
        if is_whole:
            stop = len(translation.tokens) + 1  # the end symbol too
        else:
            # With a cap, more may be written than successive translations agree on.
            stop = max(start, self._policy.committed_tokens(self._translations, reads))
        self.tokens += translation.tokens[start:stop]
        self.log_probabilities += translation.log_probabilities[start:stop]
        self.reads += [reads] * (stop - start)
        self.written_at += [time.perf_counter()] * (stop - start)
        if translation.passes is not None:
            self._passes = [*(self._passes or []), *translation.passes]
        if translation.exits is not None:
            self.exits = [*(self.exits or []), *translation.exits[start:stop]]
        if translation.alignment is not None:
            # The end symbol of a prefix is not part of the source.
            columns = translation.alignment.shape[1] - (not is_whole)
            rows = translation.alignment[start:stop, :columns].float()
            self.alignments = [*(self.alignments or []), *rows]
        if translation.exit_scores is not None:
            self._exit_scores.append(translation.exit_scores[start:stop])
        self._num_exits = translation.num_exits
        self.is_finished = is_whole


class _AllButEnd(Agent):
    """Reads all of each prefix but its end symbol, before the first write."""

    def next_reads(
        self, step: int, sentence: Tensor, reads: Tensor, lengths: Tensor, rho: Tensor | None
    ) -> Tensor:
        return lengths - 1


class PrefixDecoder:
    """Decodes whole sentences in batches with a policy that translates prefixes."""

    def __init__(
        self,
        models: Sequence[TranslationModel],
        plan: SearchPlan,
        policy: PrefixPolicy,
        *,
        device: torch.device | str = "cpu",
        bf16: bool = False,
        halt: Halt | Verified | None = None,
        batch_tokens: int = 4000,
        align: bool = False,
    ) -> None:
        """`models` (in evaluation mode, on `device`) share both vocabularies and are averaged.

        The length limits of `plan` apply to each prefix; `min_length` applies to the whole source
        only. `halt` as in `engine.search`; `batch_tokens` are the source tokens of a batch times
        the beam. Raises ConfigError for settings out of range, sampling, models of
        pictures, and models that need the end symbol.
        """
        check_config(plan)
        for model in models:
            check_text(model)
            if not policy.end_of_prefix and not model.traits.prefix_safe:
                raise ConfigError(
                    f"This `{model.architecture}` cannot translate a prefix without the source's "
                    "end symbol: " + model.refusal().problem,
                    "Leave `end_of_prefix` as it is.",
                )
        if plan.sample:
            raise ConfigError(
                "Translations of prefixes cannot be sampled, because samples would change from one "
                "prefix to the next.",
                "Set `search.sample` to false.",
            )
        # The agent for searching a prefix without its end symbol.
        self._agent = None if policy.end_of_prefix else _AllButEnd()
        engine.check(models, plan, align, agent=self._agent, halt=halt)
        self.models, self.policy = list(models), policy
        self.plan = dataclasses.replace(plan, nbest=1)
        self._device, self._bf16 = torch.device(device), bf16
        self._halt, self._batch_tokens, self._align = halt, batch_tokens, align
        self._heap = HeapTrimmer()

    def decode(self, sources: Sequence[Sequence[int]]) -> list[PrefixTranslation]:
        """Return the policy's translation of each source, given as ids without the end symbol.

        All prefixes of the same length, or with `Retranslation` all prefixes, form one search.
        """
        if isinstance(self.policy, CommitPolicy):
            results = self._commit(self.policy, sources)
        else:
            assert isinstance(self.policy, Retranslation)
            results = self._revise(self.policy, sources)
        self._heap.trim()
        return results

    def _commit(
        self, policy: CommitPolicy, sources: Sequence[Sequence[int]]
    ) -> list[PrefixTranslation]:
        """Translate the prefixes of all sentences, one prefix length after the other."""
        written = [CommittedTokens(policy, self.plan) for _ in sources]
        for reads in filter(policy.translates, range(1, max(map(len, sources), default=0) + 1)):
            live = [index for index, source in enumerate(sources) if len(source) >= reads]
            prefixes = [sources[index][:reads] for index in live]
            forced = [written[index].tokens for index in live]
            translations = self.translate(prefixes, forced, live)
            for index, translation in zip(live, translations, strict=True):
                written[index].add(translation, reads, is_whole=False)
        # All whole sources together: the plan's minimum length applies to their search only.
        forced = [sentence.tokens for sentence in written]
        translations = self.translate(sources, forced, are_whole=True)
        for sentence, source, translation in zip(written, sources, translations, strict=True):
            sentence.add(translation, len(source) + 1, is_whole=True)
        return [PrefixTranslation(sentence.hypothesis()) for sentence in written]

    def _revise(
        self, policy: Retranslation, sources: Sequence[Sequence[int]]
    ) -> list[PrefixTranslation]:
        """Translate all prefixes of all sentences at once: they do not depend on each other."""
        prefixes = [
            (index, reads)
            for index, source in enumerate(sources)
            for reads in filter(policy.translates, range(1, len(source) + 1))
        ]
        translations = self.translate(
            [sources[index][:reads] for index, reads in prefixes], (), [n for n, _ in prefixes]
        )
        outputs: list[list[Sequence[int]]] = [[] for _ in sources]
        reads_of: list[list[int]] = [[] for _ in sources]
        passes_of: list[list[VerifiedPass]] = [[] for _ in sources]
        for (index, reads), translation in zip(prefixes, translations, strict=True):
            outputs[index].append(policy.shown_tokens(translation.tokens, reads))
            reads_of[index].append(reads)
            passes_of[index] += translation.passes or []
        results = []
        finals = self.translate(sources, are_whole=True)
        for index, final in enumerate(finals):
            end = len(sources[index]) + 1
            shown = [*outputs[index], final.tokens]
            delays = final_delays(shown, [*reads_of[index], end])
            passes = None if final.passes is None else [*passes_of[index], *final.passes]
            hypothesis = dataclasses.replace(final, reads=[*delays, end], passes=passes)
            results.append(PrefixTranslation(hypothesis, erased_tokens(shown)))
        return results

    def translate(
        self,
        prefixes: Sequence[Sequence[int]],
        forced: Sequence[Sequence[int]] = (),
        keys: Sequence[int] | None = None,
        *,
        are_whole: bool = False,
    ) -> list[Hypothesis]:
        """Return the best translation of each prefix, or with `are_whole` of each whole source.

        Each translation begins with the tokens of `forced`, which has one list for each prefix, or
        none at all. `keys` identify the sentences to the halt (None: their positions).
        """
        plan = self.plan if are_whole else dataclasses.replace(self.plan, min_length=0)
        keys = range(len(prefixes)) if keys is None else keys
        sizes = numpy.array([len(prefix) for prefix in prefixes], dtype=int)
        limit = max(1, self._batch_tokens // plan.beam)
        best: dict[int, Hypothesis] = {}
        for group in cut_by_length(sizes, sizes, numpy.arange(len(sizes)), limit):
            batch = group.tolist()
            source = pad([[*prefixes[index], END] for index in batch])
            starts = [forced[index] for index in batch] if forced else []
            constraints = [ForcedPrefix(starts, self._device)] if any(starts) else []
            with autocast(self._device, self._bf16):
                nbest_lists = engine.search(
                    self.models,
                    source.to(self._device),
                    torch.tensor(sizes[group] + 1, device=self._device),
                    plan,
                    align=self._align,
                    constraints=constraints,
                    keys=torch.tensor([keys[index] for index in batch]),
                    agent=None if are_whole else self._agent,
                    halt=self._halt,
                )
            best.update(zip(batch, (hypotheses[0] for hypotheses in nbest_lists), strict=True))
        return [best[index] for index in range(len(prefixes))]


class PrefixStream(CommittedTokens):
    """A sentence being translated prefix by prefix, in ids: the interface of `TokenStream`."""

    def __init__(self, decoder: PrefixDecoder) -> None:
        """Raise ConfigError for a policy that revises."""
        if not isinstance(decoder.policy, CommitPolicy):
            raise ConfigError(
                "Re-translation revises what it has shown, which a stream cannot.",
                "Use LocalAgreement or hold-n; `online-eval` evaluates re-translation.",
            )
        super().__init__(decoder.policy, decoder.plan)
        self._decoder = decoder
        self._source: list[int] = []

    def read(self, tokens: Iterable[int]) -> list[int]:
        """Take newly arrived source tokens; return the target tokens written in response.

        Each token makes a new prefix, whether tokens arrive one by one or several at once.
        """
        before = len(self.tokens)
        for token in tokens:
            if self.is_finished:
                break
            is_whole = token == END
            if not is_whole:
                self._source.append(token)
            if is_whole or self._policy.translates(len(self._source)):
                source, forced = [self._source], [self.tokens]
                (translation,) = self._decoder.translate(source, forced, are_whole=is_whole)
                self.add(translation, len(self._source) + is_whole, is_whole=is_whole)
        return self.tokens[before:]

    def end(self) -> list[int]:
        """Take the source's end; return the rest of the translation."""
        return self.read([END])
