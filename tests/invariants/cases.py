"""The cases of the invariant tests: small models of every architecture in every form.

The tests do not name any architectures: `cases` gets them from the zoo, shrinks each by the names
of its settings, and then varies every choice that its configuration offers, one at a time (and each
pair of the choices in `CROSSED`).
"""

import dataclasses
import functools
import itertools
import typing
from typing import Any

import torch

from nmtgrid.models import zoo
from nmtgrid.models.api import Traits, TranslationModel

SOURCE_TYPES, TARGET_TYPES = 19, 13
TINY = {
    "depth": 2, "layers": 2, "encoder_depth": 2, "decoder_depth": 2, "size": 8, "hidden_size": 8,
    "embedding_size": 6, "feed_forward_size": 12, "heads": 2, "kernel": 3, "target_kernel": 5,
    "source_kernel": 3, "growth": 4, "bottleneck": 2, "window": 3,
    "attention_size": 7, "selection_noise": 0.0,
}  # fmt: skip
"""Small values of the settings that architectures have, by name."""
CROSSED = ("skip", "aggregation")
"""Choices that are tested in all combinations."""

NEEDS: dict[str, tuple[tuple[str, Any], ...]] = {
    "reader": (("source_causal", True), ("encoder", "unidirectional")),
    "reader_detached": (("source_causal", True), ("reader", "shared")),
    "halting": (("exits", "tied"),),
}
"""Settings required by a choice of this name, if the architecture has them."""

READERS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("reader_depth", (3,)),
    ("online_features", ("cell", "grid")),
    ("skip", ("dense",)),
    ("tie", ("all",)),
)
"""Settings of each reader in the tests of reading probabilities."""

EXITS: tuple[tuple[tuple[str, Any], ...], ...] = (
    (("exits", "tied"), ("encoder", "unidirectional"), ("alignment", "mean")),
    (("exits", "separate"), ("encoder", "window"), ("norm", "pre")),
    (("exits", "separate"), ("encoder", "unidirectional"), ("halting", "geometric")),
    (("exits", "tied"), ("source_marker", "add-zero"), ("norm", "pre")),
    (("exits", "separate"), ("source_marker", "begin"), ("halting", "sequence")),
    (("exits", "separate"), ("transparent", True), ("norm", "pre")),
    (("exits", "tied"), ("transparent", True), ("encoder", "window")),
    (("exits", "separate"), ("tie", "none"), ("output_bias", True), ("norm", "pre")),
    (("exits", "tied"), ("tie", "all"), ("output_bias", True)),
    (("exits", "separate"), ("encoder_size", 12), ("halting", "sequence"), ("tie", "none")),
)
"""Settings in the tests of exits, in addition to all halting networks for each kind of exits."""

ONLINE: tuple[tuple[tuple[str, ...], tuple[tuple[str, Any], ...]], ...] = (
    (("encoder", "source_marker"), ()),
    (("encoder", "transparent"), ()),
    # With few channels, none may change from one row to the next if the max is over both.
    (("aggregation", "online_features"), (("source_causal", True), ("size", 24))),
    (("skip",), (("source_causal", True),)),
)
"""Choices of online models that are tested in all combinations, together with fixed ones."""


MECHANISMS: tuple[tuple[tuple[str, Any], ...], ...] = (
    (("reader", "transport"), ("encoder", "window"), ("source_marker", "add-zero"),
     ("transparent", True), ("norm", "pre")),
    (("reader", "information"), ("source_marker", "begin"), ("encoder_size", 12)),
)  # fmt: skip
"""Settings of reading mechanisms that are tested in addition to their plain forms."""


@dataclasses.dataclass(frozen=True)
class Case:
    """An architecture with small settings; `dropout` is off by default."""

    arch: str
    settings: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        shown = "-".join(f"{name}={value}" for name, value in self.settings)
        return f"{self.arch}{'-' if shown else ''}{shown}"

    def changes(self) -> frozenset[tuple[str, Any]]:
        """Return the settings that differ from the architecture's defaults."""
        base = zoo.architectures().get(self.arch).config()
        return frozenset(item for item in self.settings if item[1] != getattr(base, item[0]))

    def build(
        self, source_types: int = SOURCE_TYPES, target_types: int = TARGET_TYPES,
        *, dropout: float = 0.0,
    ) -> TranslationModel:  # fmt: skip
        """Return the model with random weights, in evaluation mode."""
        config = zoo.architectures().get(self.arch).config
        known = {field.name for field in dataclasses.fields(config)}
        changes: dict[str, Any] = {name: value for name, value in TINY.items() if name in known}
        changes |= {name: dropout for name in known if name.endswith("dropout")}
        changes |= dict(self.settings)
        if changes.get("tie") == "all":
            source_types = target_types
        model = zoo.build(
            self.arch, overrides=changes,
            source_vocab_size=source_types, target_vocab_size=target_types,
        )  # fmt: skip
        return shake(model).eval()

    @property
    def traits(self) -> Traits:
        """The capabilities of its models."""
        return _traits(self)


