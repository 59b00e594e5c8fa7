"""Interface of the search: its settings, its results, and the READ/WRITE policy.

`traces.jsonl`, metrics, plots and tuning use only `Hypothesis`.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from nmtgrid.base.config import FROM_0, SEED, CheckedSettings, Range, between
from nmtgrid.models.api import Readiness

_OPTIONS = (
    "beam", "length_penalty", "coverage_penalty", "nbest", "sample", "temperature", "top_k",
    "top_p", "seed",
)  # fmt: skip
"""The settings for which `decode` has options; the others are changed with `--set`."""
_COUNT, _LENGTH = between(1, 1000), between(0, 1_000_000)
# Up to this exponent, norms of the longest translations are finite in single precision.
_EXPONENT = between(0, 10)
# Logits divided by a smaller temperature overflow in single precision.
_TEMPERATURE = Range("at least 0.000001", lambda value: 1e-6 <= value < math.inf)
_TOP_P = Range("above 0 and at most 1", lambda value: 0 < value <= 1)


@dataclasses.dataclass(frozen=True)
class SearchPlan(CheckedSettings):
    """How decoding searches for translations; also the group `search.*` of a model's settings."""

    group = "search"
    only_with = types.MappingProxyType(
        dict.fromkeys(("temperature", "top_k", "top_p", "seed"), ("sample", (True,)))
    )

    beam: Annotated[int, _COUNT] = 1
    """Beam size; 1 is greedy search."""
    length_penalty: Annotated[float, _EXPONENT] = 1.0
    """Alpha of Eq. (2.28): 0 ranks by log-probability, higher values favour longer outputs."""
    length_offset: Annotated[float, FROM_0] = 0.0
    """Mu of Eq. (2.28), an offset of the length; 0 leaves the length as it is."""
    coverage_penalty: Annotated[float, FROM_0] = 0.0
    """Beta of Wu et al. (2016): weight of the coverage term, which penalises source tokens that
    receive little attention."""
    nbest: Annotated[int, _COUNT] = 1
    """Number of hypotheses, or of samples with `sample`, returned for each sentence."""
    max_length_a: Annotated[float, _LENGTH] = 10.0
    """Maximum target length is a + b|x| tokens, with a this setting, b `max_length_b` and |x| the
    source length, without end symbols; a picture counts as 20 tokens. It is at least one token, and
    at least `min_length` and the length of a forced prefix."""
    max_length_b: Annotated[float, _LENGTH] = 2.0
    """Target tokens per source token in the maximum length; see `max_length_a`."""
    style: Literal["own", "transformers"] = "own"
    """Stopping criterion of beam search. `own`: no unfinished hypothesis can overtake those that
    are returned, or `beam` hypotheses have finished and no unfinished one, at its current length,
    is ahead of the worst that is returned. `transformers`, as in that library: none is ahead of the
    `beam` best finished ones; at the maximum length the end symbol has probability 1."""
    renormalize: bool = False
    """Renormalise over the tokens that can be generated: all but `<pad>` and `<s>`."""
    min_length: Annotated[int, _LENGTH] = 0
    """Minimum number of target tokens before the end symbol."""
    sample: bool = False
    """Sample tokens instead of searching for the most probable translation."""
    temperature: Annotated[float, _TEMPERATURE] = 1.0
    """Sampling: divisor of the logits; below 1 the distribution is sharper, above 1 flatter."""
    top_k: Annotated[int, FROM_0] = 0
    """Sampling: only from the k most probable tokens (0: all)."""
    top_p: Annotated[float, _TOP_P] = 1.0
    """Sampling: only from the smallest set of most probable tokens with this total probability."""
    seed: Annotated[int, SEED] = 1
    """Sampling: seed of the random numbers. The same seed, sentence and line number give the same
    sample."""

    def called(self, name: str) -> str:
        option = f" (`--{name.replace('_', '-')}`)" if name in _OPTIONS else ""
        return f"{super().called(name)}{option}"

    def faults(self) -> list[str]:
        faults = super().faults()
        if self.sample and self.beam != 1:
            faults.append(
                f"{self.called('sample')} draws without a beam: set {self.called('beam')} to 1 "
                f"(it is {self.beam})."
            )
        if not self.sample and self.nbest > max(self.beam, 1):
            faults.append(
                f"{self.called('nbest')} ({self.nbest}) cannot exceed {self.called('beam')} "
                f"({self.beam}): widen the beam."
            )
        return faults

    def length_norm(self, lengths: Tensor) -> Tensor:
        """Return ((mu + |y|) / (mu + 1))^alpha, where |y| counts the end symbol. Eq. (2.28)."""
        ratio = (self.length_offset + lengths.float()) / (self.length_offset + 1.0)
        return ratio**self.length_penalty

    def length_norm_of(self, length: int) -> float:
        """Return `length_norm` of one length, in the precision of the search."""
        return float(self.length_norm(torch.tensor(length)))


