"""Printing statistical guarantees (`--allow-loss`) of `adaptive-tune` and `online-eval`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nmtgrid.base import console


def print_certified(values: Mapping[str, Any]) -> None:
    """Print the guarantee, and whether it holds on other sentences.

    `values` has the keys of `Calibration.values`, and `test` with those of `Guarantee.outside`.
    """
    console.say(
        f"Certified: a mean loss ({values['risk']}) of at most {values['allow_loss']:g} with "
        f"confidence {values['confidence']:g}; {values['loss']:.2f} on "
        f"{values['sentences']:,} sentences, p-value {values['p_value']:.2g}."
    )
    if test := values.get("test"):
        holds = "within the bound" if test["holds"] else "above the bound"
        console.say(f"On {test['split']} the loss is {test['loss']:.2f}: {holds}.")


def print_uncertified(values: Mapping[str, Any], candidates: str, baseline: str) -> None:
    """Print why nothing is certified, and how many sentences would suffice, if any number would."""
    safest, needed = values["tested"][0]["loss"], values["needed"]
    lost = f"Even the safest {candidates} lose {safest:.2f} ({values['risk']})"
    if needed is None:
        why = f"{lost}, which is not below {values['allow_loss']:g}: allow more."
    else:
        why = (
            f"{lost} on {values['sentences']:,} sentences; about {needed:,} are needed to "
            "guarantee the bound."
        )
    console.say(f"No {candidates} are certified, so {baseline} is used. {why}")
