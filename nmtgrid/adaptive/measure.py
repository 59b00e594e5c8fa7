"""The quality and cost of early exits: BLEU, average exit, FLOPs (appendix B) and seconds.

Systems decode each batch in turn, so that disturbances of the machine affect all of them alike.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtgrid.adaptive.halting import AnyHalt
from nmtgrid.base.devices import autocast
from nmtgrid.base.errors import DataError, listed
from nmtgrid.base.io.workers import chunks
from nmtgrid.data.batches import collate
from nmtgrid.data.dataset import Split
from nmtgrid.metrics.quality import bleu
from nmtgrid.models.api import Needs, TranslationModel, Verified
from nmtgrid.search import engine
from nmtgrid.search.api import Hypothesis, SearchPlan, VerifiedPass
from nmtgrid.text.pipeline import Pipeline
from nmtgrid.text.scripts import bleu_tokenizer


@dataclasses.dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a decoder: blocks, features, feed-forward, vocabulary, and encoder features."""

    blocks: int
    size: int
    encoder_size: int
    feed_forward_size: int
    types: int

    @classmethod
    def of(cls, model: TranslationModel) -> DecoderSizes:
        """Return the sizes of a Transformer, with or without exits."""
        config = model.config
        return cls(
            blocks=config.decoder_depth,
            size=config.size,
            encoder_size=config.source_size,
            feed_forward_size=config.feed_forward_size,
            types=model.classifier().weight.shape[0],
        )

    @property
    def output(self) -> float:
        """Return the cost of one classifier, 2 |V| d."""
        return 2.0 * self.types * self.size

    def block(self, source_length: float, step: int) -> float:
        """Return FC of a block that has the source's keys and values, at step t from 1."""
        size = self.size
        # Six projections: four of self-attention, two of the attention to the source.
        fixed = 12.0 * size**2 + 4.0 * self.feed_forward_size * size
        return fixed + 4.0 * step * size + 4.0 * source_length * size


def token_flops(
    sizes: DecoderSizes, source_lengths: Tensor, exits: Tensor, needs: Needs = "nothing"
) -> Tensor:
    """Return [B, T] (float64), the operations of each step, for exits [B, T], 0 after the end.

    `source_lengths` [B] are the numbers of states that the decoder attends to, without a pair of
    zeros, which needs no products. A block's source keys and values are counted at the step that
    first reaches it. Computing the input of exit decisions, `needs`, is counted too.
    """
    depths, written = exits.double(), (exits > 0).double()
    steps = torch.arange(1, exits.shape[1] + 1, device=exits.device).double()
    source = source_lengths.double()[:, None]
    # `block` is linear in step and source length: its constant and its slope, for all at once.
    fixed, states = sizes.block(0, 0), 4.0 * sizes.size
    blocks = depths * (fixed + states * (steps + source))
    # FS, the keys and values of a block that a token skips.
    skipped = (sizes.blocks * written - depths) * (4.0 * sizes.size**2)
    # Blocks that the sentence enters for the first time at this step, with their keys and values
    # of each source state.
    reached = pad(exits.cummax(1).values, (1, 0)).diff().double()
    first_calls = reached * source * (4.0 * sizes.size * sizes.encoder_size)
    total = blocks + skipped + first_calls + prediction_flops(sizes, exits, needs)
    if needs == "sequence":
        # Decided once, from the mean source state.
        total[:, 0] += 2.0 * sizes.blocks * sizes.encoder_size
    # Thresholds on confidence have computed the output already.
    return total if needs == "confidence" else total + written * sizes.output


def prediction_flops(sizes: DecoderSizes, exits: Tensor, needs: Needs) -> Tensor:
    """Return FP of each token, of the shape of `exits`, without that of "sequence"."""
    depths, size = exits.double(), float(sizes.size)
    if needs == "confidence":
        return depths * sizes.output
    if needs == "geometric":
        return 2.0 * size * depths.clamp(max=sizes.blocks - 1)
    if needs == "multinomial":
        return 2.0 * sizes.blocks * size * (depths > 0)
    return torch.zeros_like(depths)


