"""READ/WRITE policies: wait-k, fixed paths, the reader, and policies that inspect predictions.

A policy implements `search.api.Agent`. Wait-k and fixed paths (chapter 4) know before a prediction
how much to read; `Threshold` uses the model's reader (section 4.4); `Confidence`, `Entropy`,
`AlignAtt` and `EDAtt` inspect the prediction. A user-defined policy is a subclass of `Policy` with
a method `decide`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from nmtgrid.base.config import (
    ABOVE_0,
    FROM_1,
    INSIDE_0_1,
    POSITIVE,
    WHOLE_FROM_0,
    CheckedSettings,
    check,
)
from nmtgrid.base.errors import ConfigError
from nmtgrid.search.api import Agent, Proposal, SearchPlan
from nmtgrid.search.constraints import length_bounds
from nmtgrid.search.paths import continue_paths, wait_k
from nmtgrid.text.vocabulary import END


def first_write(rho: Tensor, reads: Tensor, threshold: float, source_lengths: Tensor) -> Tensor:
    """Return [R]: the reads with which each row writes next, given its reads so far, `reads` [R].

    rho [R, S] is one row of the grid; column j has j + 1 tokens read. A row writes in the first
    column from `reads` on whose rho is below the threshold, or else in the last one. An unfinished
    stream passes a length of one more than its columns: if that length is returned, it must read.
    """
    columns = torch.arange(1, rho.shape[1] + 1, device=rho.device)
    writes = (rho < threshold) & (columns >= reads[:, None])
    first = torch.where(writes, columns, source_lengths[:, None]).amin(1)
    return torch.minimum(first, source_lengths)


@dataclasses.dataclass(frozen=True)
class WaitK(Agent):
    """Reads k tokens first (infinity: all), then one before each later write. Eq. (4.25).

    Ma et al. (2019), "STACL: Simultaneous Translation with Implicit Anticipation and Controllable
    Latency using Prefix-to-Prefix Framework".
    """

    k: float
    """Source tokens read before the first write; infinity reads all."""
    finish_reading: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError for a k below 1 or not whole."""
        wait_k(self.k, torch.ones(1, dtype=torch.int64), 1)

    def next_reads(
        self, step: int, sentence: Tensor, reads: Tensor, lengths: Tensor, rho: Tensor | None
    ) -> Tensor:
        # All rows are at the same step, so one number applies to all of them.
        return lengths.clamp(max=int(self.k) + step) if self.k < torch.inf else lengths


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy(Agent, CheckedSettings):
    """A policy that decides between two wait-k paths; subclasses set `decide` or `next_reads`.

    A setting is a field of the dataclass; `faults` returns what is wrong with the values. One
    policy object serves all lines, so it must be stateless: a decision depends only on the
    arguments.
    """

    floor: Annotated[int, WHOLE_FROM_0] = 0
    """Always reads at least as much as wait-k with this k (0: no minimum)."""
    cap: Annotated[int, WHOLE_FROM_0] = 0
    """Never reads more than wait-k with this k (0: no maximum)."""
    finish_reading: bool = False
    """The end symbol is written only after the whole source has been read (appendix C)."""

    wants_proposals = True

    def __post_init__(self) -> None:
        """Raise ConfigError with what is wrong with the values."""
        check(self)

    def faults(self) -> list[str]:
        faults = super().faults()
        if 0 < self.cap < self.floor:
            faults.append(f"`cap` ({self.cap}) must not be below `floor` ({self.floor}).")
        return faults

    def next_reads(
        self, step: int, sentence: Tensor, reads: Tensor, lengths: Tensor, rho: Tensor | None
    ) -> Tensor:
        if not self.floor:
            return reads
        return torch.maximum(reads, lengths.clamp(max=self.floor + step))

    def decide(self, proposal: Proposal) -> Tensor:
        """Return [R] (bool), True where a row writes the proposed token; see `Proposal`."""
        raise NotImplementedError

    def writes(self, proposal: Proposal) -> Tensor:
        """Return the result of `decide` [R], limited by the cap."""
        writes = self._decision(proposal)
        if self.finish_reading:
            # The end symbol is not allowed yet, and no other token has been proposed.
            writes = writes & (proposal.tokens != END)
        if self.cap:
            writes = writes | (proposal.reads >= self.cap + proposal.step)
        return writes

    def _decision(self, proposal: Proposal) -> Tensor:
        """Return the result of `decide`. Raises ConfigError if a user-defined policy fails."""
        if _is_built_in(self):
            return self.decide(proposal)
        return _checked(
            self, "decide", proposal.step, proposal.reads, lambda: self.decide(proposal),
            are_bools=True,
        ).bool()  # fmt: skip


