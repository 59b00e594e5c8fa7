"""Warnings about reading policies that miss their purpose, with numbers of sentences.

A policy that reads the whole source before its first write translates offline. A translation that
ends at the length limit has not been ended by the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from nmtgrid.base.errors import listed
from nmtgrid.metrics.latency import Latency
from nmtgrid.online.settings import Setting
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.constraints import length_bounds

_MOST = 0.5
"""Share of the sentences above which a warning is given."""


def ends_at_limit(target_length: int, source_lengths: Iterable[int], plan: SearchPlan) -> bool:
    """Return whether a line's translation has as many tokens as the plan allows for its segments.

    Lengths exclude end symbols.
    """
    lengths = torch.tensor([length + 1 for length in source_lengths])
    return target_length >= int(length_bounds(plan, lengths)[1].sum())


def whole_source_counts(average: Latency) -> tuple[int, int]:
    """Return the number of sentences read completely before the first write, and of all sentences.

    Sentences with an empty source or translation are not counted.
    """
    return average.yaal_skipped - average.skipped, average.sentences - average.skipped


def reads_whole_source(setting: Setting, late: int, written: int) -> bool:
    """Return whether a policy reads the whole source first in most sentences, `late` of `written`.

    False for wait-k, the oracle and settings that are meant to translate offline, where it is
    expected.
    """
    expected = setting.is_offline or setting.policy in ("wait-k", "oracle")
    return not expected and late > _MOST * written


def whole_source_warning(counts: Mapping[str, tuple[int, int]]) -> str:
    """Return a warning about settings that read whole sources first: `counts` by setting title."""
    return (
        f"Nothing was written before the whole source was read: {_counted(counts)}. These "
        "settings translate offline: choose one that writes earlier."
    )


def length_limit_warning(counts: Mapping[str, tuple[int, int]]) -> str:
    """Return a warning about settings with most translations at the length limit; "" for none.

    `counts` are by title, as in `whole_source_warning`.
    """
    unended = {title: pair for title, pair in counts.items() if pair[0] > _MOST * pair[1]}
    if not unended:
        return ""
    return (
        "Translations end at the length limit (`search.max_length_a`, `search.max_length_b`), not "
        f"where the model ends them: {_counted(unended)}. If translations with `--k inf` end "
        "earlier, the policy writes too early for this model; otherwise train the model longer."
    )


def _counted(counts: Mapping[str, tuple[int, int]]) -> str:
    return listed(
        [f"{title} in {n:,} of {total:,} sentences" for title, (n, total) in counts.items()]
    )
