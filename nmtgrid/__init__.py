"""Neural machine translation on the source-target grid, from raw text to scored translations.

Data flows one way, and each arrow is one record type:

    raw text -> tokens -> Dataset -> Batch -> features at PredictionSites -> Loss -> model directory
    model directory -> Hypothesis -> text, traces, scores, pictures

Read it in this order, which is not that of imports: those run down the floors of
`tests/test_floors.py`, `layers/` and `metrics/` being low ones.

1. `base/`      errors that say what to do next, configurations, rows of a state, storage
2. `text/`      Moses tokenisation, byte-pair encoding, vocabularies; `pipeline` puts them together
3. `data/`      the dataset directory, `Batch`, and the toy corpus
4. `models/api` the one protocol of every architecture; then `models/pervasive` and `models/zoo`
5. `layers/`    what the models are made of; `layers/kernels` holds each fast form beside its twin
6. `search/`    the one decoding loop
7. `training/`  objectives, optimisers, and a training loop that yields events
8. `online/`, `adaptive/`, `smoothing/`: chapters 4 and 5 and appendix E, beside each other
9. `metrics/`, `analysis/`, `cli/`: scores, pictures, and a thin command line over all of it

`convert/` reads and writes models of other toolkits; nothing stands on it but its command.

`tests/laws/` holds what every architecture must obey.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nmtgrid.search.translate import load as load

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    # `import nmtgrid` and `nmtgrid --help` must stay quick: torch is loaded only for `load`.
    if name == "load":
        from nmtgrid.search.translate import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
