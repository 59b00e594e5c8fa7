"""The pictures of `nmtgrid online-eval`: quality against latency, and READ/WRITE paths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nmtgrid.analysis.latency_curves import Curve, Level, Mark, draw_curves
from nmtgrid.analysis.path_grids import Grid, Row, draw_paths
from nmtgrid.cli.online_eval_order import Order
from nmtgrid.cli.online_eval_system import System
from nmtgrid.online.measures import Measured, delays_of_tokens, delays_of_words
from nmtgrid.online.published import curves

_POLICIES = {"wait-k": "wait-k", "threshold": "agent", "oracle": "oracle"}
_SHORTEST, _LONGEST, _SHOWN = 7, 18, 3
"""Source units of sentences whose paths are drawn unasked, and how many."""


def draw_curve(order: Order, systems: Sequence[System], path: Path) -> bool:
    """Draw BLEU against average lagging; return whether there was a point to draw."""
    alone = len(systems) == 1
    found, levels = [], []
    for system in systems:
        prefix = "" if alone else f"{system.name}, "
        for policy, name in _POLICIES.items():
            held = [one for one in system.done if one.decoded.setting.policy == policy]
            marks = _marks(order, [one for one in held if not one.decoded.setting.is_offline])
            if marks:
                found.append(Curve(f"{prefix}{name}", marks, policy))
        levels += [
            Level(prefix, one.tokenized.value)
            for one in system.done
            if one.decoded.setting.is_offline
        ]
    if not found:
        return False
    theirs = [] if order.published is None else _published(order.published)
    name = systems[0].name if alone else f"{len(systems)} systems"
    draw_curves(
        [*found, *theirs],
        levels,
        path,
        title=f"{name} on {order.split}: quality against latency",
        x_label=f"average lagging AL (source {order.unit}s, {order.convention} convention)",
        y_label=f"BLEU, tokenised (percent), {_decoding(order)}",
    )
    return True


def _decoding(order: Order) -> str:
    return "greedy" if order.beam == 1 else f"beam {order.beam}"


def _marks(order: Order, held: Sequence[Measured]) -> list[Mark]:
    """Return the points by rising lagging; the first says whose value stands beside them."""
    points = sorted(held, key=lambda one: one.latencies[order.unit, order.convention].al)
    return [
        Mark(
            one.latencies[order.unit, order.convention].al,
            one.tokenized.value,
            one.decoded.setting.number if place else one.decoded.setting.title,
        )
        for place, one in enumerate(points)
    ]


def _published(name: str) -> list[Curve]:
    return [
        Curve(
            f"{one.label}, {'thesis ' if one.source.startswith('table') else ''}{one.source}",
            [
                Mark(point.al, point.bleu, "" if point.setting is None else f"{point.setting:g}")
                for point in one.points
            ],
            one.policy,
            published=True,
        )
        for one in curves(name)
    ]


def draw_path_grids(order: Order, systems: Sequence[System], path: Path) -> bool:
    """Draw the paths of some sentences under one or two settings; return whether there were any."""
    chosen = compared(order, systems)
    lines = order.lines or _typical(chosen)
    rows = []
    for line in lines if chosen else ():
        sentence = chosen[0][0].sentences[line - 1]
        grids = [_grid(order, system, found, line) for system, found in chosen]
        if any(grid.delays for grid in grids):
            rows.append(Row(f"Line {line}, reference: {sentence.reference}", grids))
    if rows:
        draw_paths(rows, path, title=f"READ/WRITE paths, {order.split}")
    return bool(rows)


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
    order_of = {"threshold": 0, "oracle": 1, "wait-k": 2}
    ranked = sorted(groups, key=lambda key: order_of[key[0]])
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
    title = f"{system.name}, {_POLICIES[setting.policy]}, {setting.title} ({score}, AL {lag:.2f})"
    if order.unit == "word":
        delays = delays_of_words(sentence, outcome, system.joiner)
        return Grid(title, sentence.words, outcome.words.split(" ") if delays else [], delays)
    return Grid(title, sentence.units, outcome.units, delays_of_tokens(sentence, outcome))
