"""What the laws share: small models of every architecture, ragged batches, slow references.

The laws are not told which architectures there are: `cases` asks the zoo, shrinks each one by the
names of its settings, and then turns every choice that its configuration offers, one at a time
(and each pair of the choices in `CROSSED`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import typing
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nmtgrid.base.rows import take
from nmtgrid.data.batches import Batch, collate
from nmtgrid.models import zoo
from nmtgrid.models.api import Sites, TranslationModel
from nmtgrid.text.vocabulary import BEGIN

SOURCE_TYPES, TARGET_TYPES = 19, 13
LIMIT = 1e-5
"""How far log-probabilities may differ."""

TINY = {
    "depth": 2, "layers": 2, "encoder_depth": 2, "decoder_depth": 2, "size": 8, "hidden_size": 8,
    "embedding_size": 6, "feed_forward_size": 12, "heads": 2, "kernel": 3, "target_kernel": 5,
    "source_kernel": 3, "growth": 4, "bottleneck": 2, "window": 3,
}  # fmt: skip
"""Small values of the settings that architectures have, by name."""
CROSSED = ("skip", "aggregation")
"""Choices that are tried in all combinations."""

NEEDS: dict[str, tuple[tuple[str, Any], ...]] = {
    "reader": (("source_causal", True),),
    "reader_detached": (("source_causal", True), ("reader", "shared")),
}
"""What must be chosen beside a choice of this name."""

READERS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("reader_depth", (3,)),
    ("online_features", ("cell", "grid")),
    ("skip", ("dense",)),
    ("tie", ("all",)),
)
"""What each reader is tried with in the laws of reading probabilities."""

ONLINE: tuple[tuple[tuple[str, ...], tuple[tuple[str, Any], ...]], ...] = (
    (("encoder", "source_marker"), ()),
    (("encoder", "transparent"), ()),
    # Of few channels none may change from one row to the next where the max is over both.
    (("aggregation", "online_features"), (("source_causal", True), ("size", 24))),
    (("skip",), (("source_causal", True),)),
)
"""Choices of online models that are tried in all combinations, beside fixed ones."""


@dataclasses.dataclass(frozen=True)
class Case:
    """An architecture with small settings; `dropout` is off unless asked."""

    arch: str
    settings: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        shown = "-".join(f"{name}={value}" for name, value in self.settings)
        return f"{self.arch}{'-' if shown else ''}{shown}"

    def changes(self) -> frozenset[tuple[str, Any]]:
        """Return the settings that are not the architecture's defaults."""
        base = zoo.architectures().get(self.arch).config()
        return frozenset(item for item in self.settings if item[1] != getattr(base, item[0]))

    def build(
        self, source_types: int = SOURCE_TYPES, target_types: int = TARGET_TYPES,
        *, dropout: float = 0.0,
    ) -> TranslationModel:  # fmt: skip
        """Return the model with drawn weights, in evaluation mode."""
        config = zoo.architectures().get(self.arch).config
        known = {field.name for field in dataclasses.fields(config)}
        changes: dict[str, Any] = {name: held for name, held in TINY.items() if name in known}
        changes |= {name: dropout for name in known if name.endswith("dropout")}
        changes |= dict(self.settings)
        if changes.get("tie") == "all":
            source_types = target_types
        model = zoo.build(
            self.arch, overrides=changes,
            source_vocab_size=source_types, target_vocab_size=target_types,
        )  # fmt: skip
        return shake(model).eval()


def cases() -> list[Case]:
    """Return every architecture in every form that its choices offer."""
    found: list[Case] = []
    for arch in zoo.architectures():
        config = zoo.architectures().get(arch).config
        choices = _choices(config)
        crossed = {name: values for name, values in choices.items() if name in CROSSED}
        found += [
            Case(arch, tuple(zip(crossed, values, strict=True)))
            for values in itertools.product(*crossed.values())
        ]
        single = {name: values for name, values in choices.items() if name not in CROSSED}
        found += [
            Case(arch, (*NEEDS.get(name, ()), (name, value)))
            for name, values in single.items()
            for value in values
            if value != getattr(config(), name)
        ]
        found += [
            Case(arch, (("skip", "dense"), (name, False)))
            for name in choices
            if name.startswith("dense_")
        ]
        found += _together(arch, choices, {case.changes() for case in found if case.arch == arch})
    return found


