"""Coverage-guided fuzzing: atheris changes bytes to reach new code.

    pip install atheris
    python -m tests.fuzz.guided --runs 20000                 each reader of one file, 20,000 inputs
    python -m tests.fuzz.guided --runs 20000 --only vocab    those with `vocab` in their names

In contrast to `python -m tests.fuzz`, which knows the file formats, this program knows which lines
of `nmtgrid` an input has reached. Each reader has its own process; the valid files are its first
inputs. The exit code is 1 if a reader crashed, or took more than 10 seconds or 2 GiB more than the
program.
"""

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MEBIBYTES = 3000
"""Memory limit of the whole process; torch and other modules take about a third of it."""
_DONE = re.compile(r"Done (\d+) (?:runs )?in")
_COVERAGE = re.compile(r"cov: (\d+)")


def fuzz(name: str, runs: int, folder: Path) -> None:
    """Read `runs` inputs in this process with the reader `name`; ends the process."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["nmtgrid"]):
        from nmtgrid.base.errors import NmtgridError
        from tests.fuzz.single import single

    reader = single(folder)[name]
    corpus, case = folder / "corpus", folder / "case"
    corpus.mkdir()
    for index, good in enumerate(reader.good):
        (corpus / str(index)).write_bytes(good)

    def read(content: bytes) -> None:
        case.write_bytes(content)
        with contextlib.suppress(NmtgridError), contextlib.redirect_stdout(io.StringIO()):
            reader.read(case)

    longest = max(map(len, reader.good)) * 2
    options = (f"-runs={runs}", f"-rss_limit_mb={MEBIBYTES}", "-timeout=10", f"-max_len={longest}")
    atheris.Setup([name, *options, f"-artifact_prefix={folder}/", str(corpus)], read)
    atheris.Fuzz()


def child(name: str, runs: int) -> dict[str, Any]:
    """Return the report of a process that fuzzes a reader: inputs, coverage, last messages."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.fuzz.guided", "--child", folder]
        done = subprocess.run(
            [*command, "--only", name, "--runs", str(runs)],
            capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
    said = done.stdout + done.stderr
    count, covered = _DONE.findall(said), _COVERAGE.findall(said)
    result: dict[str, Any] = {"runs": int(count[-1]) if count else 0}
    result["coverage"] = int(covered[-1]) if covered else 0
    is_whole = done.returncode == 0 and result["runs"] >= runs
    return result | {"fault": None if is_whole else said[-3000:]}


def main() -> int:
    """Fuzz all readers, each in a separate process; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        fuzz(arguments.only, arguments.runs, arguments.child)
    if importlib.util.find_spec("atheris") is None:
        sys.stderr.write("error: atheris is not installed: pip install atheris\n")
        return 2
    from tests.fuzz.single import single

    with tempfile.TemporaryDirectory() as folder:
        names = [name for name in single(Path(folder)) if arguments.only in name]
    results = {}
    for name in names:
        results[name] = result = child(name, arguments.runs)
        sys.stdout.write(
            f"{name:20} {result['runs']:7} inputs {result['coverage']:6} edges reached "
        )
        sys.stdout.write("0 faults\n" if result["fault"] is None else f"FAULT\n{result['fault']}\n")
        sys.stdout.flush()
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return int(any(result["fault"] is not None for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