def corpus_flops(
    sizes: DecoderSizes, source_lengths: Tensor, exits: Tensor, needs: Needs = "nothing"
) -> float:
    """Return the mean operations per step, including those of end symbols."""
    steps = (exits > 0).sum().clamp(min=1)
    return float(token_flops(sizes, source_lengths, exits, needs).sum() / steps)


def verified_flops(
    sizes: DecoderSizes, source_length: int, verified: Verified, passes: Sequence[VerifiedPass]
) -> float:
    """Return the operations of a translation by verified exits, including rejected drafts.

    `source_length` is the number of states that the decoder attends to. Blocks up to the exit run
    for all tokens that are fed to them, the later ones for the positions that are verified.
    """
    exit, types = verified.exit, min(verified.types or sizes.types, sizes.types)
    later_blocks = sizes.blocks - exit
    # Every block computes the source's keys and values.
    total = 4.0 * sizes.blocks * source_length * sizes.size * sizes.encoder_size
    before = 0
    for ran in passes:
        steps = [sizes.block(source_length, before + step) for step in range(1, ran.fed + 1)]
        total += exit * sum(steps) + later_blocks * sum(steps[: ran.verified])
        total += 2.0 * types * sizes.size * ran.predicted + sizes.output * ran.verified
        before += ran.written
    return total


def average_exit(exits: Tensor) -> float:
    """Return the mean exit over all tokens, including end symbols (section 5.4.3)."""
    return float(exits.double().sum() / (exits > 0).sum().clamp(min=1))


@dataclasses.dataclass(frozen=True)
class Sample:
    """A sentence: its line (from 1), source and target as ids, the reference tokenised and raw."""

    line: int
    source: list[int]
    target: list[int]
    reference: str
    raw_reference: str


def read_samples(
    pipeline: Pipeline,
    split: Split,
    count: int | None = None,
    longest: int = 512,
    warn: Callable[[str], None] = lambda text: None,
) -> list[Sample]:
    """Return the first `count` sentences of a split (None: all).

    Sources are cut after `longest` units, with a warning. Raises DataError for a split that
    has no references.
    """
    samples: list[Sample] = []
    cut_lines: list[int] = []
    columns = zip(split.raw_source(), split.tokenized_target(), split.raw_target(), strict=True)
    for line, (source, reference, raw) in enumerate(islice(columns, count), start=1):
        ids = pipeline.encode_source(source)
        if len(ids) > longest:
            cut_lines.append(line)
        target = pipeline.target.encode_words(reference.split())
        samples.append(Sample(line, ids[:longest], target, reference, raw))
    if cut_lines:
        lines = listed(cut_lines)
        warn(f"long-line: longer than {longest:,} source units and cut: line {lines}.")
    if not any(sample.source and sample.reference.strip() for sample in samples):
        raise DataError(
            f"The split `{split.name}` has no sentence with a reference.",
            "Thresholds must be tuned on a split with reference translations.",
        )
    return samples


Clock = Literal["wall", "processor"]
"""The clock to use; the processor's does not run while other programs do."""


@dataclasses.dataclass(frozen=True)
class System:
    """A model and its exit mechanism (None: all blocks run).

    On a CPU the model has been prepared for decoding (`search.precision.prepare`); `bf16` says
    whether it also needs autocast.
    """

    name: str
    model: TranslationModel
    halt: AnyHalt | Verified | None = None
    bf16: bool = False

    def by(self, name: str, halt: AnyHalt | Verified) -> System:
        """Return the same model with an exit mechanism."""
        return dataclasses.replace(self, name=name, halt=halt)


@dataclasses.dataclass(frozen=True)
class Decoded:
    """The translations of a system, in the order of the sentences, and the seconds taken.

    An empty source has no hypothesis. Seconds are wall-clock time, or processor time of all cores
    together.
    """

    system: System
    hypotheses: list[Hypothesis | None]
    wall_seconds: float
    processor_seconds: float
    clock: Clock = "wall"

    @property
    def seconds(self) -> float:
        """Seconds on the chosen clock."""
        return self.wall_seconds if self.clock == "wall" else self.processor_seconds

    @property
    def tokens(self) -> int:
        """Units written, including end symbols."""
        return sum(len(hypothesis.tokens) + 1 for hypothesis in self.hypotheses if hypothesis)


