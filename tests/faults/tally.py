"""Counts of the cases by outcome."""

import dataclasses
from collections import Counter


@dataclasses.dataclass
class Tally:
    """Cases of a command or file by outcome; `faults` describe those that must not happen."""

    cases: int = 0
    outcomes: Counter[str] = dataclasses.field(default_factory=Counter)
    faults: list[str] = dataclasses.field(default_factory=list)

    def add(self, case: str, outcome: str, faults: list[str]) -> None:
        """Count a case."""
        self.cases += 1
        if faults:
            self.faults += [f"{case}: {fault}" for fault in faults]
            outcome = "FAULT"
        self.outcomes[outcome] += 1

    def line(self, name: str) -> str:
        """Return the line of the table."""
        outcomes = ", ".join(
            f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items())
        )
        return f"{name:28} {self.cases:5} cases  {outcomes}"
