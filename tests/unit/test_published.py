"""Published curves: whole, in order, and found by the name of their data."""

from __future__ import annotations

import pytest

from nmtgrid.base.errors import ConfigError
from nmtgrid.online.published import CURVES, Point, curves, names


def test_lagging_grows_along_every_curve() -> None:
    """By rising k or falling threshold, more is read."""
    for curve in CURVES:
        lags = [point.al for point in curve.points]
        assert lags == sorted(set(lags)), curve.label
        settings = [point.setting for point in curve.points if point.setting is not None]
        assert settings == sorted(settings, reverse=curve.policy == "dynamic")
        assert all(5 < point.bleu < 40 for point in curve.points)


def test_curves_have_names_of_their_own() -> None:
    assert len({(curve.data, curve.label) for curve in CURVES}) == len(CURVES)
    assert all(curve.source for curve in CURVES)


def test_figures_of_the_thesis() -> None:
    pervasive, *_, paths = curves("iwslt14-de-en")
    assert pervasive.points[0] == Point(19.20, -1.26, 1) and pervasive.source == "table D.3"
    assert pervasive.lowercase and Point(30.58, 3.51, 0.3) in paths.points
    assert not any(curve.lowercase for curve in curves("iwslt15-en-vi"))


def test_a_data_set_without_curves() -> None:
    assert "wmt15-de-en" in names()
    with pytest.raises(ConfigError, match=r"no published curves for `iwslt14-de-fr`.*Did you mean"):
        curves("iwslt14-de-fr")
