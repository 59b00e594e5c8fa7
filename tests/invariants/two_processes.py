"""Runs one of two processes that train every architecture together; not a test itself.

    RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=... MASTER_PORT=... python -m ... FOLDER

The first one writes the weights of each case after `UPDATES` updates into FOLDER: with whole
weights in each process, with shards of them, and with whole weights that Muon moves.
"""

import contextlib
import hashlib
import sys
from pathlib import Path

import torch
from torch import Tensor

from nmtgrid.base.io.arrays import save_tensors
from nmtgrid.training.distributed import Processes, process_group, processes_from_environment
from nmtgrid.training.likelihood import Likelihood, LikelihoodSettings
from nmtgrid.training.optimiser import make_optimiser
from nmtgrid.training.settings import TrainingSettings
from nmtgrid.training.trained_model import ShardedModel, TrainedModel
from nmtgrid.training.update import Updater, UpdateResult
from tests.invariants.helpers import Case, basic_cases, batch_for, frozen_statistics

UPDATES = 2
RATES = {"whole": 0.5, "shards": 0.5, "muon": 0.01}
"""The learning rates of each kind of training."""
SETTINGS = {
    "whole": TrainingSettings(optimiser="nesterov", momentum=0.9),
    # With such a large epsilon a step is proportional to the gradient, as with the others.
    "shards": TrainingSettings(epsilon=1.0),
    "muon": TrainingSettings(optimiser="muon"),
}


def train(
    case: Case, processes: Processes, kind: str = "whole"
) -> tuple[dict[str, Tensor], UpdateResult]:
    """Return the weights after a few updates of two different batches each, and the last result."""
    torch.manual_seed(3)
    model, device = case.build(), torch.device("cpu")
    objective = Likelihood(LikelihoodSettings(label_smoothing=0.1))
    trained = TrainedModel(model, objective)
    if kind == "shards" and processes.count > 1:
        trained = ShardedModel(model, objective, processes, device)
    optimiser = make_optimiser(model, SETTINGS[kind])
    updater = Updater(trained, optimiser, device, bf16=False, clip_norm=1.0, processes=processes)
    # Statistics of a batch would be those of each process' share.
    freeze = frozen_statistics(model) if model.traits.batch_statistics else contextlib.nullcontext()
    with freeze:
        for number in range(UPDATES):
            torch.manual_seed(number)
            batches = [
                batch_for(model, (7, 4, 1, 9), (3, 8, 5, 2)),
                batch_for(model, (2, 5), (6, 1 + number)),
            ]
            share = processes.share([batch.source.numel() for batch in batches])
            result = updater.apply([batches[index] for index in share], RATES[kind])
    return trained.copy(), result


def main() -> None:
    """Train all cases together with the other process."""
    processes, folder = processes_from_environment(), Path(sys.argv[1])
    torch.set_num_threads(1)
    with process_group(processes, torch.device("cpu")):
        for case in basic_cases():
            for kind in RATES:
                weights, result = train(case, processes, kind)
                sums = [result.loss, result.nll, result.gradient_norm]
                tensors = {f"weights|{name}": value for name, value in weights.items()}
                tensors["sums"] = torch.tensor(sums, dtype=torch.float64)
                tensors["counts"] = torch.tensor([result.tokens, result.pairs, result.cells])
                data = b"".join(weights[name].numpy().tobytes() for name in sorted(weights))
                digests = processes.gather(hashlib.sha256(data).digest())
                tensors["copies"] = torch.tensor(len(set(digests)))
                if processes.is_first:
                    save_tensors(folder / f"{case}-{kind}.safetensors", tensors)


if __name__ == "__main__":
    main()
