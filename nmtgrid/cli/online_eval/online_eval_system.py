"""A model under evaluation by `nmtgrid online-eval`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from nmtgrid.online.evaluate import OnlineDecoder
from nmtgrid.online.measures import Measured
from nmtgrid.online.sentences import Sentence


@dataclasses.dataclass
class System:
    """A model under evaluation: its sentences, and what has been measured so far."""

    name: str
    folder: Path
    decoder: OnlineDecoder
    sentences: list[Sentence]
    done: list[Measured] = dataclasses.field(default_factory=list)

    @property
    def joiner(self) -> str:
        """What ends a target unit that goes on in the next one."""
        return self.decoder.translator.pipeline.target_joiner
