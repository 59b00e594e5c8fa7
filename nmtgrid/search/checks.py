"""What is wrong with a search before it begins."""

from __future__ import annotations

from collections.abc import Sequence

from nmtgrid.base.errors import ConfigError, ModelError
from nmtgrid.models.api import TranslationModel, with_exits
from nmtgrid.search.api import Agent, Halt, SearchPlan


def check(
    models: Sequence[TranslationModel],
    plan: SearchPlan,
    align: bool = False,
    agent: Agent | None = None,
    halt: Halt | None = None,
) -> None:
    """Raise ConfigError or ModelError when `models` cannot do what is asked of them."""
    if halt is not None:
        _check_halt(models, agent, halt)
    for model in models if agent is not None else ():
        if not model.traits.prefix_safe:
            raise model.refusal()
    if align or plan.coverage_penalty > 0:
        blind = sorted({m.architecture for m in models if not m.traits.aligns})
        if blind:
            what = "Alignments" if align else "`search.coverage_penalty`"
            raise ConfigError(
                f"{what} cannot be had from `{'`, `'.join(blind)}`: "
                "this architecture yields no alignments.",
                "Leave the option away or use a model that aligns.",
            )
    sizes = [model.classifier().weight.shape[0] for model in models]
    if len(set(sizes)) > 1:
        raise ModelError(
            f"The models of an ensemble have target vocabularies of different sizes: {sizes}.",
            "Only models made from one dataset can be averaged.",
        )


def _check_halt(models: Sequence[TranslationModel], agent: Agent | None, halt: Halt) -> None:
    if len(models) > 1:
        raise ConfigError(
            f"Early exit decodes one model at a time, but {len(models)} are averaged here.",
            "Leave `--exit` or `--ensemble` away.",
        )
    with_exits(models[0]).check_halt(halt, has_whole_source=agent is None)