@dataclasses.dataclass(frozen=True)
class Measured:
    """Quality (tokenised BLEU, percent) and cost of a system; end symbols count as tokens.

    `flops_per_token` are those of the decoder for one row; None if unknown. `shares` are the shares
    of tokens at each exit, from the first on; `average_exit` is NaN, and there are no shares, if
    nothing was written or the decoder has no blocks. With verified exits the average counts the
    blocks that ran, rejected drafts included.
    """

    decoded: Decoded
    bleu: float
    signature: str
    average_exit: float
    shares: list[float]
    flops_per_token: float | None

    def values(self) -> dict[str, Any]:
        """Return the values by their JSON keys."""
        return {
            "bleu": self.bleu,
            "average_exit": None if math.isnan(self.average_exit) else self.average_exit,
            "flops_per_token": self.flops_per_token,
            "seconds": self.decoded.seconds,
            "wall_seconds": self.decoded.wall_seconds,
            "processor_seconds": self.decoded.processor_seconds,
            "tokens": self.decoded.tokens,
            "tokens_per_second": self.decoded.tokens / max(self.decoded.seconds, 1e-9),
            "exit_shares": self.shares,
        }


@dataclasses.dataclass(frozen=True)
class DecodeSetup:
    """The setup for decoding all systems: search, batch size, timing repetitions."""

    plan: SearchPlan
    batch: int = 64
    repeats: int = 1
    clock: Clock = "wall"
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cpu"))


def decode(
    systems: Sequence[System],
    samples: Sequence[Sample],
    setup: DecodeSetup,
    advance: Callable[[int], None] = lambda sentences: None,
) -> list[Decoded]:
    """Return the translations of `samples` by each system.

    The time of a few batches is the minimum of `repeats`; the first decoding in a process is not
    timed. `advance` receives the number of sentences, once for each system.
    """
    decoded: list[list[Hypothesis | None]] = [[None] * len(samples) for _ in systems]
    seconds, processor = [0.0] * len(systems), [0.0] * len(systems)
    # As many batches as a system with exits of whole sentences searches together. Sentences that
    # are translated one by one are not grouped (`_timed`).
    together = max(engine.batches_together(system.halt) for system in systems)
    for number, parts in enumerate(chunks(batches(samples, setup.batch), together)):
        groups = [[samples[index] for index in indices] for indices in parts]
        if number == 0:
            # A warm-up: compiled kernels, caches and allocators.
            for system in systems:
                _timed(system, [groups[0][:2]], setup)
        for turn, system in enumerate(systems):
            # The minimum of the runs: noise only adds time.
            runs = [_timed(system, groups, setup) for _ in range(setup.repeats)]
            hypotheses = runs[0][0]
            seconds[turn] += min(run[1] for run in runs)
            processor[turn] += min(run[2] for run in runs)
            for index, hypothesis in zip(itertools.chain(*parts), hypotheses, strict=True):
                decoded[turn][index] = hypothesis
            advance(len(hypotheses))
    return [
        Decoded(system, decoded[turn], seconds[turn], processor[turn], setup.clock)
        for turn, system in enumerate(systems)
    ]


def batches(samples: Sequence[Sample], size: int) -> Iterator[list[int]]:
    """Return batches of the indices of sentences that have a source, of similar length."""
    usable = [index for index, sample in enumerate(samples) if sample.source]
    usable.sort(key=lambda index: len(samples[index].source))
    return chunks(usable, size)


