"""recipes/slurm.sh on a machine without SLURM: what it starts, and how long it waits for it."""

import os
import subprocess
import sys
from pathlib import Path

RECIPE = Path(__file__).resolve().parents[3] / "recipes" / "slurm.sh"


def test_processes_have_longer_to_save_than_torchrun_waits(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\necho "waits $TORCH_ELASTIC_SHUTDOWN_TIMEOUT"\n')
    srun.chmod(0o755)
    paths = f"{Path(sys.executable).parent}:{tmp_path}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": paths, "VIRTUAL_ENV": sys.prefix, "SLURM_NNODES": "2"}
    for name in ("NMTGRID_VENV", "NMTGRID_PROJECT", "SMALL", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"):
        environment.pop(name, None)
    command = ["bash", str(RECIPE), "data", str(tmp_path / "model"), "--arch", "pervasive"]
    job = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "waits 240" in job.stdout