def _is_built_in(policy: Agent) -> bool:
    """Return whether a policy is defined in this module; the results of others are checked."""
    return type(policy).__module__ == __name__


def _checked(
    policy: Agent,
    method: str,
    step: int,
    rows: Tensor,
    call: Callable[[], Tensor],
    *,
    are_bools: bool = False,
) -> Tensor:
    """Return the result of a method of a user-defined policy: a tensor [R] like `rows`.

    It must contain whole numbers, or with `are_bools` bools or whole numbers. Raises ConfigError,
    which names the policy and the token, if the method fails or returns something else.
    """
    name = type(policy).__name__
    try:
        result = call()
    except Exception as error:
        raise ConfigError(
            f"The reading policy `{name}` failed at target token {step + 1}: "
            f"{type(error).__name__}: {error}",
            "The traceback (`--debug` on the command line) shows where.",
        ) from error
    is_tensor = isinstance(result, Tensor)
    # A probability returned by mistake would count as True.
    if (
        not is_tensor
        or result.shape != rows.shape
        or result.is_floating_point()
        or (not are_bools and result.dtype == torch.bool)
    ):
        values = "bools" if are_bools else "whole numbers"
        returned = type(result).__name__
        if is_tensor:
            returned = f"{list(result.shape)} of {str(result.dtype).removeprefix('torch.')}"
        raise ConfigError(
            f"`{method}` of the reading policy `{name}` must return a tensor of {values} "
            f"{list(rows.shape)}, one for each row, but returned {returned}."
        )
    return result


@dataclasses.dataclass(frozen=True)
class Threshold(Policy):
    """Reads while the model's probability of reading is at least `threshold`."""

    threshold: Annotated[float, INSIDE_0_1] = 0.5
    """Reads while the probability of a READ is at least this; lower reads more."""

    wants_reading = True
    wants_proposals = False

    def next_reads(
        self, step: int, sentence: Tensor, reads: Tensor, lengths: Tensor, rho: Tensor | None
    ) -> Tensor:
        assert rho is not None
        least = super().next_reads(step, sentence, reads, lengths, rho)
        chosen = first_write(rho, least, self.threshold, lengths)
        return chosen.clamp(max=self.cap + step).maximum(least) if self.cap else chosen


@dataclasses.dataclass(frozen=True)
class Confidence(Policy):
    """Writes once the most likely token has at least the probability `threshold`.

    Zheng et al. (2020), "Simultaneous Translation Policies: From Fixed to Adaptive".

    Departs: The paper has a wait-k model and a threshold for each lag, between a minimum and a
    maximum k. Here one model and one threshold serve all lags; `floor` and `cap` bound them.
    """

    threshold: Annotated[float, INSIDE_0_1] = 0.5
    """Minimum probability of the most likely token; higher reads more."""

    judges_rows_alone = True

    def decide(self, proposal: Proposal) -> Tensor:
        return proposal.log_probabilities.amax(1) >= math.log(self.threshold)


@dataclasses.dataclass(frozen=True)
class Entropy(Policy):
    """Writes once the entropy of the next token is at most `most`."""

    most: Annotated[float, ABOVE_0] = 1.5
    """Maximum entropy in nats; lower reads more."""

    judges_rows_alone = True

    def decide(self, proposal: Proposal) -> Tensor:
        logs = proposal.log_probabilities
        # A token of probability 0 has an infinite logarithm, but adds nothing to the entropy.
        return -(logs.exp() * logs.clamp(min=_LEAST_LOG)).sum(1) <= self.most


