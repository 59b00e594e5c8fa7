"""The precision of a search on a CPU: as requested, or the fastest in a short measurement.

On a CPU int8 applies only to weights and products, and so does bf16 in models without convolutions:
everything between the products stays in fp32 (layers/kernels/packed_weights.py). Called by
translate.py and by the decoding of streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from nmtgrid.base.errors import ConfigError
from nmtgrid.layers.kernels.packed_weights import Packing, can_pack, with_packed_weights
from nmtgrid.models.api import Halt, TranslationModel, Verified
from nmtgrid.search import engine
from nmtgrid.search.api import SearchPlan
from nmtgrid.text.vocabulary import END, UNKNOWN

Precision = Literal["fp32", "bf16", "int8", "auto"]
_ROUNDS = 3
"""Number of searches with each precision, of which the fastest counts."""
_SENTENCES, _WORDS, _STEPS = 8, 20, 6
_WORTH_ROUNDING = 1.1
"""How many times faster a precision must be than the next finer one to be chosen."""
_REDUCED: tuple[Packing, ...] = ("bf16", "int8")


def check_precision(
    precision: Precision,
    device: torch.device,
    halt: Halt | Verified | None,
    warn: Callable[[str], None],
) -> None:
    """Raise ConfigError if a search does not support this precision; warn if it is slow."""
    if precision == "bf16" and device.type == "cpu" and not can_pack("bf16"):
        warn("slow-precision: this processor has no bf16 products: they are slower than fp32.")
    if precision in ("fp32", "bf16"):
        return
    if device.type != "cpu":
        raise ConfigError(
            f"`--precision {precision}` is for CPUs, but this is `{device.type}`, which has no "
            "8-bit products here.",
            "Take `bf16`, or decode with `--device cpu`.",
        )
    if isinstance(halt, Verified):
        raise ConfigError(
            f"`--precision {precision}` does not support verified exits: in int8 a token's scores "
            "depend on the others in its batch, so drafts would be verified with other scores than "
            "those of a search without exits.",
            "Take `fp32` or `bf16`.",
        )
    if precision == "int8" and not can_pack("int8"):
        raise ConfigError(
            "`--precision int8` needs 8-bit products, which this version of torch does not have "
            "for this processor.",
            "Take `auto`, which measures what there is, or `bf16`.",
        )


def check_stream_precision(precision: Precision) -> None:
    """Raise ConfigError if streams do not support this precision."""
    if precision not in ("fp32", "bf16"):
        raise ConfigError(
            f"`--precision {precision}` does not support streams: in int8 a token's scores depend "
            "on the others in its batch, so the translation of a stream would differ from that of "
            "the same words in a batch.",
            "Take `fp32` or `bf16`.",
        )


def prepare(
    models: Sequence[TranslationModel], precision: Packing
) -> tuple[list[TranslationModel], bool]:
    """Return models for decoding on a CPU with `precision`, and whether they need autocast too."""
    # Convolutions and the operations between them also gain from bf16: autocast, as on a GPU. In
    # the many small steps of other models it costs more time than it saves.
    kernels = any(parameter.dim() > 2 for model in models for parameter in model.parameters())
    if precision == "bf16" and (kernels or not can_pack("bf16")):
        return list(models), True
    return [with_packed_weights(model, precision) for model in models], False


def measure(
    models: Sequence[TranslationModel], plan: SearchPlan, types: int
) -> dict[Packing, float]:
    """Return how many times faster than in fp32 a short search is with each precision.

    The search translates random words of `types`, with the beam of `plan`; precisions take turns.
    """
    kinds: list[Packing] = ["fp32", *[kind for kind in _REDUCED if can_pack(kind)]]
    prepared = {kind: prepare(models, kind) for kind in kinds}
    source = _source(models[0], types)
    lengths = torch.full((_SENTENCES,), _WORDS)
    short = SearchPlan(
        beam=plan.beam, min_length=_STEPS, max_length_a=float(_STEPS), max_length_b=0.0
    )
    seconds = dict.fromkeys(kinds, float("inf"))
    for _ in range(_ROUNDS):
        for kind in kinds:
            members, needs_autocast = prepared[kind]
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=needs_autocast):
                engine.search(members, source, lengths, short)
            seconds[kind] = min(seconds[kind], time.perf_counter() - start)
    return {kind: seconds["fp32"] / spent for kind, spent in seconds.items()}


def choose(ratios: dict[Packing, float]) -> Packing:
    """Return the fastest precision of `measure`, the finer one if they are about as fast."""
    best: Packing = "fp32"
    for kind in _REDUCED:
        if ratios.get(kind, 0.0) >= _WORTH_ROUNDING * ratios[best]:
            best = kind
    return best


def _source(model: TranslationModel, types: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    shape: tuple[int, ...] = (_SENTENCES, _WORDS)
    if model.traits.source_features:
        return torch.randn((*shape, model.traits.source_features), generator=generator)
    source = torch.randint(UNKNOWN, types, shape, generator=generator)
    source[:, -1] = END
    return source
