"""Latency metrics of one's own: functions in a file, FILE.py:function."""

from __future__ import annotations

from collections.abc import Iterable

from nmtgrid.base.errors import ConfigError, nearest
from nmtgrid.base.own_code import own_module
from nmtgrid.metrics.latency import METRICS, Metric, own_latency

_TRIAL = ([1.0, 2.0, 2.0], 2.0, 3.0)


def read_metrics(texts: Iterable[str]) -> dict[str, Metric]:
    """Return metrics by name, from texts such as `mine.py:late_words`.

    Each is tried on delays of 1, 2 and 2 of a source of 2 and a target of 3. Raises ConfigError
    that names every fault: a file or a function that there is not or that fails, and a name that
    is taken.
    """
    metrics: dict[str, Metric] = {}
    faults: list[str] = []
    for text in texts:
        try:
            name, metric = _read(text)
            if name in metrics or name in METRICS:
                raise ConfigError(f"There are two latency metrics `{name}`.", "Rename yours.")
            own_latency(name, metric, *_TRIAL, "a trial, delays 1, 2, 2 of 2 source units")
            metrics[name] = metric
        except ConfigError as error:
            faults.append(str(error))
    if faults:
        raise ConfigError(faults)
    return metrics


def _read(text: str) -> tuple[str, Metric]:
    path, name, module = own_module(text, "FILE.py:function", "--metric mine.py:late_words")
    own = {
        key: value
        for key, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", "") == module.__name__
    }
    if name not in own:
        problem = f"{path} has no function `{name}`."
        if name in vars(module):
            problem = f"`{name}` in {path} is not a function of that file."
        raise ConfigError(problem, nearest(name, own))
    metric: Metric = own[name]
    return name, metric