def _together(
    arch: str, choices: dict[str, tuple[Any, ...]], known: set[frozenset[tuple[str, Any]]]
) -> list[Case]:
    """Return the combinations of choices that matter to each other when a model goes online."""
    found = []
    fields = {field.name for field in dataclasses.fields(zoo.architectures().get(arch).config)}
    for names, fixed in ONLINE:
        if not {*names, *dict(fixed)} <= fields:
            continue
        for values in itertools.product(*(choices[name] for name in names)):
            case = Case(arch, (*fixed, *zip(names, values, strict=True)))
            if case.changes() not in known:
                known.add(case.changes())
                found.append(case)
    return found


@functools.cache
def online_cases() -> list[Case]:
    """Return the cases whose models serve limited reads."""
    return [case for case in cases() if case.build().traits.prefix_safe]


@functools.cache
def reader_cases() -> list[Case]:
    """Return the cases whose models have a reader, and more of their kind."""
    found = [case for case in cases() if case.build().traits.reads]
    more = [
        Case(case.arch, (*case.settings, (name, value)))
        for case in found
        if not dict(case.settings).get("reader_detached")
        for name, values in READERS
        for value in values
    ]
    return found + more


def basic_cases() -> list[Case]:
    """Return one case for each architecture, for laws that cost more."""
    return [Case(arch) for arch in zoo.architectures()]


def _choices(config: type[Any]) -> dict[str, tuple[Any, ...]]:
    """Return the settings of `config` with few values: named choices, yes and no."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, hint in typing.get_type_hints(config).items():
        if typing.get_origin(hint) is typing.Literal:
            found[name] = typing.get_args(hint)
        elif hint is bool:
            found[name] = (False, True)
    return found


def shake(model: TranslationModel, amount: float = 0.15) -> TranslationModel:
    """Move every parameter at random, masked taps and zero biases too, so that nothing is idle.

    Running statistics move too: means are added to, variances stay above zero.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * amount)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.add_(torch.randn_like(buffer) * amount)
            elif name.endswith("running_var"):
                buffer.mul_(torch.exp(torch.randn_like(buffer) * amount))
    return model


def ragged_batch(
    source_lengths: Sequence[int],
    target_lengths: Sequence[int],
    source_types: int = SOURCE_TYPES,
    target_types: int = TARGET_TYPES,
) -> Batch:
    """Return random sentences of these lengths, the end symbol not counted."""

    def draw(lengths: Sequence[int], types: int) -> list[list[int]]:
        return [torch.randint(3, types, (length,)).tolist() for length in lengths]

    return collate(draw(source_lengths, source_types), draw(target_lengths, target_types))


def batch_for(
    model: TranslationModel,
    source_lengths: Sequence[int] = (7, 4, 0, 9),
    target_lengths: Sequence[int] = (3, 21, 5, 0),
) -> Batch:
    """Return random sentences of these lengths, whose tokens `model` knows.

    One source and one target are empty; one target is long enough for every cache to turn over.
    """
    types = model.classifier().weight.shape[0]
    return ragged_batch(source_lengths, target_lengths, min(types, SOURCE_TYPES), types)


def teacher_forced(model: TranslationModel, batch: Batch, sites: Sites | None = None) -> Tensor:
    """Return log-probabilities [B, T, V] of what follows each true prefix, zero on padding."""
    sites = sites or Sites.offline(batch)
    logits = model.classify(model.features(batch, sites))
    found = logits.new_zeros(*batch.target_input.shape, logits.shape[-1])
    return found.index_put((sites.sentence, sites.position), logits.log_softmax(-1))


def random_path(batch: Batch, seed: int = 0) -> Tensor:
    """Return reads [B, T] that rise at random from 1 or more to at most each source's length."""
    draw = torch.Generator().manual_seed(seed)
    shares = torch.rand(batch.target_input.shape, generator=draw).sort(1).values
    return 1 + (shares * batch.source_lengths[:, None]).long()


