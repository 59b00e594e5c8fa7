"""The list of all objectives, which `train` looks up by name, and their smoothing."""

from __future__ import annotations

from nmtgrid.adaptive.halting_objective import EXITS_HALTING
from nmtgrid.adaptive.objectives import EXITS_ALIGNED, EXITS_MIXED
from nmtgrid.online.objectives.divergence import DIVERGENCE
from nmtgrid.online.objectives.dynamic import DYNAMIC
from nmtgrid.online.objectives.itst import ITST
from nmtgrid.online.objectives.marginal import MARGINAL
from nmtgrid.online.objectives.mma import MMA
from nmtgrid.online.objectives.wait_info import WAIT_INFO
from nmtgrid.online.objectives.wait_k import WAIT_K, WAIT_K_AREA, WAIT_K_SAMPLED
from nmtgrid.smoothing.objectives import smooth
from nmtgrid.training.api import Objectives
from nmtgrid.training.likelihood import LIKELIHOOD

# In alphabetical order, as `--list` and the reference show them.
objectives = Objectives(
    (
        DIVERGENCE,
        DYNAMIC,
        EXITS_ALIGNED,
        EXITS_HALTING,
        EXITS_MIXED,
        ITST,
        LIKELIHOOD,
        MARGINAL,
        MMA,
        WAIT_INFO,
        WAIT_K,
        WAIT_K_AREA,
        WAIT_K_SAMPLED,
    ),
    smooth,
)
