"""CTranslate2 in the comparison with peers: decodes a model exported by `nmtgrid export`."""

from __future__ import annotations

from pathlib import Path

import ctranslate2

from benchmarks.peers.worker import Task, by_length
from nmtgrid.search.api import SearchPlan


class System:
    """Translates with `Translator.translate_batch`; it cannot train."""

    def __init__(self, task: Task) -> None:
        self.version = ctranslate2.__version__
        self.task = task
        self.translators = {
            kind: ctranslate2.Translator(
                task["ctranslate2"], device="cpu", compute_type=kind, inter_threads=1,
                intra_threads=1,
            )
            for kind in ("float32", "int8")
        }  # fmt: skip
        lines = Path(task["test"]["source"]).read_text(encoding="utf-8").splitlines()
        self.sources = [line.split() for line in lines]

    def train(self, seconds: float) -> tuple[int, int]:
        """Raise NotImplementedError: CTranslate2 only decodes."""
        raise NotImplementedError("CTranslate2 only decodes")

    def translate(self, beam: int, quantization: str, count: int) -> list[list[str]]:
        """Return the translations of the test sentences.

        The length limit is per batch: the limit of our search for the longest sentence. Without
        one, a few repetitive translations would take much of the time.
        """
        sources = self.sources[:count]
        translations: list[list[str]] = [[] for _ in sources]
        plan = SearchPlan()
        for chosen in by_length(sources, self.task["sentences"]):
            longest = len(sources[chosen[-1]])
            results = self.translators[quantization].translate_batch(
                [sources[index] for index in chosen], beam_size=beam, length_penalty=1.0,
                max_decoding_length=int(plan.max_length_a + plan.max_length_b * longest),
                return_end_token=True,
            )  # fmt: skip
            for index, result in zip(chosen, results, strict=True):
                translations[index] = result.hypotheses[0]
        return translations
