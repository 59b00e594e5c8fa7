"""`online-eval --allow-loss`: chooses, prints and stores a setting with a guaranteed loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nmtgrid.base import console
from nmtgrid.base.errors import NmtgridError
from nmtgrid.cli.guarantees import print_certified, print_uncertified
from nmtgrid.cli.online_eval.arguments import OnlineEvalArguments
from nmtgrid.cli.online_eval.files import System
from nmtgrid.metrics.risk_control import Guarantee, halves
from nmtgrid.online.calibrate import OFFLINE, Calibrated, Candidate, calibrate, losses
from nmtgrid.online.evaluate import Decoded, Sentence, sentence_latencies
from nmtgrid.online.policy_presets import POLICY_FILE, Conditions, PolicyPreset
from nmtgrid.online.settings import KINDS, Setting


def conditions_of(arguments: OnlineEvalArguments) -> Conditions:
    """Return the decoding conditions of the command."""
    return Conditions(
        arguments.beam, arguments.finish_reading, arguments.source, arguments.exit,
        bool(arguments.ensemble),
    )  # fmt: skip


def calibrated_settings(
    arguments: OnlineEvalArguments,
    guarantee: Guarantee,
    system: System,
    sentences: Sequence[Sentence],
) -> tuple[list[Setting], NmtgridError | None]:
    """Return offline translation and the certified setting, if any, and why it was not stored.

    The evaluation goes on in any case. Raises ConfigError if there are too few sentences.
    """
    # Offline settings are not candidates: they neither lose nor gain anything.
    candidates = [setting for setting in system.settings if not setting.is_offline]
    usable = [sentence for sentence in sentences if sentence.source]
    parts = halves(usable, arguments.seed)
    counts = dict(zip(("ordering", "testing"), map(len, parts), strict=True))
    with console.progress("calibrating") as bar:

        def advance(stage: str, setting: Setting, lines: int) -> None:
            bar.stage(f"calibrating, {stage}")
            # Offline translation is decoded as well; testing may end early.
            total = counts[stage] * (len(candidates) + 1)
            bar.update(advance=lines, total=total, note=setting.title)

        def latency(half: Sequence[Sentence], decoded: Decoded) -> float:
            latencies = sentence_latencies(half, decoded.outcomes, system.joiner)
            mean = latencies[arguments.latency_unit, arguments.latency_convention].mean()
            return mean.dal if arguments.latency == "dal" else mean.al

        calibrated = calibrate(
            system.decoder, candidates, sentences, guarantee, latency, arguments.seed, advance,
            system.language,
        )  # fmt: skip
    values = system.calibrated = {
        "split": arguments.chosen_split,
        "latency_metric": arguments.latency or "al",
        "seed": arguments.seed,
        **calibrated.values(),
        "stored": None,
    }
    _show(arguments, system, calibrated)
    chosen = calibrated.chosen
    if chosen is None:
        print_uncertified(values, "settings", "offline translation")
        return [OFFLINE], None
    fault = None
    if arguments.keep:
        fault = _keep(arguments, guarantee, system, chosen.candidate.setting, chosen.mean_loss)
    return [OFFLINE, chosen.candidate.setting], fault


def conclude(arguments: OnlineEvalArguments, system: System) -> None:
    """Print the certified setting, and whether the bound holds on the test split, if evaluated."""
    values, guarantee = system.calibrated, arguments.guarantee
    if values is None or guarantee is None or not values["certified"]:
        return
    # After an interruption there may be only offline translation, or nothing.
    if arguments.test_split and len(system.done) > 1:
        offline, online = (measured.decoded for measured in system.done)
        lost = losses(guarantee.risk, offline, online, system.sentences, system.language)
        values["test"] = guarantee.outside(arguments.test_split, lost)
    print_certified(values)
    metric = values["latency_metric"].upper()
    console.say(
        f'`--policy "{values["setting"]}"`: {metric} {_number(values["latency"])}, offline '
        f"{_number(values['offline_latency'])} (source {arguments.latency_unit}s)"
        + (f"; stored as `--policy {values['stored']}`." if values["stored"] else ".")
    )


def _show(arguments: OnlineEvalArguments, system: System, calibrated: Calibrated) -> None:
    """Print the candidates from the slowest to the fastest, with the results of their tests."""
    calibration = calibrated.calibration
    guarantee = calibration.guarantee
    tested = {result.candidate: result for result in calibration.tested}

    def row(candidate: Candidate) -> list[Any]:
        numbers = [_number(candidate.latency), f"{100 * candidate.loss:.2f}"]
        if (result := tested.get(candidate)) is None:
            return [candidate.setting.title, *numbers, "-", "-", "not tested"]
        outcome = "passed" if result.passed else "failed"
        return [
            candidate.setting.title, *numbers, f"{100 * result.mean_loss:.2f}",
            f"{result.p_value:.2g}", outcome,
        ]  # fmt: skip

    # NaN means that nothing was written, which counts as fastest.
    slowest_first = sorted(
        calibrated.candidates,
        key=lambda candidate: math.inf if math.isnan(candidate.latency) else -candidate.latency,
    )
    metric = (arguments.latency or "al").upper()
    console.table(
        f"{system.name}, {arguments.chosen_split}: mean loss ({guarantee.risk}, percent) against "
        f"offline translation,\nwhose {metric} is {_number(calibrated.offline_latency)}; ordered "
        f"on {calibrated.ordering_sentences:,} sentences, tested on {calibration.count:,} others "
        f"for at most {guarantee.allowed:g}\nwith confidence {guarantee.confidence:g}; not "
        "tested: beaten in both by another, or after a failure",
        ["", metric, "loss, ordering", "loss, testing", "p-value", ""],
        [row(candidate) for candidate in slowest_first],
        [False, True, True, True, True, False],
    )


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.2f}"


def _keep(
    arguments: OnlineEvalArguments,
    guarantee: Guarantee,
    system: System,
    setting: Setting,
    loss: float,
) -> NmtgridError | None:
    """Store the setting in the model directory; return the error if that fails."""
    assert system.calibrated is not None
    if setting.policy not in KINDS:
        console.say(
            "note: the setting is not stored, because your own policy is code and model "
            "directories contain none."
        )
        return None
    loaded = system.loaded
    try:
        preset = PolicyPreset(
            f"{arguments.name or setting.policy}-loss{guarantee.allowed:g}",
            setting.text,
            arguments.chosen_split,
            guarantee.risk,
            guarantee.allowed,
            guarantee.confidence,
            100 * loss,
            conditions_of(arguments),
            loaded.weights,
            loaded.checksum,
        )
        POLICY_FILE.save(loaded.folder, [preset])
    except NmtgridError as fault:
        return fault
    system.calibrated["stored"] = preset.name
    return None
