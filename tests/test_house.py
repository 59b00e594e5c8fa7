"""House rules: the command line responds at once and has help; the project's files agree."""

from __future__ import annotations

import ast
import math
import os
import pkgutil
import re
import resource
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import nmtgrid
from nmtgrid.base.errors import ConfigError, NmtgridError
from nmtgrid.cli import app

HEAVY = (
    "torch", "numpy", "sacrebleu", "matplotlib", "sacremoses", "subword_nmt", "compare_mt",
)  # fmt: skip
RECIPES = sorted(
    path.stem
    for path in (Path(__file__).parents[1] / "recipes").glob("*.sh")
    if path.stem not in ("common", "losses")
)
QUICK = [["--help"], ["-h"], ["--version"], [], *([name, "-h"] for name in app.COMMANDS)]


def _python(project: Path, code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(project), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_types(project: Path) -> None:
    """Checked here, in parallel with other tests, so that no processor is idle."""
    # An existing cache is used, but none is written: that takes a seventh of the time.
    cache = [] if (project / ".mypy_cache").exists() else [f"--cache-dir={os.devnull}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *cache],
        cwd=project, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("arguments", QUICK, ids=" ".join)
def test_help_loads_nothing_heavy(project: Path, arguments: list[str]) -> None:
    code = (
        "import sys; from nmtgrid.cli.app import main; code = main();"
        f"print(code, [name for name in {HEAVY} if name in sys.modules])"
    )
    shown = _python(project, code, *arguments)
    assert shown.splitlines()[-1] == "0 []"
    assert len(shown.splitlines()) > 1


@pytest.mark.parametrize("name", ["lengths", "compare", "buckets"])
def test_text_files_are_analysed_without_torch(project: Path, tmp_path: Path, name: str) -> None:
    for file in ("ours", "reference"):
        (tmp_path / file).write_text("a b c d\n")
    code = (
        "import sys; from nmtgrid.cli.app import main; code = main(sys.argv[1:]);"
        "print(code, 'torch' in sys.modules)"
    )
    files = str(tmp_path / "ours"), "-r", str(tmp_path / "reference")
    assert _python(project, code, "analyze", name, *files) == "0 False\n"


def test_help_of_every_subcommand_loads_nothing_heavy(project: Path) -> None:
    code = (
        "import importlib, sys; from nmtgrid.cli import app\n"
        "for name, module in app.COMMANDS.items():\n"
        "    group = getattr(importlib.import_module(module), 'app', None)\n"
        "    for held in group.registered_commands if group else []:\n"
        "        assert app.main([name, held.name, '--help']) == 0\n"
        "        print('shown', name, held.name)\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    shown = _python(project, code).splitlines()
    assert shown[-1] == "[]"
    assert {"shown bpe learn", "shown analyze report", "shown analyze compare"} <= set(shown)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("nmtgrid tr", ["train"]),
        ("nmtgrid analyze le", ["lengths"]),
        ("nmtgrid analyze report --ti", ["--title"]),
        ("nmtgrid train --max-u", ["--max-updates"]),
    ],
)
def test_completion_loads_nothing_heavy(project: Path, typed: str, offered: list[str]) -> None:
    code = (
        "import sys; from nmtgrid.cli.app import main\n"
        "try: main()\n"
        f"finally: sys.stderr.write(str([name for name in {HEAVY} if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(project), "_NMTGRID_COMPLETE": "complete_bash",
             "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == offered
    assert done.stderr == "[]"


@pytest.mark.parametrize("arguments", [["--help"], ["analyze", "report", "--help"]], ids=" ".join)
def test_help_takes_less_than_half_a_second_of_processor(
    project: Path, arguments: list[str]
) -> None:
    """On a slow or busy machine: less than three times as long as importing typer takes."""

    def seconds(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _python(project, code, PYTHONDONTWRITEBYTECODE="")  # compiled once, as if installed
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    both = ("import typer.rich_utils", f"from nmtgrid.cli.app import main; main({arguments})")
    rounds: list[tuple[float, float]] = []
    typer, shown = math.inf, seconds(both[1])
    # If one round is not enough, measure three times, and more often on a busy machine.
    while shown >= 0.5 and (len(rounds) < 3 or (shown >= 3 * typer and len(rounds) < 9)):
        rounds.append((seconds(both[0]), seconds(both[1])))
        typer, shown = (min(times) for times in zip(*rounds, strict=True))
    assert shown < max(0.5, 3 * typer)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["--help"]) == 0
    shown = capsys.readouterr().out
    places = [shown.index(f" {name} ") for name in app.COMMANDS]
    assert places == sorted(places)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["--version"]) == 0
    assert capsys.readouterr().out == f"nmtgrid {nmtgrid.__version__}\n"


@pytest.mark.parametrize(
    ("typed", "meant"), [("trian", "train"), ("preproces", "preprocess"), ("decoder", "decode")]
)
def test_unknown_command(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main([typed]) == 2
    shown = capsys.readouterr().err
    assert f"`{typed}`" in shown and f"Did you mean `{meant}`?" in shown


def test_usage_errors_are_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["train", "--no-such-option"]) == 2
    shown = capsys.readouterr().err
    assert "--no-such-option" in shown and "nmtgrid train --help" in shown
    assert len(shown.strip().splitlines()) <= 3


def _command(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    def command() -> None:
        action()

    monkeypatch.setitem(sys.modules, app.COMMANDS["train"], SimpleNamespace(command=command))


def _raiser(fault: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise fault

    return action


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        (NmtgridError("`--k` is 0.", "Give 1."), 2, ["error: `--k` is 0.\n       Give 1.\n"]),
        (ConfigError(["One.", "Two."]), 2, ["error: One.\n       Two.\n"]),
        (FileNotFoundError(2, "No such file", "corpus.de"), 2, ["corpus.de: No such file"]),
        (MemoryError(), 2, ["memory"]),
        (KeyError("x"), 1, ["KeyError", "--debug"]),
        (KeyboardInterrupt(), 130, ["Interrupted."]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_faults_become_messages(
    fault: BaseException, code: int, words: list[str],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    _command(monkeypatch, _raiser(fault))
    assert app.main(["train"]) == code
    shown = capsys.readouterr().err
    assert all(word in shown for word in words)
    assert "Traceback" not in shown


@pytest.mark.parametrize("arguments", [["--debug", "train"], ["train", "--debug"]])
def test_debug_shows_the_traceback(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _command(monkeypatch, _raiser(NmtgridError("Broken.")))
    assert app.main(arguments) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown and "error: Broken." in shown


def test_a_closed_pipe_is_quiet(project: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "nmtgrid", "--help"], stdout=writing, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(project)}, text=True, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_waiting_threads_do_not_spin_long(project: Path) -> None:
    """The spin count is set before torch is loaded, unless the user has set one."""
    code = "import os; from nmtgrid.cli.app import main; main(['--version'])"
    code += "; print(os.environ['GOMP_SPINCOUNT'])"
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    for more, expected in (({}, "10000"), ({"GOMP_SPINCOUNT": "5"}, "5")):
        shown = subprocess.run(
            [sys.executable, "-c", code], env={**environment, "PYTHONPATH": str(project), **more},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert shown.stdout.splitlines()[-1] == expected


def test_library_attributes(project: Path) -> None:
    loaded = _python(project, "import sys, nmtgrid; print('torch' in sys.modules)")
    assert loaded == "False\n"
    with pytest.raises(AttributeError):
        _ = nmtgrid.nothing
    assert callable(nmtgrid.load)


def _settings(project: Path) -> dict[str, list[str]]:
    settings = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    required: list[str] = settings["project"]["dependencies"]
    return {re.split(r"[<>=~!\s\[]", text)[0]: [text] for text in required}


def test_dependencies(project: Path) -> None:
    required = _settings(project)
    assert required["torch"] == ["torch>=2.11"]
    packages = {"typer", "rich", "sacremoses", "subword-nmt", "sacrebleu", "compare-mt", "six"}
    assert packages <= set(required)
    constraints = (project / "constraints.txt").read_text(encoding="utf-8")
    pinned = {line.split("==")[0] for line in constraints.splitlines() if "==" in line}
    assert set(required) <= pinned


def test_the_changelog_tells_of_this_version(project: Path) -> None:
    text = (project / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[([^]]+)]", text, re.MULTILINE)
    assert versions[0] == "Unreleased" or versions[0] == nmtgrid.__version__
    assert nmtgrid.__version__ in versions


@pytest.mark.parametrize(
    "name",
    [name for name in RECIPES if name not in ("quickstart", "slurm", "small", "test", "trust")],
)
def test_recipes_tell_their_plan(project: Path, tmp_path: Path, name: str) -> None:
    """`--dry-run` prints the commands and touches nothing."""
    done = subprocess.run(
        ["bash", project / "recipes" / f"{name}.sh", "--dry-run"], cwd=tmp_path,
        env={**os.environ, "MINUTES": "7", "SEED": "3"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in ("nmtgrid preprocess", "nmtgrid bpe learn", "nmtgrid train"):
        assert words in done.stdout
    # Tuning compares only validation losses; the demo serves the model that it trained.
    translates = "nmtgrid decode" in done.stdout or "nmtgrid online-eval" in done.stdout
    assert translates or name in ("tune", "demo")
    assert "--max-minutes 7" in done.stdout and "--seed 3" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("nodes", "gpus"), [(16, 8), (1, 8), (3, 4), (1, 1)])
def test_a_cluster_of_any_size_does_the_same_update(project: Path, nodes: int, gpus: int) -> None:
    done = subprocess.run(
        ["bash", project / "recipes" / "slurm.sh", "--dry-run", "D", "M"], check=True,
        env={**os.environ, "SLURM_NNODES": str(nodes), "SLURM_GPUS_ON_NODE": str(gpus)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert f"--nnodes {nodes} --nproc-per-node {gpus} " in done.stdout
    rounds, most = (
        int(re.findall(rf"batches\.{name}=(\d+)", done.stdout)[0])
        for name in ("accumulation", "max_tokens")
    )
    # 460,800 tokens, except for a remainder that does not divide evenly.
    assert 460_800 - rounds * nodes * gpus < rounds * nodes * gpus * most <= 460_800
    assert most <= 3600


def test_the_readme_names_commands_that_exist(project: Path) -> None:
    text = (project / "README.md").read_text(encoding="utf-8")
    for command in re.findall(r"^nmtgrid ([a-z-]+)", text, re.MULTILINE):
        assert command in app.COMMANDS
    for recipe in set(re.findall(r"recipes/[\w-]+\.sh", text)):
        assert (project / recipe).is_file()


def test_the_fast_tier_names_files(project: Path) -> None:
    lines = (project / "tests/fast_tier.txt").read_text(encoding="utf-8").splitlines()
    files = [line for line in lines if not line.startswith("#")]
    assert len(files) > 20
    assert all((project / file).is_file() for file in files)


def test_the_glossary_names_what_exists(project: Path) -> None:
    text = (project / "docs/glossary.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`(nmtgrid\.[\w.]+)`", text))
    assert len(names) > 30
    for name in names:
        assert pkgutil.resolve_name(name) is not None


def test_no_test_is_empty(project: Path) -> None:
    """A test without an assertion cannot fail."""
    idle = []
    for path in (project / "tests").rglob("test_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                # Most have an assertion at the top level, which is found without unparsing.
                if any(isinstance(part, ast.Assert) for part in node.body):
                    continue
                body = ast.unparse(node)
                if not re.search(r"assert|pytest\.raises|pytest\.warns|\.fail\(|check_", body):
                    idle.append(f"{path.name}:{node.lineno} {node.name}")
    assert idle == []
