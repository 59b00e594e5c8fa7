#!/usr/bin/env bash
# Checks the project: ruff and the tests, including `mypy --strict`. Arguments are passed to pytest.
#
#   bash recipes/test.sh                            everything
#   bash recipes/test.sh --fast                     ruff and the test files of tests/fast_tier.txt,
#                                                   in under a minute on one core
#   bash recipes/test.sh tests/invariants -x        only the invariant tests
#   bash recipes/test.sh --dry-run [--fast ...]     only prints the commands
#
# Creates an environment in .venv unless one is active (see recipes/common.sh).
# NMTGRID_DATA=DIR also runs the tests on real data; JOBS=N sets the number of test processes.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

environment test
cd "$PROJECT"
export OMP_NUM_THREADS=1
# Tests start hundreds of processes, which then share compiled byte code.
unset PYTHONDONTWRITEBYTECODE
status=0
run python -m ruff check . || status=1
if [ "${1:-}" = --fast ]; then
    shift
    mapfile -t files < <(grep -v '^#' tests/fast_tier.txt)
    run python -m pytest -q "${files[@]}" "$@" || status=$?
else
    # Each file runs in one process, so that shared fixtures are set up once.
    run python -m pytest -q -n "${JOBS:-2}" --dist loadfile "$@" || status=$?
fi
exit "$status"
