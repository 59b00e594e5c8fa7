"""User-defined latency metrics: functions in an imported file (`--import FILE`)."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from nmtgrid.base.errors import ConfigError, nearest
from nmtgrid.base.own_code import ADVICE, imported_name, own_definitions
from nmtgrid.base.spans import shortened
from nmtgrid.metrics.latency import METRICS, Metric, own_latency

_TRIAL = ([1.0, 2.0, 2.0], 2.0, 3.0)


def read_metrics(names: Iterable[str]) -> dict[str, Metric]:
    """Return the metrics of these names, or of FILE.py:function.

    Each is tried on delays of 1, 2 and 2 of a source of 2 and a target of 3. Raises ConfigError
    that names every fault: a function that there is not or that fails, and a name that is taken.
    """
    metrics: dict[str, Metric] = {}
    faults: list[str] = []
    for text in names:
        try:
            name = imported_name(text)
            metric = _function(name)
            if name in metrics or name in METRICS:
                raise ConfigError(f"There are two latency metrics `{name}`.", "Rename yours.")
            own_latency(name, metric, *_TRIAL, "a trial, delays 1, 2, 2 of 2 source units")
            metrics[name] = metric
        except ConfigError as error:
            faults.append(str(error))
    if faults:
        raise ConfigError(faults)
    return metrics


def _function(name: str) -> Metric:
    own = own_definitions(inspect.isfunction)
    if name not in own:
        advice = f"{nearest(name, own)} {ADVICE}".strip()
        raise ConfigError(f"There is no latency metric `{shortened(name)}`.", advice)
    metric: Metric = own[name]
    return metric