class VerifiedPass(NamedTuple):
    """One verification of a translation.

    The numbers of tokens fed to the blocks up to the draft exit, of tokens that this exit
    predicted, of positions run by the later blocks, of tokens written, including the end symbol,
    and of blocks run, summed over positions.
    """

    fed: int
    predicted: int
    verified: int
    written: int
    blocks: int


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One translation of one sentence.

    `tokens` are T ids without the end symbol; `log_probabilities` has T + 1 entries, the last for
    the end symbol, and `log_probability` is their sum (natural logarithm). `score` ranks
    hypotheses: eq. (2.28) plus the coverage penalty. `alignment` [T + 1, S], on the CPU, has the
    shares of the source tokens, the source's end symbol last, for each token and the end symbol.
    `reads` (T + 1) are the numbers of source tokens, including the end symbol, that had been read
    when each was written; None if the whole source was available from the start. With early exit,
    `exits` (T + 1) are the blocks after which each was predicted, and `exit_scores` [T + 1, N], on
    the CPU, the values that decisions were based on, if these are chi (5.20) or the largest
    probability (5.18), else None; NaN where not computed. `num_exits` is the number of blocks N.
    With verified exits, `exits` are the draft exit for accepted drafts and N for other tokens, and
    `passes` are the verifications.
    """

    tokens: list[int]
    log_probabilities: list[float]
    log_probability: float
    score: float
    alignment: Tensor | None = None
    reads: list[int] | None = None
    exits: list[int] | None = None
    exit_scores: Tensor | None = None
    num_exits: int | None = None
    passes: list[VerifiedPass] | None = None

    @property
    def blocks_run(self) -> tuple[int, int]:
        """Number of decoder blocks run and number of tokens, with early exits; else 0 and 0.

        With verified exits there are more blocks than `exits` say: verification runs the later
        blocks, and rejected drafts count too. For a policy that translates prefixes, all searches
        count.
        """
        if self.passes is not None:
            return sum(ran.blocks for ran in self.passes), sum(ran.written for ran in self.passes)
        return sum(self.exits or ()), len(self.exits or ())


@dataclasses.dataclass
class BlockCount:
    """Counts the decoder's blocks that ran for the tokens of translations with early exits."""

    blocks: int = 0
    tokens: int = 0

    @classmethod
    def of(cls, hypotheses: Iterable[Hypothesis]) -> BlockCount:
        """Return the count of some translations."""
        count = cls()
        for hypothesis in hypotheses:
            count.add(hypothesis)
        return count

    def add(self, hypothesis: Hypothesis) -> None:
        """Count a translation, including end symbols."""
        blocks, tokens = hypothesis.blocks_run
        self.blocks, self.tokens = self.blocks + blocks, self.tokens + tokens

    @property
    def average(self) -> float | None:
        """Blocks per token, the average exit; None without early exits."""
        return self.blocks / self.tokens if self.tokens else None


@dataclasses.dataclass(frozen=True)
class Translation:
    """One line and its translation; an empty line has no hypotheses and an empty text.

    `line` counts from 1, `source` are its units, `texts` the raw texts of the hypotheses, best
    first, `tokenized` and `target` the best one's words and units. `source_end` says whether the
    source has an end symbol, the last column of alignments; pictures have none.
    """

    line: int
    source: list[str]
    hypotheses: list[Hypothesis]
    texts: list[str]
    tokenized: str
    target: list[str]
    source_end: bool = True

    @property
    def text(self) -> str:
        """The best translation as raw text."""
        return self.texts[0] if self.texts else ""


@dataclasses.dataclass(frozen=True)
class Proposal:
    """Predictions of the next tokens given the source read so far, for policies to inspect.

    Each row has `step` tokens; sentence [R] is its position in the batch (in a stream always 0, so
    that it does not identify lines), reads [R] its number of source tokens read. log_probabilities
    [R, V] (float32) are the models', before any constraint; alignment [R, S] are shares of the
    source tokens, 0 for unread ones, if the policy wants them; readiness [R] is that of models with
    a reading mechanism (`Step`). Nothing here depends on source tokens that have not been read.
    """

    step: int
    sentence: Tensor
    reads: Tensor
    log_probabilities: Tensor
    alignment: Tensor | None = None
    readiness: Tensor | None = None

    @property
    def tokens(self) -> Tensor:
        """The most probable tokens [R]."""
        return self.log_probabilities.argmax(1)


class Agent:
    """A READ/WRITE policy: decides, before each write, how much of the source has been read.

    `next_reads` decides without a prediction. If the policy `wants_proposals`, `writes` is then
    called with the prediction at these reads, and again after each further READ, until it writes or
    the source ends.
    """

    wants_reading: bool = False
    """Whether the models' reading probabilities are needed."""
    wants_proposals: bool = False
    """Whether `writes` has to be called."""
    judges_rows_alone: bool = False
    """Whether `writes` decides on each row of the proposal independently, so that it may be called
    with several reads of a row at once, and with reads that never happen."""
    wants_alignment: bool = False
    """Whether proposals need alignments."""
    wants_readiness: Readiness = "none"
    """The reading mechanism that models need, for its readiness in proposals."""

    @property
    def chooses_from(self) -> float | None:
        """The selection probability from which monotonic heads select (None: one half)."""
        return None

    @property
    def finish_reading(self) -> bool:
        """Whether translations may end only after the whole source has been read (appendix C)."""
        return False

    def next_reads(
        self, step: int, sentence: Tensor, reads: Tensor, lengths: Tensor, rho: Tensor | None
    ) -> Tensor:
        """Return the reads [R] with which each row writes its next token, or proposes it.

        Each row has `step` tokens; `sentence` [R] is its position in the batch, `reads` [R] are
        those of the last write (1 at the start), `lengths` [R] the source lengths with the end
        symbol, and rho [R, S] the probabilities of READ after j + 1 tokens have been read. An
        unfinished stream passes as length the number of its tokens plus one: returning this length
        means that it must read.
        """
        return reads

    def writes(self, proposal: Proposal) -> Tensor:
        """Return [R] (bool), True for rows that write; the others read one more token."""
        return torch.ones_like(proposal.reads, dtype=torch.bool)
