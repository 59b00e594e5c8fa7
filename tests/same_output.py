"""Captures the toolkit's results as JSON, so that two checkouts can be compared.

    python same_output.py --checkout DIR --work FOLDER OUT.json
    python same_output.py --compare A.json B.json [--renamed OLD=NEW ...]

Each case of same_output.toml is one or more command lines on the embedded corpora. All files that
they write are captured: numbers in full, arrays as checksums, figures and pages only by their
existence. Values that depend on the clock or on a version are left out. Both captures must be made
on the same machine: other processors round differently.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import runpy
import sys
import time
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

CASES = Path(__file__).with_suffix(".toml")
UNSTABLE = re.compile(
    r"(^|[_.])(seconds?|minutes|times?|elapsed|speed|speedup|clock|machine|memory|versions?"
    r"|sha256|sealed|digest|check|checksum)($|[_.])"
)
"""Names of the values that are left out."""
LONGEST = 24
"""Longer lists are cut to this length, with a checksum of the whole."""
PICTURES, RECORDS = {".png", ".svg", ".html"}, {".jsonl", ".log"}
SLOW_IMPORTS = "torch", "torch._dynamo", "torch.distributed.fsdp", "sacremoses", "sacrebleu"
"""Packages that every command would import again, which takes longer than its computations."""


def training(spec: str, cases: dict[str, dict[str, str]], seed: int) -> str:
    """Return the command that trains according to `spec`."""
    arch, *words = spec.split()
    corpus, preset = ("pictures", "toy-pictures") if "caption" in arch else ("data", "toy")
    settings: dict[str, str] = {}
    for word in (*cases["names"]["SETTINGS"].split(), *cases["tiny"][arch].split(), *words):
        name, has_value, value = word.partition("=")
        if has_value:
            settings[name if "." in name else f"model.{name}"] = value
    options = [word for word in words if "=" not in word]
    options += [f"--set {name}={value}" for name, value in settings.items()]
    common = f"--arch {arch} --preset {preset} --seed {seed} --device cpu"
    return f"train {corpus} {common} {' '.join(options)} --out {{}}/model"


def read_cases(seed: int) -> dict[str, str]:
    """Return the command lines of each case by name, in the order in which they build up."""
    cases = tomllib.loads(CASES.read_text())
    names = cases["names"]
    while any("$" in value for value in names.values()):
        names |= {key: Template(value).substitute(names) for key, value in names.items()}
    for table in cases.values():
        table |= {key: Template(value).substitute(names) for key, value in table.items()}
    trainings = {name: training(spec, cases, seed) for name, spec in cases["trainings"].items()}
    together = {**cases["corpora"], **trainings, **cases["commands"]}
    return {name: " ".join(commands.split()) for name, commands in together.items()}


def run(work: Path, name: str, commands: str) -> dict[str, Any]:
    """Run the commands of the case `name` in `work`; return the content of the files they wrote.

    A command that fails ends the case, which reports the failure.
    """
    (work / name).mkdir()
    for command in commands.replace("{}", name).split(" ; "):
        line, _, output = command.partition(" > ")
        child = os.fork()
        if not child:
            _become(line.split(), work, output or os.devnull)
        if os.waitpid(child, 0)[1]:
            return {"fault": f"{line}\n{(work / 'stderr').read_text()[-3000:]}"}
    files = sorted(path for path in (work / name).rglob("*") if path.is_file())
    return {str(path.relative_to(work / name)): content(path) for path in files}


def _become(words: list[str], work: Path, output: str) -> None:
    """Run `python -m nmtgrid WORDS` in the folder `work` in this process, and exit."""
    code: int | str | None = 0
    try:
        os.chdir(work)
        for stream, path in (1, output), (2, "stderr"):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        sys.argv = ["nmtgrid", *words]
        runpy.run_module("nmtgrid", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def content(path: Path) -> Any:
    """Return the content of a file that is compared."""
    if path.suffix in PICTURES:
        return "there" if path.stat().st_size else "empty"
    if path.suffix == ".safetensors":
        return arrays(path.read_bytes())
    if path.suffix == ".json":
        return stable(json.loads(path.read_text()))
    lines = path.read_text().split("\n")
    return stable([json.loads(x) for x in lines if x] if path.suffix in RECORDS else lines)


def arrays(data: bytes) -> dict[str, Any]:
    """Return checksums of a safetensors file and of its arrays, regardless of their names."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    places = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
    each = sorted(hashlib.sha256(data[start + a : start + b]).hexdigest() for a, b in places)
    return {"file": hashlib.sha256(data).hexdigest(), "arrays": checksum(each), "count": len(each)}


