"""CTranslate2 in the benchmark of peers: it decodes what `nmtgrid export` wrote."""

from __future__ import annotations

from pathlib import Path

import ctranslate2

from benchmarks.peers.worker import Task


class System:
    """Translates by `Translator.translate_batch`; it cannot train."""

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
        """Refuse."""
        raise NotImplementedError("CTranslate2 only decodes")

    def translate(self, beam: int, quantization: str, count: int) -> list[list[str]]:
        """Return the translations of the test sentences."""
        results = self.translators[quantization].translate_batch(
            self.sources[:count], beam_size=beam, max_batch_size=self.task["sentences"],
            length_penalty=1.0, return_end_token=True,
        )  # fmt: skip
        return [result.hypotheses[0] for result in results]
