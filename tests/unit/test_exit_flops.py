"""Costs of decoding against algorithm 3, corrected, whose operations are added up one by one."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nmtgrid.adaptive.halting import AnyHalt, GivenExits, Predicted, Thresholds
from nmtgrid.adaptive.measure import (
    DecoderSizes,
    FlopsMechanism,
    average_exit,
    corpus_flops,
    token_flops,
)
from nmtgrid.data.batches import collate
from nmtgrid.models.api import Halting, PredictionSites
from tests.unit.tiny_transformer import tiny

SIZES = DecoderSizes(blocks=4, size=6, encoder_size=10, feed_forward_size=14, types=23)
EXITS = [[2, 1, 4, 1, 3], [1, 1], [3, 3, 3], [4]]
SOURCES = [7, 3, 1, 12]


def linear(inner: int, outer: int) -> int:
    """Return the cost of a map (table B.1)."""
    return 2 * inner * outer


class Machine:
    """Decodes with algorithm 3 a sentence with a beam, adding up what each operation costs."""

    def __init__(self, mechanism: FlopsMechanism, source_length: int) -> None:
        self.mechanism, self.source_length = mechanism, source_length
        self.flops, self.is_first_step = 0, True
        self.first_call = dict.fromkeys(range(1, SIZES.blocks + 1), True)

    def step(self, t: int, exits: list[int]) -> int:
        """Return the cost of step t (from 1) of rows that take `exits`."""
        self.flops = 0
        if self.mechanism == "sequence" and t == 1:
            self.flops += linear(SIZES.encoder_size, SIZES.blocks)
        for exit in exits:
            self.row(t, exit)
        return self.flops

    def row(self, t: int, exit: int) -> None:
        for n in range(1, SIZES.blocks + 1):
            self.block(n, t)
            if n == 1 and self.mechanism == "multinomial":
                self.flops += linear(SIZES.size, SIZES.blocks)
            if self.mechanism == "geometric" and n < SIZES.blocks:
                self.flops += linear(SIZES.size, 1)
            if self.mechanism == "confidence":
                self.flops += linear(SIZES.size, SIZES.types)
            if n == exit:
                break
        for _ in range(exit + 1, SIZES.blocks + 1):
            self.flops += 2 * linear(SIZES.size, SIZES.size)
        if self.mechanism != "confidence":
            self.flops += linear(SIZES.size, SIZES.types)

    def block(self, n: int, t: int) -> None:
        d = SIZES.size
        self.flops += 2 * linear(d, d)  # key and value
        self.flops += linear(d, d)  # query
        self.flops += t * 2 * d + t * 2 * d  # scores, then the weighted sum
        self.flops += linear(d, d)  # out of the attention
        if self.first_call[n]:
            self.first_call[n] = False
            self.flops += self.source_length * 2 * linear(SIZES.encoder_size, d)
        self.flops += linear(d, d)  # query for the source
        self.flops += self.source_length * (2 * d + 2 * d)
        self.flops += linear(d, d)
        self.flops += linear(d, SIZES.feed_forward_size) + linear(SIZES.feed_forward_size, d)


def padded(rows: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows])


@pytest.mark.parametrize("mechanism", get_args(FlopsMechanism))
def test_tokens_cost_what_the_algorithm_adds_up(mechanism: FlopsMechanism) -> None:
    found = token_flops(SIZES, torch.tensor(SOURCES), padded(EXITS), mechanism)
    for place, (source, exits) in enumerate(zip(SOURCES, EXITS, strict=True)):
        machine = Machine(mechanism, source)
        wanted = [machine.step(t, [exit]) for t, exit in enumerate(exits, 1)]
        assert found[place].tolist() == wanted + [0] * (5 - len(exits))


@pytest.mark.parametrize("mechanism", get_args(FlopsMechanism))
def test_beams_share_their_source(mechanism: FlopsMechanism) -> None:
    """The first row ends after two steps; sentences of one beam have different exits."""
    exits = torch.tensor([[[1, 2, 0, 0], [1, 1, 4, 2], [3, 1, 1, 1]]])
    found = token_flops(SIZES, torch.tensor([5]), exits, mechanism)
    machine = Machine(mechanism, 5)
    rows = exits[0].t().tolist()
    wanted = [machine.step(t, [n for n in row if n]) for t, row in enumerate(rows, 1)]
    assert found[0].tolist() == wanted


def test_the_mean_is_per_step_and_the_baseline_runs_all_blocks() -> None:
    lengths, exits = torch.tensor(SOURCES), padded(EXITS)
    assert corpus_flops(SIZES, lengths, exits) == pytest.approx(
        float(token_flops(SIZES, lengths, exits).sum()) / 11
    )
    total = 0
    for source, row in zip(SOURCES, EXITS, strict=True):
        machine = Machine("none", source)
        total += sum(machine.step(t, [4]) for t in range(1, len(row) + 1))
    whole = torch.where(exits > 0, SIZES.blocks, 0)
    assert corpus_flops(SIZES, lengths, whole) == pytest.approx(total / 11)
    assert average_exit(exits) == pytest.approx(26 / 11)


SMALL = DecoderSizes(blocks=6, size=256, encoder_size=512, feed_forward_size=1024, types=6600)
BIG = DecoderSizes(blocks=6, size=1024, encoder_size=1024, feed_forward_size=4096, types=44000)


@pytest.mark.parametrize(
    ("sizes", "average", "mechanism", "share"),
    [
        (SMALL, 1.42, "geometric", 0.50),
        (BIG, 2.40, "geometric", 0.66),
        (BIG, 2.40, "confidence", 1.13),
    ],
)
def test_savings_of_the_published_operating_points(
    sizes: DecoderSizes, average: float, mechanism: FlopsMechanism, share: float
) -> None:
    """Section 5.4 corrected: 50 % and 34 % saved, while confidence costs 13 % more."""
    exits = exits_of_mean(average).view(40, 25)
    lengths = torch.full((40,), 25)
    whole = corpus_flops(sizes, lengths, torch.full_like(exits, sizes.blocks))
    found = corpus_flops(sizes, lengths, exits, mechanism) / whole
    assert found == pytest.approx(share, abs=0.03)


def exits_of_mean(average: float) -> torch.Tensor:
    """Return 1,000 exits of which most have the mean's neighbours and all blocks some."""
    draw = torch.Generator().manual_seed(1)
    low, high = 0.0, 1.0
    for _ in range(50):  # the rate of a geometric distribution, cut at 6, that has this mean
        rate = (low + high) / 2
        shares = rate ** torch.arange(6.0)
        mean = float((shares / shares.sum()) @ torch.arange(1.0, 7.0))
        low, high = (rate, high) if mean < average else (low, rate)
    return 1 + torch.multinomial(shares, 1000, replacement=True, generator=draw)


