"""`train --tensorboard`: the values of `metrics.jsonl` as TensorBoard events."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from nmtgrid.base.errors import ConfigError
from nmtgrid.training import events
from nmtgrid.training.events import perplexity


def import_tensorboard() -> ModuleType:
    """Return the module that writes events. Raises ConfigError where TensorBoard is missing."""
    try:
        from torch.utils import tensorboard
    except ImportError as fault:
        raise ConfigError(
            f"`--tensorboard` needs the package tensorboard, which is not installed ({fault}).",
            "`pip install tensorboard` (or `pip install nmtgrid[tensorboard]`), or leave the "
            "option out: `metrics.jsonl` has the same figures.",
        ) from fault
    return tensorboard


class TensorBoard:
    """The TensorBoard events of one run; those after `update` are written again."""

    def __init__(self, folder: Path, update: int) -> None:
        self._writer = import_tensorboard().SummaryWriter(
            str(folder), purge_step=update + 1 if update else None
        )

    def write(self, event: events.Event) -> None:
        """Write the figures of `event`, if it has any, at its update."""
        if not isinstance(event, (events.Updated, events.Gradients, events.Validated)):
            return
        for name, value in _scalars(event).items():
            if value is not None:
                self._writer.add_scalar(name, value, event.update)
        if isinstance(event, events.Validated):
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _scalars(
    event: events.Updated | events.Gradients | events.Validated,
) -> dict[str, float | None]:
    match event:
        case events.Updated():
            return {
                "train/loss": event.loss,
                "train/nll": event.nll,
                "train/perplexity": perplexity(event.nll),
                "train/learning_rate": event.learning_rate,
                "train/gradient_norm": event.gradient_norm,
                "train/tokens_per_second": event.tokens_per_second,
                **{f"train/{name}": value for name, value in event.extra.items()},
            }
        case events.Gradients():
            return {
                "gradients/ratio": event.gradient_ratio,
                **{f"gradients/{name}": value for name, value in event.gradients.items()},
            }
        case events.Validated():
            return {
                "valid/nll": event.nll,
                "valid/perplexity": perplexity(event.nll),
                "valid/bleu": event.bleu,
                "valid/cider": event.cider,
                "valid/criterion": event.criterion,
                **{f"valid/nll_{name}": value for name, value in event.losses.items()},
                **{f"valid/{name}": value for name, value in event.extra.items()},
            }