@dataclasses.dataclass(frozen=True)
class AlignAtt(Policy):
    """Writes unless the next token attends most to one of the latest source tokens.

    Papi et al. (2023), "AlignAtt: Using Attention-based Audio-Translation Alignments as a Guide for
    Simultaneous Speech Translation".

    Departs: The paper is about speech; its frames are source tokens here. The authors' code
    (github.com/hlt-mt/FBK-fairseq) drops the newest encoder position before it looks for the
    maximum, takes the attention of one decoder layer (`--extract-attn-from-layer`), and writes no
    end symbol before the source has ended. Here the newest source token counts, the attention is
    the alignment that the model declares (for a Transformer the last block's or the mean), and
    without `finish_reading` the end symbol is treated like any other token. Published values of f
    do not carry over.
    """

    last: Annotated[int, FROM_1] = 1
    """Number of latest source tokens to which the next token must not be aligned; higher reads
    more."""

    wants_alignment = True
    judges_rows_alone = True

    def decide(self, proposal: Proposal) -> Tensor:
        assert proposal.alignment is not None
        return proposal.alignment.argmax(1) < proposal.reads - self.last


@dataclasses.dataclass(frozen=True)
class EDAtt(Policy):
    """Writes while the next token's attention to the latest source tokens is below `mass`.

    Papi et al. (2023), "Attention as a guide for simultaneous speech translation".

    Departs: The paper is about speech; its frames are source tokens here. The authors' code
    (github.com/hlt-mt/FBK-fairseq) drops the newest encoder position, divides the rest by its
    Euclidean norm, and takes the attention of one decoder layer (`--extract-attn-from-layer`). Here
    the newest source token counts, nothing is renormalised, and the attention is the alignment that
    the model declares (for a Transformer the last block's or the mean). Published values of alpha
    do not carry over.
    """

    mass: Annotated[float, INSIDE_0_1] = 0.3
    """Share of attention on the latest source tokens that must not be reached; lower reads more."""
    last: Annotated[int, FROM_1] = 2
    """Number of latest source tokens."""

    wants_alignment = True
    judges_rows_alone = True

    def decide(self, proposal: Proposal) -> Tensor:
        assert proposal.alignment is not None
        columns = torch.arange(proposal.alignment.shape[1], device=proposal.reads.device)
        is_last = columns >= (proposal.reads - self.last)[:, None]
        return (proposal.alignment * is_last).sum(1) < self.mass


@dataclasses.dataclass(frozen=True)
class Monotonic(Policy):
    """Writes once every monotonic head of the model has chosen a source position (MMA).

    Ma et al. (2020), "Monotonic multihead attention". The threshold also determines the positions
    of the heads, and thus what they attend to. Without floor, cap and `finish_reading` the policy
    writes the same as offline decoding with the same threshold, and reads as far as the foremost
    head.
    """

    threshold: Annotated[float, INSIDE_0_1] = 0.5
    """Minimum selection probability at which a head stops; higher reads more."""

    wants_readiness = "monotonic"

    @property
    def chooses_from(self) -> float | None:
        return self.threshold

    def decide(self, proposal: Proposal) -> Tensor:
        assert proposal.readiness is not None
        return proposal.readiness >= self.threshold


@dataclasses.dataclass(frozen=True)
class ITST(Policy):
    """Writes once the source read so far transports at least the information `delta`.

    Zhang and Feng (2022), "Information-Transport-based Policy for Simultaneous Translation". The
    readiness is the least information that a decoder block has received for the next token. Paths
    of at least wait-1, as in training, are the default.

    Departs: The authors' code (github.com/ictnlp/ITST) decodes without a minimum of wait-1, begins
    with two source tokens read, and leaves the last source token read out of the sum, because its
    transport may be unstable. The same delta therefore reads less here than in the paper.
    """

    delta: Annotated[float, POSITIVE] = 0.5
    """Information that the next token must have received, of about 1 in total; higher reads
    more."""
    floor: Annotated[int, WHOLE_FROM_0] = dataclasses.field(default=1, kw_only=True)
    """Always reads at least as much as wait-k with this k (1, as in training; 0: no minimum)."""

    wants_readiness = "transport"

    def decide(self, proposal: Proposal) -> Tensor:
        assert proposal.readiness is not None
        return proposal.readiness >= self.delta


