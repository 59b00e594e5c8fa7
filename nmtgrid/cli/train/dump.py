"""`train --dump-config`: all settings of a run as a file that `--config` reads."""

from __future__ import annotations

from pathlib import Path

from nmtgrid.base.config import to_json
from nmtgrid.base.config_file import to_toml
from nmtgrid.base.io.text import open_writer
from nmtgrid.cli.train.arguments import TrainArguments
from nmtgrid.training.settings import RunSettings

_HEAD = "# All settings of a training run: `nmtgrid train --config THIS --out MODEL` trains it.\n\n"


def config_text(settings: RunSettings, arguments: TrainArguments) -> str:
    """Return a file of `--config` that gives the same settings, data, device and first weights."""
    values = to_json(settings)
    names = {"arch": values.pop("arch"), "preset": values.pop("preset")}
    options = {
        "data": arguments.data,
        "init": arguments.init,
        "seeds": arguments.seeds,
        "device": None if arguments.device == "auto" else arguments.device,
    }
    names |= {name: str(value) for name, value in options.items() if value is not None}
    objective = {"name": values.pop("objective_name"), **values.pop("objective")}
    plain = {name: value for name, value in names.items() if value is not None}
    return _HEAD + to_toml({**plain, "objective": objective, **values})


def write_config(path: Path, settings: RunSettings, arguments: TrainArguments) -> None:
    """Write that to a file, or for `-` to standard output."""
    with open_writer(path) as file:
        file.write(config_text(settings, arguments).encode("utf-8", "surrogateescape"))