@functools.cache
def _traits(case: Case) -> Traits:
    return case.build().traits


def cases() -> list[Case]:
    """Return all architectures with all choices that they offer."""
    every: list[Case] = []
    for arch in zoo.architectures():
        config = zoo.architectures().get(arch).config
        choices = _choices(config)
        crossed = {name: values for name, values in choices.items() if name in CROSSED}
        every += [
            Case(arch, tuple(zip(crossed, values, strict=True)))
            for values in itertools.product(*crossed.values())
        ]
        single = {name: values for name, values in choices.items() if name not in CROSSED}
        every += [
            Case(arch, (*_needs(config, name), (name, value)))
            for name, values in single.items()
            for value in values
            if value != getattr(config(), name)
        ]
        every += [
            Case(arch, (("skip", "dense"), (name, False)))
            for name in choices
            if name.startswith("dense_")
        ]
        if "source_marker" in choices:
            every += [Case(arch, settings) for settings in MECHANISMS]
        every += _together(arch, choices, {case.changes() for case in every if case.arch == arch})
    return every


def _needs(config: type[Any], name: str) -> tuple[tuple[str, Any], ...]:
    known = {field.name for field in dataclasses.fields(config)}
    return tuple(need for need in NEEDS.get(name, ()) if need[0] in known)


def _together(
    arch: str, choices: dict[str, tuple[Any, ...]], known: set[frozenset[tuple[str, Any]]]
) -> list[Case]:
    """Return the combinations of choices that interact in online models."""
    together = []
    fields = {field.name for field in dataclasses.fields(zoo.architectures().get(arch).config)}
    for names, fixed in ONLINE:
        if not {*names, *dict(fixed)} <= fields:
            continue
        for values in itertools.product(*(choices[name] for name in names)):
            case = Case(arch, (*fixed, *zip(names, values, strict=True)))
            if case.changes() not in known:
                known.add(case.changes())
                together.append(case)
    return together


@functools.cache
def online_cases() -> list[Case]:
    """Return the cases whose models support limited reads."""
    return [case for case in cases() if case.traits.prefix_safe]


@functools.cache
def reader_cases() -> list[Case]:
    """Return the cases whose models have a reader, and further variants of them."""
    basic = [case for case in cases() if case.traits.reads]
    more = [
        Case(case.arch, (*case.settings, (name, value)))
        for case in basic
        if not dict(case.settings).get("reader_detached")
        for name, values in READERS
        for value in values
    ]
    return basic + more


@functools.cache
def exit_cases() -> list[Case]:
    """Return the models with exits, with four blocks, in the variants that matter for exits."""
    every = []
    for arch in zoo.architectures():
        choices = _choices(zoo.architectures().get(arch).config)
        if "exits" not in choices:
            continue
        names = ("exits", "halting", "norm")
        kinds = [kind for kind in choices["exits"] if kind != "none"]
        crossed = itertools.product(kinds, choices["halting"], choices["norm"])
        settings = [tuple(zip(names, values, strict=True)) for values in crossed]
        every += [Case(arch, (("decoder_depth", 4), *some)) for some in (*settings, *EXITS)]
    return every


def basic_cases() -> list[Case]:
    """Return one case per architecture, for more expensive tests."""
    return [Case(arch) for arch in zoo.architectures()]


def _choices(config: type[Any]) -> dict[str, tuple[Any, ...]]:
    """Return the settings of `config` with few values: named choices, yes and no."""
    choices: dict[str, tuple[Any, ...]] = {}
    for name, hint in typing.get_type_hints(config).items():
        if typing.get_origin(hint) is typing.Literal:
            choices[name] = typing.get_args(hint)
        elif hint is bool:
            choices[name] = (False, True)
    return choices


def shake(model: TranslationModel, amount: float = 0.15) -> TranslationModel:
    """Perturb all parameters, including masked taps and zero biases, so that none has no effect.

    Running statistics are perturbed too: noise is added to means, and variances stay positive.
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