@dataclasses.dataclass(frozen=True)
class WaitInfo(Policy):
    """Writes once the source read so far has at least `k` more information than the target.

    Zhang, Guo and Feng (2022), "Wait-info Policy". The readiness is the information of the source
    tokens read less that of the target tokens written. Paths of at least wait-1, as in training,
    are the default.
    """

    k: Annotated[float, POSITIVE] = 3
    """Information by which the source must be ahead of the target; a token has about 1."""
    floor: Annotated[int, WHOLE_FROM_0] = dataclasses.field(default=1, kw_only=True)
    """Always reads at least as much as wait-k with this k (1, as in training; 0: no minimum)."""

    wants_readiness = "information"

    def decide(self, proposal: Proposal) -> Tensor:
        assert proposal.readiness is not None
        return proposal.readiness >= self.k


_LEAST_LOG = -1e4


class AlongPaths(Agent):
    """Follows given paths [B, T], then reads the whole source: algorithm 1, not for streams.

    Departs: Algorithm 1 increments t too late, after it has taken z_t, and does not define
    positions beyond |y|. Here token t is written with z_t reads, and the whole source is read
    beyond |y|.
    """

    finish_reading = False

    def __init__(self, paths: Tensor, target_lengths: Tensor, finish_reading: bool = False) -> None:
        """`target_lengths` [B] are the numbers of entries of the paths, without padding."""
        self.paths, self.target_lengths = paths, target_lengths
        self.finish_reading = finish_reading

    def next_reads(
        self, step: int, sentence: Tensor, reads: Tensor, lengths: Tensor, rho: Tensor | None
    ) -> Tensor:
        # Rows are hypotheses: `sentence` says whose path each of them follows.
        arguments = self.paths[sentence], lengths, self.target_lengths[sentence]
        return continue_paths(*arguments, step + 1)[:, step]


class Bounded(Agent):
    """An agent that reads while a stream cannot know yet whether it may write.

    The maximum length of a translation depends on the length of the source, of which a stream knows
    only the part that has arrived. At the limit for this part it reads; with `end_is_hidden` it
    also reads before it would write more tokens than it has read. If no limit is reached, as with
    wait-k and the default limits, the agent decides alone. The results of a user-defined policy are
    checked, and its reads are limited to between those of the last write and the source's length.
    """

    def __init__(self, agent: Agent, plan: SearchPlan, end_is_hidden: bool = False) -> None:
        self.agent, self.plan, self.end_is_hidden = agent, plan, end_is_hidden
        self.wants_reading, self.wants_proposals = agent.wants_reading, agent.wants_proposals
        self.wants_alignment, self.wants_readiness = agent.wants_alignment, agent.wants_readiness
        self.judges_rows_alone = agent.judges_rows_alone

    @property
    def chooses_from(self) -> float | None:
        return self.agent.chooses_from

    @property
    def finish_reading(self) -> bool:
        return self.agent.finish_reading

    def writes(self, proposal: Proposal) -> Tensor:
        return self.agent.writes(proposal)

    def next_reads(
        self, step: int, sentence: Tensor, reads: Tensor, lengths: Tensor, rho: Tensor | None
    ) -> Tensor:
        least = lengths.clamp(max=_fewest_reads(self.plan, step, self.end_is_hidden))
        agent = self.agent
        if _is_built_in(agent):
            return torch.maximum(agent.next_reads(step, sentence, reads, lengths, rho), least)
        policy_reads = _checked(
            agent, "next_reads", step, reads,
            lambda: agent.next_reads(step, sentence, reads, lengths, rho),
        )  # fmt: skip
        # Reads never decrease and never exceed the source's length.
        return policy_reads.maximum(reads).maximum(least).minimum(lengths)


@functools.lru_cache(maxsize=4096)
def _fewest_reads(plan: SearchPlan, step: int, end_is_hidden: bool) -> int:
    """Return the fewest source tokens that allow `step` + 1 target tokens."""

    def limit(tokens: int) -> int:
        """Return the maximum number of target tokens for a source, both without end symbols."""
        lengths = torch.tensor([tokens + 1])
        return int(length_bounds(plan, lengths, end_is_hidden=end_is_hidden)[1])

    # The limit is linear in |x|: its inverse is computed, and the loop corrects rounding.
    least = step + 1 if end_is_hidden else 1
    share = plan.max_length_b
    if share == 0 or limit(least) > step:
        return least
    least = max(least, math.ceil((step + 1 - plan.max_length_a) / share))
    while limit(least) <= step:
        least += 1
    return least
