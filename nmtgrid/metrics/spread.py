"""Mean and deviation of the same figure over several runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Return `mean` and sample `standard_deviation` of `values` (one at least; None for one)."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.mean(values), "standard_deviation": deviation}


def shown(found: Mapping[str, float | None], form: str = ".2f") -> str:
    """Return a spread as people write it: the mean, then ± the deviation where there is one."""
    mean, deviation = found["mean"], found["standard_deviation"]
    return f"{mean:{form}}" + ("" if deviation is None else f" ± {deviation:{form.lstrip('+')}}")
