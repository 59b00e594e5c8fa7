#!/usr/bin/env bash
#SBATCH --job-name=nmtgrid
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --output=%x-%j.log
# Training on a cluster under SLURM. By default it trains the thesis' largest setting, section
# 5.4.1: WMT'14 En-Fr, decoder with exits, 460,800 tokens per update on 128 GPUs (16 nodes of 8),
# 50,000 updates.
#
#   bash recipes/adaptive.sh --dry-run 5.8     prints the commands that make its dataset
#   sbatch recipes/slurm.sh DATA MODEL         trains it
#   sbatch --nodes=2 --gpus-per-node=4 recipes/slurm.sh DATA MODEL --arch pervasive --preset ...
#   bash recipes/slurm.sh --dry-run            only prints the commands
#
# recipes/slurm.toml is the configuration. Options of `nmtgrid train` after MODEL, such as --config FILE,
# replace it (model and batch sizes). Without them, the batches of an update are distributed over the
# available GPUs: TOKENS (460800) target tokens per update, at most LARGEST (3600) per batch.
#
# Five minutes before the time limit, SLURM signals the run, which saves a checkpoint; the job is requeued and
# resumes exactly. It also resumes after a node failure. DATA, MODEL and the environment (NMTGRID_VENV, or the
# active one) must be on a shared file system.
# PORT=29500. Device hours: the thesis gives none; estimated from the FLOPs that
# `train --dry-run` counts, at 20 TFLOP/s: 860 on one GPU, 7 on each of 128. Expected: 43.62 BLEU with all six
# blocks (table 5.6).
# SMALL=1: 40 updates (UPDATES=N) of a tiny model on the toy corpus (PAIRS=1000) with two local processes,
# without SLURM.
set -euo pipefail
# SLURM runs a copy of this file, so the project is NMTGRID_PROJECT or the folder that the job was submitted from.
HOME_OF_RECIPES="${NMTGRID_PROJECT:-${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}}/recipes"
source "$HOME_OF_RECIPES/common.sh"
if [ "$SMALL" = 1 ]; then
    for variable in TOKENS LARGEST PORT; do no_effect "$variable" "with SMALL=1"; done
else
    for variable in PAIRS UPDATES; do no_effect "$variable" "without SMALL=1"; done
fi
check "TOKENS LARGEST PORT" "[1-9][0-9]*" "a whole number above 0"
if [ "$SMALL" = 1 ]; then set -- "$RUNS/slurm-toy/data" "$RUNS/slurm-toy/model"; fi
if [ "$DRY_RUN" != 0 ] && [ $# -eq 0 ]; then set -- DATA MODEL; fi
[ $# -ge 2 ] || fail "name the dataset and the model directory: sbatch recipes/slurm.sh DATA MODEL"
DATA="$1" MODEL="$2"
shift 2

NODES="${SLURM_NNODES:-16}"
GPUS="${SLURM_GPUS_ON_NODE:-8}"
PORT="${PORT:-29500}"
if [ $# -gt 0 ]; then
    for variable in TOKENS LARGEST; do no_effect "$variable" "with options of your own"; done
else
    TOKENS="${TOKENS:-460800}" LARGEST="${LARGEST:-3600}"
    count=$((NODES * GPUS))
    rounds=$(((TOKENS + LARGEST * count - 1) / (LARGEST * count)))
    set -- --config "$HOME_OF_RECIPES/slurm.toml" --set "batches.accumulation=$rounds" \
        --set "batches.max_tokens=$((TOKENS / (rounds * count)))"
fi

environment
if [ "$SMALL" = 1 ]; then
    toy_dataset "$DATA"
    tiny transformer
    limits "$UPDATES" 0
    run python -m torch.distributed.run --standalone --nproc-per-node 2 -m nmtgrid train "$DATA" \
        --arch transformer --preset toy-exits --objective exits-aligned --overwrite \
        "${TINY[@]}" "${LIMIT[@]}" --out "$MODEL"
    exit
fi
if [ -n "${SLURM_JOB_NODELIST:-}" ]; then
    HEAD="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
else
    HEAD=localhost
fi
if [ -d "$MODEL/checkpoints" ]; then set -- --resume; fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"
# By default torchrun kills, after 30 seconds, processes that are still computing an update or saving.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-240}"
command=(srun --kill-on-bad-exit=1 python -m torch.distributed.run --nnodes "$NODES"
    --nproc-per-node "$GPUS" --rdzv-backend c10d --rdzv-endpoint "$HEAD:$PORT"
    --rdzv-id "${SLURM_JOB_ID:-0}" -m nmtgrid train "$DATA" --out "$MODEL" "$@")
if [ "$DRY_RUN" != 0 ]; then run "${command[@]}"; exit; fi

# Only this script receives USR1; it forwards SIGTERM, on which the run saves and ends.
again=0
running=""
trap 'again=1; [ -z "$running" ] || kill -TERM "$running"' USR1
say "\$ ${command[*]}"
"${command[@]}" &
running=$!
code=0
wait "$running" || code=$?
# `wait` returns at the signal; wait again until the command has ended.
while kill -0 "$running" 2>/dev/null; do wait "$running" || code=$?; done
if [ "$again" = 1 ]; then
    say "Time limit reached: requeueing the job."
    run scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$code"
