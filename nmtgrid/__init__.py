"""Neural machine translation on the source-target grid, from raw text to scored translations.

Data flows one way, and each arrow is one record type:

    raw text -> tokens -> Dataset -> Batch -> features at PredictionSites -> Loss -> model directory
    model directory -> Hypothesis -> text, traces, scores, figures

Dependencies are layered, which `tests/test_code_rules.py` enforces; a good order of reading is

1. `base/`      errors that say what to do next, configurations, rows of a state; `io/`: files
2. `text/`      Moses tokenisation, byte-pair encoding, vocabularies; `pipeline` joins them
3. `data/`      the dataset directory, `Batch`; `toy/`: the embedded corpus; `captioning/`
4. `models/api` the one protocol of every architecture; then `models/pervasive` and `models/zoo`
5. `layers/`    the layers of the models; `kernels/` has each fast kernel and its reference
6. `search/`    the one decoding loop
7. `training/`  objectives, optimisers, and a training loop that yields events
8. `online/`    simultaneous translation (chapter 4); `adaptive/`: early exit (chapter 5);
   `smoothing/`: loss smoothing (appendix E)
9. `metrics/`, `analysis/`, `serve/`, `cli/`: scores, figures, a local web page and service, and a
   thin command line

`convert/` reads and writes models of other toolkits. `tests/invariants/` has the invariant tests
that every architecture must pass; `docs/glossary.md` and `docs/equations.md` lead from the terms
and equations of the thesis to the code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nmtgrid.base.errors import NmtgridError as NmtgridError

if TYPE_CHECKING:
    from nmtgrid.adaptive.exit_presets import early_exit as early_exit
    from nmtgrid.online.stream import simultaneous as simultaneous
    from nmtgrid.search.translate import load as load

__version__ = "0.1.0"
__all__ = ["NmtgridError", "__version__", "early_exit", "load", "simultaneous"]


def __getattr__(name: str) -> Any:
    # `import nmtgrid` and `nmtgrid --help` must stay quick: torch is loaded only for these.
    if name == "early_exit":
        from nmtgrid.adaptive.exit_presets import early_exit

        return early_exit
    if name == "load":
        from nmtgrid.search.translate import load

        return load
    if name == "simultaneous":
        from nmtgrid.online.stream import simultaneous

        return simultaneous
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    # Notebooks should complete the names that `__getattr__` loads, too.
    return sorted({*globals(), *__all__})
