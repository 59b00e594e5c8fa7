"""What objectives say of exit predictors and classifiers that they would not train."""

from __future__ import annotations

import pytest

from nmtgrid.adaptive.objectives import Aligned, AlignedSettings, Mixed, MixedSettings
from nmtgrid.base.errors import ConfigError
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from tests.unit.test_exit_objectives import model


def test_predictors_and_classifiers_that_nothing_trains(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for objective in (Aligned(AlignedSettings()), Mixed(MixedSettings())):
        with pytest.raises(ConfigError, match=r"halting=geometric.*as it was drawn"):
            objective.check(model(halting="geometric"))
    plain = Likelihood(LikelihoodSettings())
    plain.check(model(exits="tied"))
    assert capsys.readouterr().err == ""
    plain.check(model(exits="separate", halting="sequence"))
    told = " ".join(capsys.readouterr().err.split())
    assert "`model.exits=separate`" in told and "`model.halting=sequence`" in told
    plain.check(model(exits="separate"))
    told = " ".join(capsys.readouterr().err.split())
    assert "does not train the classifiers" in told and "predictor (" not in told