def stepwise(
    model: TranslationModel,
    batch: Batch,
    steps: int | None = None,
    *,
    align: bool = False,
    path: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Any]:
    """Feed the true prefixes step by step, reading along `path` [B, T] if there is one.

    Returns log-probabilities [B, T, V], alignments [B, T, S] (None unless asked) and the state.
    """
    state = model.begin(batch.source, batch.source_lengths)
    values, alignments = [], []
    for place in range(batch.target_input.shape[1] if steps is None else steps):
        tokens = batch.target_input[:, place]
        if path is None:
            step = model.step(tokens, state, align=align)
        else:
            step = model.step(tokens, state, reads=path[:, place], align=align)
        state = step.state
        values.append(step.logits.log_softmax(-1))
        if align:
            assert step.alignment is not None
            alignments.append(step.alignment)
    return torch.stack(values, 1), torch.stack(alignments, 1) if align else None, state


def readings(
    model: TranslationModel, batch: Batch, path: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Consider and write the true prefixes; return reading logits and log-probabilities.

    The first are [B, T, S], the second [B, T, V], of reads along `path` [B, T] (None: the whole
    source).
    """
    state = model.begin(batch.source, batch.source_lengths)
    logits, values = [], []
    for place in range(batch.target_input.shape[1]):
        tokens = batch.target_input[:, place]
        state = model.consider(tokens, state)
        logits.append(model.reading_row(state))
        reads = None if path is None else path[:, place]
        step = model.step(tokens, state, reads=reads)
        state = step.state
        values.append(step.logits.log_softmax(-1))
    return torch.stack(logits, 1), torch.stack(values, 1)


def score_sentence(
    model: TranslationModel, source: Sequence[int], target: Sequence[int]
) -> list[float]:
    """Return the log-probability of each target token and the end symbol, by teacher forcing."""
    batch = collate([source], [target])
    values = teacher_forced(model, batch)
    return values[0].gather(1, batch.target_output[0][:, None])[:, 0].tolist()


def next_log_probabilities(
    model: TranslationModel, source: Sequence[int], prefix: Sequence[int]
) -> Tensor:
    """Return [V], what may follow `prefix`, computed anew from nothing."""
    return teacher_forced(model, collate([source], [prefix]))[0, -1]


def target_embeddings(model: TranslationModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return log-probabilities [B, T, V] and the embedded target [B, T, D] they came from.

    The embeddings are cut off as leaves, found as the output of whichever module was given the
    target's token ids, so no architecture has to say where they are.
    """
    caught: list[Tensor] = []

    def catch(module: nn.Module, given: tuple[Any, ...], output: Any) -> Any:
        first = given[0] if given else None
        wanted = batch.target_input
        if caught or not isinstance(first, Tensor) or not isinstance(output, Tensor):
            return None
        if first.dtype != wanted.dtype or first.shape != wanted.shape or output.dim() != 3:
            return None
        if not torch.equal(first, wanted):
            return None
        caught.append(output.detach().requires_grad_())
        return caught[0]

    hooks = [module.register_forward_hook(catch) for module in model.modules()]
    try:
        values = teacher_forced(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    assert caught, "no module of this model was called with the target's token ids"
    return values, caught[0]


def take_rows(state: Any, rows: Sequence[int]) -> Any:
    """Return `state` with `rows`, by the one function that search uses."""
    return take(state, torch.tensor(rows))


def begin_tokens(rows: int) -> Tensor:
    """Return the begin symbol for each row."""
    return torch.full((rows,), BEGIN)


def assert_close(found: Tensor, wanted: Tensor, limit: float = LIMIT) -> None:
    """Fail when two sets of log-probabilities differ by more than `limit` anywhere."""
    assert found.shape == wanted.shape
    difference = (found - wanted).abs().max().item()
    assert difference <= limit, f"differs by {difference:.2e}, allowed are {limit:.0e}"
