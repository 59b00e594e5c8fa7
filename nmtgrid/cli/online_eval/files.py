"""The pictures of `nmtgrid online-eval`: quality against latency, and READ/WRITE paths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nmtgrid.analysis.latency import draw_curves
from nmtgrid.analysis.latency_results import POLICIES, curves, published, read_results
from nmtgrid.analysis.plotting.paths import Grid, Row
from nmtgrid.cli.online_eval.arguments import Order
from nmtgrid.cli.online_eval.online_eval_system import System
from nmtgrid.online.measures import Measured, delays_of_tokens, delays_of_words

_TOLD_FIRST = ("threshold", "oracle", "wait-k")
_SHORTEST, _LONGEST, _SHOWN = 7, 18, 3
"""Source units of sentences whose paths are drawn unasked, and how many."""


def draw_curve(order: Order, results: Path, path: Path) -> bool:
    """Draw BLEU against average lagging; return whether there was a point to draw."""
    held = read_results(results)
    found, levels = curves(held, "al", order.unit, order.convention)
    if not found:
        return False
    names = list(dict.fromkeys(one.system for one in held))
    name = names[0] if len(names) == 1 else f"{len(names)} systems"
    theirs = [] if order.published is None else published(order.published)
    draw_curves(
        [*found, *theirs],
        levels,
        path,
        title=f"{name} on {order.split}: quality against latency",
        x_label=f"average lagging AL (source {order.unit}s, {order.convention} convention)",
        y_label="BLEU, tokenised (percent), "
        + ("greedy" if order.beam == 1 else f"beam {order.beam}"),
    )
    return True


def path_rows(order: Order, systems: Sequence[System]) -> dict[int, Row]:
    """Return the paths of each line that is asked for, or typical, under one or two settings.

    Lines without a path are left out.
    """
    chosen = compared(order, systems)
    rows = {}
    for line in (order.lines or _typical(chosen)) if chosen else ():
        sentence = chosen[0][0].sentences[line - 1]
        grids = [_grid(order, system, found, line) for system, found in chosen]
        if any(grid.delays for grid in grids):
            rows[line] = Row(f"Line {line}, reference: {sentence.reference}", grids)
    return rows


def compared(order: Order, systems: Sequence[System]) -> list[tuple[System, Measured]]:
    """Return up to two settings to compare, alike in lagging and unlike in how they decide.

    An agent (or else the oracle) in the middle of its range and the wait-k that is nearest in
    average lagging; of two systems the middle wait-k and the nearest; else the least and the
    largest k.
    """
    held = [
        (system, found)
        for system in systems
        for found in system.done
        if not found.decoded.setting.is_offline
    ]

    def lag(pair: tuple[System, Measured]) -> float:
        return pair[1].latencies[order.unit, order.convention].al

    groups: dict[tuple[str, str], list[tuple[System, Measured]]] = {}
    for pair in sorted(held, key=lag):
        groups.setdefault((pair[1].decoded.setting.policy, pair[0].name), []).append(pair)
    names = [system.name for system in systems]
    ranked = sorted(groups, key=lambda key: (_TOLD_FIRST.index(key[0]), names.index(key[1])))
    if not ranked:
        return []
    first = groups[ranked[0]]
    others = [pair for key in ranked[1:] if key[0] == "wait-k" for pair in groups[key]]
    if not others:
        return [first[0], first[-1]] if len(first) > 1 else first
    middle = first[len(first) // 2]
    return [middle, min(others, key=lambda pair: abs(lag(pair) - lag(middle)))]


def _typical(chosen: Sequence[tuple[System, Measured]]) -> list[int]:
    """Return the first lines of middling length, or the first that are translated at all."""
    if not chosen:
        return []
    sentences = chosen[0][0].sentences
    good = [s.line for s in sentences if _SHORTEST <= len(s.source) <= _LONGEST]
    return (good or [s.line for s in sentences if 0 < len(s.source) <= 3 * _LONGEST])[:_SHOWN]


def _grid(order: Order, system: System, found: Measured, line: int) -> Grid:
    sentence, outcome = system.sentences[line - 1], found.decoded.outcomes[line - 1]
    setting = found.decoded.setting
    score = f"BLEU {found.tokenized.value:.2f}"
    lag = found.latencies[order.unit, order.convention].al
    title = f"{system.name}, {POLICIES[setting.policy]}, {setting.title} ({score}, AL {lag:.2f})"
    if order.unit == "word":
        delays = delays_of_words(sentence, outcome, system.joiner)
        return Grid(title, sentence.words, outcome.words.split(" ") if delays else [], delays)
    return Grid(title, sentence.units, outcome.units, delays_of_tokens(sentence, outcome))
