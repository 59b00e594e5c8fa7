"""nmtgrid in the comparison with peers: the trainer's updates and the decoding loop."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from benchmarks.peers.worker import Task, by_length
from nmtgrid import __version__
from nmtgrid.base.devices import find_device, keep_memory
from nmtgrid.data.batches import BatchPlan, DataCursor, collate
from nmtgrid.data.dataset import Dataset
from nmtgrid.layers.kernels.packed_weights import Packing
from nmtgrid.models import zoo
from nmtgrid.models.directory import load_model
from nmtgrid.search import engine
from nmtgrid.search.api import SearchPlan
from nmtgrid.search.precision import prepare
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from nmtgrid.training.optimiser import make_optimiser
from nmtgrid.training.settings import TrainingSettings
from nmtgrid.training.trained_model import TrainedModel
from nmtgrid.training.update import Updater


def model_settings(task: Task) -> dict[str, object]:
    """Return the settings of the common model under the names of the zoo."""
    return {
        "encoder_depth": task["depth"], "decoder_depth": task["depth"], "size": task["size"],
        "feed_forward_size": task["forward_size"], "heads": task["heads"], "norm": "pre",
        "tie": "target", "dropout": task["dropout"], "embedding_dropout": task["dropout"],
        "attention_dropout": task["dropout"], "activation_dropout": task["dropout"],
    }  # fmt: skip


class System:
    """Trains with `Updater.apply`, translates with `search.engine`."""

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(1)
        # As `decode` does.
        find_device("cpu")
        keep_memory()
        self.version = __version__
        self.task = task
        self.bf16 = task.get("bf16", False)
        dataset = Dataset.open(task["data"])
        self.pairs, self.pipeline = dataset.split("train"), dataset.pipeline
        torch.manual_seed(1)
        model = zoo.build(
            "transformer", None, model_settings(task),
            source_vocab_size=len(self.pipeline.source_vocabulary),
            target_vocab_size=len(self.pipeline.target_vocabulary),
        )  # fmt: skip
        settings = TrainingSettings(optimiser="adam", weight_decay=0.0)
        objective = Likelihood(LikelihoodSettings(label_smoothing=task["label_smoothing"]))
        self.updater = Updater(
            TrainedModel(model, objective), make_optimiser(model, settings), torch.device("cpu"),
            bf16=self.bf16, clip_norm=task["clip_norm"],
        )  # fmt: skip
        plan = BatchPlan(
            self.pairs.source_lengths, self.pairs.target_lengths, task["batch_tokens"],
            0, 0, 1,
        )  # fmt: skip
        self.walk = plan.walk(DataCursor.begin())
        model = load_model(task["model"]).model
        precisions: dict[str, Packing] = {
            "float32": "bf16" if self.bf16 else "fp32", "int8": "int8",
        }  # fmt: skip
        self.decoding = {name: prepare([model], kind) for name, kind in precisions.items()}
        lines = Path(task["test"]["source"]).read_text(encoding="utf-8").splitlines()
        self.sources = [line.split() for line in lines]

    def train(self, seconds: float) -> tuple[int, int]:
        """Run updates until the time is over."""
        tokens = updates = 0
        end = time.process_time() + seconds
        while time.process_time() < end:
            _, indices = next(self.walk)
            batch = self.pairs.batch(indices)
            tokens += self.updater.apply([batch], self.task["learning_rate"]).tokens
            updates += 1
        return tokens, updates

    def translate(self, beam: int, quantization: str, count: int) -> list[list[str]]:
        """Return the translations of the test sentences, from units to units."""
        read = self.pipeline.source_vocabulary.encode
        write = self.pipeline.target_vocabulary.decode
        sources = [read(line) for line in self.sources[:count]]
        translations: list[list[str]] = [[] for _ in sources]
        plan = SearchPlan(beam=beam)
        models, needs_autocast = self.decoding[quantization]
        for places in by_length(sources, self.task["sentences"]):
            chosen = [sources[index] for index in places]
            batch = collate(chosen, [[]] * len(chosen))
            with torch.autocast("cpu", torch.bfloat16, enabled=needs_autocast):
                some = engine.search(models, batch.source, batch.source_lengths, plan)
            for index, hypotheses in zip(places, some, strict=True):
                translations[index] = write(hypotheses[0].tokens)
        return translations