HALTS: list[tuple[FlopsMechanism, Halting, AnyHalt]] = [
    ("none", "none", GivenExits(torch.tensor([[2, 1, 4, 1, 3, 1, 4, 2]]))),
    ("confidence", "none", Thresholds("confidence", (0.4, 0.312, 0.293))),
    ("geometric", "geometric", Thresholds("geometric", (0.5, 0.52, 0.3))),
    ("multinomial", "multinomial", Predicted("multinomial")),
    ("sequence", "sequence", Predicted("sequence")),
]


@pytest.mark.parametrize(("mechanism", "halting", "halt"), HALTS)
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_formula_counts_what_a_model_runs(
    mechanism: FlopsMechanism, halting: Halting, halt: AnyHalt, norm: str
) -> None:
    """All products of each step of a Transformer, of torch's own count; those of `begin` apart."""
    model = tiny(
        exits="separate", halting=halting, norm=norm, decoder_depth=4, encoder_size=12,
        encoder="unidirectional",
    ).double()  # fmt: skip
    tokens = [5, 9, 4, 6, 7, 8, 3]
    if mechanism == "multinomial":  # all sorts of exits, not one by its bias
        batch = collate([[5, 6, 7, 8]], [tokens])
        states = model.exit_features(batch, PredictionSites.offline(batch))
        mean = model.halting_logits(batch, states).mean(0).detach()
        model.state_dict()["halting_map.bias"].sub_(mean)
    source = torch.tensor([[5, 6, 7, 8, 2]])
    state, counted, exits = model.begin(source, torch.tensor([5])), [], []
    for token in [1, *tokens]:
        count = FlopCounterMode(display=False, custom_mapping={_ATTENTION: _attention_flops})
        with torch.no_grad(), count:
            step = model.step(torch.tensor([token]), state, halt=halt)
        state = step.state
        assert step.exits is not None
        counted.append(count.get_total_flops())
        exits.append(int(step.exits))
    sizes = DecoderSizes.of(model)
    assert sizes == DecoderSizes(4, 8, 12, 10, 11)
    wanted = token_flops(sizes, torch.tensor([5]), torch.tensor([exits]), mechanism)
    if mechanism == "sequence":
        counted[0] += 2 * 4 * 12  # asked once, with the encoder
    else:
        assert len(set(exits)) > 1, exits
    assert counted == wanted[0].tolist()


_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def _attention_flops(query: list[int], key: list[int], *_: Any, **__: Any) -> int:
    """Return the cost of scores and weighted sums, for shapes [B, H, L, d]."""
    rows, heads, length, size = query
    return 4 * rows * heads * length * key[2] * size