def stable(value: Any) -> Any:
    """Return `value` without the parts that depend on the clock or a version; cut long lists."""
    if isinstance(value, dict):
        return {key: stable(item) for key, item in value.items() if not UNSTABLE.search(key)}
    if not isinstance(value, list):
        return value
    kept = [stable(item) for item in value]
    if len(kept) <= LONGEST:
        return kept
    return {"items": len(kept), "all": checksum(kept), "first": kept[:3]}


def checksum(value: Any) -> str:
    """Return the checksum of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def leaves(value: Any, renamed: dict[str, str], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each scalar in `value`."""
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from leaves(item, renamed, f"{path} / {renamed.get(str(key), key)}")
    else:
        yield path, repr(renamed.get(value, value) if isinstance(value, str) else value)


def compare(first: Path, second: Path, renamed: dict[str, str], match: str) -> int:
    """Print the differences of two captures in the matching cases; return 1 if there are any."""
    captures = [json.loads(path.read_text()) for path in (first, second)]
    chosen = [{n: case for n, case in c.items() if re.search(match, n)} for c in captures]
    before, after = dict(leaves(chosen[0], renamed)), dict(leaves(chosen[1], {}))
    different = [path for path in before | after if before.get(path) != after.get(path)]
    for path in different:
        print(f"{path}: {before.get(path, 'missing')} | {after.get(path, 'missing')}")
    cases = sorted({path.split(" / ")[1] for path in different})
    print(f"{len(different):,} of {len(before | after):,} values differ.", *cases)
    return int(bool(different))


def capture(checkout: Path, work: Path, seed: int, match: str) -> dict[str, Any]:
    """Return the output of the corpora, and of the cases with `match` in their names."""
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout.resolve())}
    sys.path[0] = str(checkout.resolve())
    for package in SLOW_IMPORTS:
        importlib.import_module(package)
    work.mkdir(parents=True)
    results: dict[str, Any] = {}
    corpora = tomllib.loads(CASES.read_text())["corpora"]
    for name, commands in read_cases(seed).items():
        if name not in corpora and not re.search(match, name):
            continue
        began = time.monotonic()
        results[name] = run(work, name, commands)
        fault = results[name].get("fault", "")
        print(f"{time.monotonic() - began:6.1f} s  {name}  {fault}", file=sys.stderr, flush=True)
        if name == "data":
            for language, count, file in ("qa", None, "few.qa"), ("qb", 1, "first.qb"):
                lines = (work / name / "raw" / f"test.{language}").read_text().split("\n")[:12]
                kept = [" ".join(line.split()[:count]) for line in lines]
                (work / file).write_text("\n".join([*kept, ""]))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", nargs="?", type=Path, help="output file of the capture")
    parser.add_argument("--checkout", type=Path, help="folder of the checkout to capture")
    parser.add_argument("--work", type=Path, help="a new folder for datasets and models")
    parser.add_argument("--seed", type=int, default=1, help="of the trainings")
    parser.add_argument("--match", default="", help="only cases whose names match this")
    parser.add_argument("--compare", nargs=2, type=Path, metavar="FILE")
    parser.add_argument("--renamed", action="append", default=[], metavar="OLD=NEW")
    arguments = parser.parse_args()
    if arguments.compare:
        renamed = dict(pair.split("=", 1) for pair in arguments.renamed)
        return compare(arguments.compare[0], arguments.compare[1], renamed, arguments.match)
    if not (arguments.out and arguments.checkout and arguments.work):
        parser.error("a capture needs --checkout, --work and OUT.json")
    captured = capture(arguments.checkout, arguments.work, arguments.seed, arguments.match)
    arguments.out.write_text(json.dumps(captured, indent=1))
    return int(any("fault" in case for case in captured.values()))


if __name__ == "__main__":
    sys.exit(main())