def measure(decoded: Decoded, samples: Sequence[Sample], pipeline: Pipeline) -> Measured:
    """Return the quality and cost of decoded translations."""
    texts = translations(decoded, pipeline)
    references = [sample.reference for sample in samples]
    raw = [sample.raw_reference for sample in samples]
    score = bleu(texts, references, bleu_tokenizer(pipeline.facts.target_lang, raw, "none"))
    model = decoded.system.model
    # Without early exit every token exited after the last block, if there are blocks at all.
    count = depth_of(model) or 0
    exits, lengths = _exits(decoded, samples, model, count)
    sizes = DecoderSizes.of(model) if model.architecture == "transformer" else None
    halt = decoded.system.halt
    mean, shares, flops = math.nan, [], None
    written = exits[exits > 0]
    if len(written):
        mean = average_exit(exits)
        shares = [float((written == n).double().mean()) for n in range(1, count + 1)]
    if isinstance(halt, Verified):
        passes = [best.passes or [] for best in decoded.hypotheses if best is not None]
        tokens = max(len(written), 1)
        mean = sum(ran.blocks for part in passes for ran in part) / tokens
        if sizes is not None:
            pairs = zip(lengths.tolist(), passes, strict=True)
            flops = sum(verified_flops(sizes, length, halt, part) for length, part in pairs)
            flops /= tokens
    elif sizes is not None:
        needs = "nothing" if halt is None else halt.needs
        flops = corpus_flops(sizes, lengths, exits, needs)
    return Measured(decoded, score.value, score.signature, mean, shares, flops)


def translations(decoded: Decoded, pipeline: Pipeline) -> list[str]:
    """Return the tokenised translations."""
    return [
        "" if hypothesis is None else pipeline.restore_tokenized(hypothesis.tokens)
        for hypothesis in decoded.hypotheses
    ]


def depth_of(model: TranslationModel) -> int | None:
    """Return the number of decoder blocks; None for an architecture without a decoder stack."""
    depth: int | None = getattr(model.config, "decoder_depth", None)
    return depth


def _timed(
    system: System, groups: Sequence[Sequence[Sample]], setup: DecodeSetup
) -> tuple[list[Hypothesis], float, float]:
    """Return the hypotheses of some batches, and the seconds of wall-clock and processor time."""
    by_exit = setup.batch > 1 and engine.batches_together(system.halt) > 1
    parts = [[*itertools.chain(*groups)]] if by_exit else groups
    count = len(groups) if by_exit else 1
    collated = [
        collate([sample.source for sample in part], [[]] * len(part)).to(setup.device)
        for part in parts
    ]
    # Random exits depend on the line, not on the batch that contains the sentence.
    keys = [torch.tensor([sample.line for sample in part]) for part in parts]
    hypotheses: list[Hypothesis] = []
    # A GPU works asynchronously, so both clock readings synchronise with it.
    _wait(setup.device)
    started, busy = time.perf_counter(), time.process_time()
    with autocast(setup.device, system.bf16):
        for batch, own in zip(collated, keys, strict=True):
            nbest_lists = engine.search(
                [system.model], batch.source, batch.source_lengths, setup.plan, keys=own,
                halt=system.halt, parts=count,
            )  # fmt: skip
            hypotheses += [best for best, *_ in nbest_lists]
    _wait(setup.device)
    return hypotheses, time.perf_counter() - started, time.process_time() - busy


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _exits(
    decoded: Decoded, samples: Sequence[Sample], model: TranslationModel, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the exits [B, T] of all sentences with a source, 0 after their end.

    The second tensor [B] has the numbers of source states in products, without a pair of zeros.
    """
    rows = [
        (hypothesis.exits or [count] * (len(hypothesis.tokens) + 1), len(sample.source))
        for hypothesis, sample in zip(decoded.hypotheses, samples, strict=True)
        if hypothesis is not None
    ]
    longest = max((len(exits) for exits, _ in rows), default=0)
    table = torch.tensor([[*exits, *[0] * (longest - len(exits))] for exits, _ in rows])
    # Sources here have no end symbol; the marker determines what is added to them.
    added = {"none": 0, "begin": 2}.get(getattr(model.config, "source_marker", ""), 1)
    return table.view(len(rows), longest), torch.tensor([length + added for _, length in rows])
