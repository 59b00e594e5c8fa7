"""The recipes' plans: every table and figure has one; the command line knows all that they say."""

import itertools
import os
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import pytest
import typer

from nmtgrid.base import config
from nmtgrid.base.config_file import read_config
from nmtgrid.base.io.records import read_json
from nmtgrid.cli import app
from nmtgrid.cli.config_options import with_options
from nmtgrid.cli.objectives import objectives
from nmtgrid.cli.options import file_options
from nmtgrid.cli.train.arguments import SETTINGS, TrainArguments
from nmtgrid.training.prepare import Request, resolve

PROJECT = Path(__file__).resolve().parents[3]
RECIPES = PROJECT / "recipes"
SOURCED = ("common", "losses")
ALL = {
    "pervasive": "table-3.1 table-3.2 table-3.3 table-3.4 table-3.5 table-3.6 table-3.7 table-3.8 "
    "figure-3.8 figure-3.9 figure-3.10 conll",
    "online": "4.2 4.9 4.10 4.11 4.12 4.13 4.14 4.15 4.16 4.17 4.18 C.1 C.2",
    "adaptive": "5.2 5.3 5.4 5.5 5.6 5.7 5.8 5.9 5.10 5.11 5.12 5.13 guarantee speed clock",
    "slurm": "DATA MODEL",
    "activations": "",
    "captions": "",
    "demo": "",
    "iwslt14-de-en": "",
    "multi30k": "",
    "distill": "",
    "extra": "",
    "ingredients": "",
    "paragraphs": "",
    "guarantee": "",
    "policies": "",
    "report": "",
    "smoothing": "",
    "transparent": "",
    "trust": "",
    "tune": "",
    "zoo": "",
}
Completed = subprocess.CompletedProcess[str]
every_script = pytest.mark.parametrize(
    "path", sorted(RECIPES.glob("*.sh")), ids=lambda path: path.stem
)
WITHOUT_EFFECT = {
    "activations.sh": "ARCH BEAM LABEL PRESET",
    "captions.sh": "ARCH PAIRS PRESET",
    "demo.sh": "ARCH BEAM LABEL PRESET",
    "distill.sh": "ARCH LABEL PAIRS PRESET",
    "guarantee.sh": "ARCH BEAM LABEL PRESET",
    "iwslt14-de-en.sh": "PAIRS",
    "multi30k.sh": "PAIRS",
    "paragraphs.sh": "ARCH LABEL PAIRS PRESET SETS",
    "quickstart.sh": "ARCH BEAM CONFIG LABEL MINUTES PRESET SEED SETS",
    "report.sh": "ARCH BEAM LABEL PRESET SETS",
    "slurm.sh": "CONFIG MINUTES PAIRS UPDATES",
    "transparent.sh": "ARCH LABEL PAIRS PRESET",
    "trust.sh": "CONFIG UPDATES",
    "tune.sh": "CONFIG",
    "zoo.sh": "ARCH BEAM PAIRS PRESET",
}
"""Variables that a recipe does not use with its usual corpus, though others do."""
KNOWN: set[str] = set()
"""Requests that were resolved already."""
LIMITS = {"max_updates": int, "max_minutes": float, "max_epochs": int}
WITHOUT_A_PLAN = ("quickstart", "test", "small")
PUBLISHED = [
    *(f"table-3.{number}" for number in range(1, 9)),
    "table-4.2",
    *(f"table-5.{number}" for number in range(2, 7)),
    *("table-E.1", "table-E.3", "conll", "transparent"),
    *(f"figure-3.{number}" for number in range(8, 11)),
    *(f"figure-4.{number}" for number in range(9, 19)),
    *(f"figure-5.{number}" for number in range(6, 14)),
    *(f"figure-A.{number}" for number in range(1, 5)),
    *("figure-C.1", "figure-C.2"),
]
CORPORA = {
    "pervasive": ["iwslt14-en-de"],
    "online": ["iwslt14-de-en", "iwslt15-vi-en", "wmt15-de-en", "multi30k-en-de"],
    "policies": ["multi30k-en-cs"],
    "zoo": ["iwslt14-de-en", "multi30k-fr-en"],
    "adaptive": ["iwslt14-de-en", "wmt14-en-fr"],
    "smoothing": ["iwslt14-de-en", "wmt14-en-fr"],
    "captions": ["mscoco"],
    "activations": ["iwslt14-de-en"],
}
PLANS = [
    *((name, small, "") for name in sorted(ALL) for small in ("0", "1")),
    *((name, "0", corpus) for name, corpora in CORPORA.items() for corpus in corpora),
]


def _bash(*words: object, folder: Path | str = "/", **environment: str) -> Completed:
    """Run bash with nothing set but where programs are."""
    return subprocess.run(
        ["bash", *map(str, words)], cwd=folder, env={"PATH": os.environ["PATH"], **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@cache
def _plan(name: str, small: str, corpus: str) -> list[list[str]]:
    """Return the commands of a dry run of all experiments of a recipe, nothing else being set."""
    environment = {"SMALL": small, "LOSSES": "all" if name == "captions" else ""}
    environment |= {"ON": corpus} if corpus else {}
    ended = _bash(RECIPES / f"{name}.sh", "--dry-run", *ALL[name].split(), **environment)
    assert ended.returncode == 0, ended.stderr
    return _commands(ended.stdout)


def _commands(plan: str) -> list[list[str]]:
    """Return the words of each command of a plan, from `nmtgrid` on where that is among them."""
    commands = [
        shlex.split(line[2:]) if "'" in line else line[2:].split()
        for line in dict.fromkeys(plan.splitlines())
        if line.startswith("$ ")
    ]
    return [words[words.index("nmtgrid") :] if "nmtgrid" in words else words for words in commands]


@cache
def _command_line() -> typer.core.TyperGroup:
    group = typer.main.get_command(app.assemble(list(app.COMMANDS)))
    assert isinstance(group, typer.core.TyperGroup)
    return group


def _check_options(words: list[str]) -> None:
    """Parse a command's words. Raises what click does for options that do not exist."""
    command: object = _command_line()
    while hasattr(command, "commands"):
        command = command.commands[words[0]]
        words = words[1:]
    command.make_context("nmtgrid", list(words))  # type: ignore[attr-defined]


def _form(words: list[str]) -> tuple[str, ...]:
    """Return the command and its options without their values: what is like it needs no check."""
    return (*words[:2], *sorted({word for word in words if word.startswith("--")}))


def _check_settings(words: list[str], known: set[str]) -> None:
    """Resolve what a `train` asks for, unless it is `known`. Raises ConfigError for its faults."""
    options = dict(itertools.pairwise(words))
    changes = [value for word, value in itertools.pairwise(words) if word == "--set"]
    arch, preset, objective = (options.get(f"--{name}") for name in ("arch", "preset", "objective"))
    limits = {
        f"training.{name}": kind(options[option])
        for name, kind in LIMITS.items()
        if (option := f"--{name.replace('_', '-')}") in options
    }
    file = None
    if "--config" in options:
        taken, file = with_options(
            {}, read_config(options["--config"]), file_options(TrainArguments), (), (), SETTINGS
        )
        arch, preset, objective = (taken.get(name) for name in ("arch", "preset", "objective"))
    request = Request(arch, preset, objective, tuple(changes), limits, file)
    if repr(request) not in known:
        known.add(repr(request))
        resolve(request, objectives)


def _experiments(name: str) -> list[str]:
    """Return what a recipe is called with, one at a time."""
    return [""] if name == "slurm" else ALL.get(name, "").split() or [""]


def test_every_recipe_is_known_here() -> None:
    names = {path.stem for path in RECIPES.glob("*.sh")} - {*SOURCED}
    assert names == {*ALL, *WITHOUT_A_PLAN}


@every_script
def test_the_shell_understands(path: Path) -> None:
    """Heads say how long a recipe takes and on what data."""
    ended = _bash("-n", path)
    assert (ended.returncode, ended.stderr) == (0, "")
    head, *rest = path.read_text(encoding="utf-8").split("set -euo pipefail")
    assert rest or path.stem in SOURCED
    if path.stem not in (*SOURCED, *WITHOUT_A_PLAN):
        assert "--dry-run" in head and "SMALL=1" in head
        assert re.search(r"[Hh]ours", head), "device hours, or an estimate of them"


@pytest.mark.parametrize(("name", "small", "corpus"), PLANS)
def test_plans_say_what_the_command_line_knows(
    name: str, small: str, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every option exists, every file that python runs, and every setting of a training."""
    plan = _plan(name, small, corpus)
    forms = {_form(words): words for words in plan if words[0] == "nmtgrid"}
    for words in forms.values():
        _check_options(words[1:])
    files = {words[1] for words in plan if words[0] == "python" and words[1] != "-m"}
    assert all(Path(file).is_file() for file in files)
    trainings = [words for words in plan if words[:2] == ["nmtgrid", "train"]]
    assert trainings or name == "trust"
    # Looking up types anew for each setting takes most of the time.
    monkeypatch.setattr(config, "_hints", cache(config._hints))
    for words in trainings:
        _check_settings(words, KNOWN)


def test_plans_of_small_runs_are_small() -> None:
    for name in ALL:
        for words in _plan(name, "1", ""):
            if words[:2] == ["nmtgrid", "train"] and "--dry-run" not in words:
                assert 0 < int(words[words.index("--max-updates") + 1]) <= 40


def test_every_published_experiment_is_kept() -> None:
    """Each table and figure ends as a record, by its own name or in a row of figures."""
    kept: set[str] = set()
    for name in ALL:
        for words in _plan(name, "0", ""):
            if words[0] == "python" and words[1].endswith("results.py"):
                kept.add(words[3])
                title = words[words.index("--title") + 1]
                for chapter, first, last in re.findall(r"figures (\w)\.(\d+) to \1\.(\d+)", title):
                    kept |= {f"figure-{chapter}.{n}" for n in range(int(first), int(last) + 1)}
    missing = [
        experiment for experiment in PUBLISHED
        if not any(name == experiment or name.startswith(f"{experiment}-") for name in kept)
    ]  # fmt: skip
    assert missing == []


def test_records_say_how_the_recipe_was_called() -> None:
    commands = _plan("adaptive", "1", "")
    calls = {words[words.index("--command") + 1] for words in commands if "--command" in words}
    assert calls == {f"SMALL=1 bash recipes/adaptive.sh {ALL['adaptive']}"}


@pytest.mark.parametrize(
    ("recipe", "chosen", "recorded"),
    [
        # adaptive.sh trains no reader and has no losses by name.
        ("adaptive.sh 5.4",
         {"RATIOS": "0.5 1.1", "READER_RATE": "0.1", "TEMPERATURE": "1", "LOSS_mine": "--set a=1"},
         'RATIOS="0.5 1.1"'),
        ("smoothing.sh",
         {"LOSSES": "seq-hamming-all mine", "TEMPERATURE": "0.5", "SAMPLES": "2",
          "NEIGHBOURS": "100", "LOSS_mine": "--set a=1", "READER_RATE": "0.1"},
         'LOSSES="seq-hamming-all mine" LOSS_mine="--set a=1" NEIGHBOURS=100 SAMPLES=2 '
         "TEMPERATURE=0.5"),
        ("captions.sh", {"SEQUENCE_ALPHA": "0.5"}, "SEQUENCE_ALPHA=0.5"),
    ],
)  # fmt: skip
def test_records_name_every_variable_that_changes_a_recipe(
    tmp_path: Path, recipe: str, chosen: dict[str, str], recorded: str
) -> None:
    # JOBS and RUNS change no figure.
    script, *arguments = recipe.split()
    ended = _bash(
        RECIPES / script, "--dry-run", *arguments, folder=tmp_path, JOBS="2", RUNS="here", **chosen
    )
    kept = next(words for words in _commands(ended.stdout) if "--command" in words)
    assert kept[kept.index("--command") + 1] == f"{recorded} bash recipes/{recipe}"


def test_readers_without_a_delay_weight_are_trained_once() -> None:
    """Of one seed: those of binary search and of divergence; all are in the table."""
    plan = _plan("policies", "0", "toy")
    once = [
        Path(words[words.index("--out") + 1]).name
        for words in plan
        if words[:2] == ["nmtgrid", "train"]
        and words[words.index("--objective") + 1] in ("dynamic", "divergence")
        and not any("delay_weight" in word for word in words)
    ]
    assert once == [
        f"{name}-seed{n}" for n in (1, 2, 3) for name in ("binary-search", "divergence")
    ]
    (labels,) = {word for words in plan for word in words if word.startswith("objective.labels=")}
    assert labels == "objective.labels=binary-search"
    (table,) = (words for words in plan if "/policies_table.py" in " ".join(words[:2]))
    assert {*once} <= {Path(word).name for word in table}


def test_agents_of_the_thesis_are_compared_with_wait_k() -> None:
    """At a rate of their own, with wait-k of the same weights, in one table over the seeds."""
    plan = _plan("online", "0", "")
    agents = [words for words in plan if words[:2] == ["nmtgrid", "train"] and "dynamic" in words]
    assert agents and all("training.learning_rate=0.001" in words for words in agents)
    evaluated = [words for words in plan if "--thresholds" in words]
    assert evaluated and all("--k" in words for words in evaluated)
    tables = [words for words in plan if "/policies_table.py" in " ".join(words[:2])]
    (start,) = (words for words in tables if words[-1].endswith("figure-4.14-pa-k7"))
    folders = [Path(word).name for word in start[2 : start.index("--start")]]
    assert folders == [
        f"pa-k7{name}-seed1" for name in ("", "-oracle", "-agent0", "-agent1")
    ]  # fmt: skip
    assert start[start.index("--start") + 1] == "pa-k7"


def test_encoders_are_compared_by_the_paired_bootstrap() -> None:
    """Table 4.2: of each architecture the bi-directional encoder against the other one."""
    plan = _plan("online", "0", "")
    for arch, prefix in (("pervasive", "pa"), ("transformer", "tf")):
        (kept,) = (words for words in plan if f"table-4.2-{arch}" in words)
        table = kept[kept.index("--table") + 1].removesuffix(".json")
        (scores,) = (words for words in plan if "--compare" in words and words[-1] == table)
        written = f"{scores[scores.index('--compare') + 1]}-seed1.compare.json"
        (compare,) = (words for words in plan if words[2:3] == ["compare"] and written in words)
        systems = [word.split("=")[0] for word in compare if "-beam5.txt" in word]
        assert systems == [f"{prefix}-uni-inf", f"{prefix}-bi-inf"]


@pytest.mark.parametrize(
    ("chosen", "name", "title", "folder"),
    [
        ({}, "zoo", "processor time", "runs/zoo"),
        ({"LABEL": "wide"}, "zoo-wide", "processor time, wide", "runs/zoo-wide"),
        ({"UPDATES": "9", "LABEL": "wide", "ON": "toy"}, "zoo-updates-wide",
         "number of updates, wide", "runs/zoo-updates-wide-toy"),
    ],
)  # fmt: skip
def test_a_zoo_of_equal_updates_has_records_of_its_own(
    tmp_path: Path, chosen: dict[str, str], name: str, title: str, folder: str
) -> None:
    """Also models of its own: those of equal time are not of so many updates."""
    ended = _bash(RECIPES / "zoo.sh", "--dry-run", folder=tmp_path, **chosen)
    assert ended.returncode == 0, ended.stderr
    plan = _commands(ended.stdout)
    kept = [(words[3], words[5]) for words in plan if words[1].endswith("results.py")]
    lengths = name.replace("zoo", "zoo-lengths")
    assert [experiment for experiment, _ in kept] == [name, lengths]
    assert kept[0][1] == f"Every architecture with the same {title}"
    trained = next(words for words in plan if words[:2] == ["nmtgrid", "train"])
    assert trained[trained.index("--out") + 1].startswith(f"{folder}/")
    (buckets,) = (words for words in plan if words[2:3] == ["buckets"] and words[0] == "nmtgrid")
    assert "--bootstrap" not in buckets  # 1,000 samples


def _trained(recipe: str, folder: Path, **chosen: str) -> list[list[str]]:
    ended = _bash(RECIPES / recipe, "--dry-run", folder=folder, **chosen)
    assert ended.returncode == 0, ended.stderr
    return [words for words in _commands(ended.stdout) if words[:2] == ["nmtgrid", "train"]]


@pytest.mark.parametrize("arch", ["pervasive", "transformer", "bilstm", "convs2s"])
def test_each_architecture_has_a_preset_for_multi30k(arch: str, tmp_path: Path) -> None:
    (training,) = _trained("multi30k.sh", tmp_path, ARCH=arch)
    _check_settings(training, KNOWN)
    options = dict(itertools.pairwise(training))
    assert options["--preset"] == ("multi30k-hour" if arch == "pervasive" else "multi30k")
    assert options["--max-minutes"] == "59"
    name = "model" if arch == "pervasive" else arch
    assert options["--out"] == f"runs/multi30k/{name}-seed1"


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, ["mma", "itst", "wait-info"]),
        ({"MECHANISMS": "wait-info"}, ["wait-info"]),
        ({"MECHANISMS": "none"}, []),
    ],
)
def test_mechanisms_within_the_transformer_can_be_chosen(
    tmp_path: Path, chosen: dict[str, str], expected: list[str]
) -> None:
    trained = _trained("policies.sh", tmp_path, ARCHS="transformer", SEEDS="1", **chosen)
    objectives = [words[words.index("--objective") + 1] for words in trained]
    assert objectives == ["wait-k-sampled", *expected]


def test_unknown_mechanisms_are_refused_before_any_training(tmp_path: Path) -> None:
    ended = _bash(RECIPES / "policies.sh", "--dry-run", folder=tmp_path, MECHANISMS="mma other")
    assert ended.returncode == 2 and "invalid MECHANISMS: other (choose from: mma" in ended.stderr
    assert "$ " not in ended.stdout


def test_settings_for_a_student_are_not_its_teachers(tmp_path: Path) -> None:
    chosen = {"SETS": "--set model.depth=2"}
    teacher, *students = _trained("distill.sh", tmp_path, **chosen)
    assert "model.depth=2" not in teacher and len(students) == 2
    assert all("model.depth=2" in words for words in students)


def test_alignments_are_compared_with_those_of_the_aligner() -> None:
    plan = _plan("pervasive", "0", "")
    (align,) = (words for words in plan if words[2:3] == ["align"])
    links = align[align.index("--out") + 1]
    (scored,) = (words for words in plan if "--gold" in words and links in words)
    (table,) = (words for words in plan if "--gold" in words and words[0] == "python")
    assert "--words" in scored
    assert table[table.index("--gold") + 1] == scored[scored.index("--json") + 1]


def test_a_sweep_is_kept_with_its_picture() -> None:
    (kept,) = (words for words in _plan("tune", "0", "") if words[1].endswith("results.py"))
    assert kept[kept.index("--picture") + 1].endswith("tune-multi30k/table.png")


def test_settings_of_aligned_models_and_a_label(tmp_path: Path) -> None:
    """Baselines get no setting of aligned training; a labelled run replaces no other."""
    chosen = {
        "ON": "iwslt14-en-de", "LABEL": "d256", "SETS": "--set model.size=256",
        "ALIGNED_SETS": "--set objective.distillation=1", "RATIOS": "0.5", "DEPTHS": "1",
    }  # fmt: skip
    ended = _bash(RECIPES / "adaptive.sh", "--dry-run", "5.4", "speed", folder=tmp_path, **chosen)
    assert ended.returncode == 0, ended.stderr
    commands = _commands(ended.stdout)
    trained = [words for words in commands if words[:2] == ["nmtgrid", "train"]]
    assert all("model.size=256" in words for words in trained)
    for words in trained:
        assert words[words.index("--preset") + 1] == "iwslt14-de-en-exits"
        assert ("objective.distillation=1" in words) == ("exits-aligned" in words)
        assert "adaptive-iwslt14-en-de-d256/" in words[words.index("--out") + 1]
    records = [words[3] for words in commands if words[1].endswith("results.py")]
    assert records == ["table-5.4-d256", "speed-d256"]


def test_exits_on_distilled_text(tmp_path: Path) -> None:
    """Nothing is prepared, and the user's folder does not enter the record."""
    ended = _bash(
        RECIPES / "adaptive.sh", "--dry-run", "speed", folder=tmp_path, DISTILLED="/own/distilled"
    )
    assert ended.returncode == 0, ended.stderr
    commands = _commands(ended.stdout)
    assert not any(words[1] == "preprocess" for words in commands)
    trained = [words for words in commands if words[:2] == ["nmtgrid", "train"]]
    assert trained and all(words[2] == "/own/distilled" for words in trained)
    (kept,) = (words for words in commands if words[1].endswith("results.py"))
    invoked = kept[kept.index("--command") + 1]
    assert "DISTILLED=DIR" in invoked and "/own" not in invoked


def test_aligned_decoders_begin_from_one_without_exits(tmp_path: Path) -> None:
    chosen = {"START_MINUTES": "18", "MINUTES": "6", "LABEL": "start"}
    ended = _bash(RECIPES / "adaptive.sh", "--dry-run", "speed", folder=tmp_path, **chosen)
    assert ended.returncode == 0, ended.stderr
    commands = _commands(ended.stdout)
    start, aligned, *others = (words for words in commands if words[:2] == ["nmtgrid", "train"])
    assert "model.exits=none" in start and start[start.index("--max-minutes") + 1] == "18"
    assert aligned[aligned.index("--init") + 1] == start[start.index("--out") + 1]
    assert aligned[aligned.index("--max-minutes") + 1] == "6"
    # Predictors are fine-tuned from the aligned decoder.
    assert all(words[words.index("--init") + 1].endswith("aligned-seed1") for words in others)
    (kept,) = (words for words in commands if words[1].endswith("results.py"))
    assert "START_MINUTES=18" in kept[kept.index("--command") + 1]
    ended = _bash(RECIPES / "adaptive.sh", "--dry-run", "clock", folder=tmp_path, **chosen)
    assert ended.returncode == 2 and "START_MINUTES does not apply to clock" in ended.stderr


def test_a_resumed_training_goes_on_with_its_own_weights(tmp_path: Path) -> None:
    """The run that began with another model's weights resumes without them; no other run does."""
    chosen = {"START_MINUTES": "18", "MINUTES": "6", "LABEL": "start"}
    start, aligned, other, *_ = _trained("adaptive.sh", tmp_path, **chosen)
    folder = tmp_path / aligned[aligned.index("--out") + 1]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    *resumed, after = _trained("adaptive.sh", tmp_path, RESUME="1", **chosen)[:3]
    expected = [word if word != "--overwrite" else "--resume" for word in aligned]
    initial = expected.index("--init")
    assert resumed == [start, expected[:initial] + expected[initial + 2 :]]
    assert after == other and "--overwrite" in after


def test_tables_of_exits_are_made_with_several_seeds(tmp_path: Path) -> None:
    path, chosen = RECIPES / "adaptive.sh", {"SEEDS": "1 2", "DEPTHS": "2", "COUNTS": "1"}
    ended = _bash(path, "--dry-run", "5.2", folder=tmp_path, **chosen)
    assert ended.returncode == 0, ended.stderr
    trained = [
        (Path(words[words.index("--out") + 1]).name, words[words.index("--seed") + 1])
        for words in _commands(ended.stdout)
        if words[:2] == ["nmtgrid", "train"]
    ]
    assert sorted(trained) == [
        (f"{name}-seed{seed}", seed) for name in ("aligned", "blocks2", "mixed1") for seed in "12"
    ]
    ended = _bash(path, "--dry-run", "5.2", "5.6", folder=tmp_path, **chosen)
    assert ended.returncode == 2 and "several SEEDS" in ended.stderr and "$ " not in ended.stdout


def test_a_corpus_without_a_preset_with_exits(tmp_path: Path) -> None:
    path, corpus = RECIPES / "adaptive.sh", {"ON": "iwslt15-en-vi"}
    ended = _bash(path, "--dry-run", "speed", folder=tmp_path, **corpus)
    assert ended.returncode == 2 and "set PRESET, for example to" in ended.stderr
    ended = _bash(path, "--dry-run", "speed", folder=tmp_path, **corpus, PRESET="multi30k-exits")
    assert ended.returncode == 0 and "--preset multi30k-exits" in ended.stdout


def test_records_name_no_folder(tmp_path: Path) -> None:
    chosen = {"DATA": "/my/data", "PYTHONPATH": "/my/code", "GRID": "training.learning_rate=1,2"}
    ended = _bash(RECIPES / "tune.sh", "--dry-run", folder=tmp_path, **chosen)
    kept = next(words for words in _commands(ended.stdout) if "--command" in words)
    call = "DATA=DIR GRID=training.learning_rate=1,2 bash recipes/tune.sh"
    assert kept[kept.index("--command") + 1] == call


def test_the_command_for_all_names_every_experiment() -> None:
    ended = _bash(RECIPES / "small.sh", "--dry-run")
    assert ended.returncode == 0
    lines = [line.rstrip() for line in ended.stdout.splitlines()]
    for name in (*ALL, "quickstart"):
        for experiment in _experiments(name):
            assert f"SMALL=1 bash recipes/{name}.sh {experiment}".rstrip() in lines


@pytest.mark.parametrize("name", sorted({*ALL, *WITHOUT_A_PLAN}))
def test_help_is_the_head_and_does_nothing(name: str, tmp_path: Path) -> None:
    path = RECIPES / f"{name}.sh"
    ended = _bash(path, "--help", folder=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = path.read_text("utf-8").split("\n")[1:]
    first, *more = (line[2:] for line in lines if not line.startswith("#SBATCH"))
    assert ended.stdout.startswith(f"{first}\n{more[0]}") and f"recipes/{name}.sh" in ended.stdout
    assert "set -euo" not in ended.stdout and not list(tmp_path.iterdir())


def test_options_may_come_after_what_is_chosen(tmp_path: Path) -> None:
    first, last = (
        _bash(RECIPES / "pervasive.sh", *words, folder=tmp_path).stdout
        for words in (
            ["--dry-run", "table-3.4", "table-3.5"],
            ["table-3.4", "table-3.5", "--dry-run"],
        )
    )
    assert first == last and "$ nmtgrid train" in first
    helped = _bash(RECIPES / "pervasive.sh", "table-3.4", "--help", folder=tmp_path)
    assert helped.returncode == 0 and "--dry-run" in helped.stdout and "$ " not in helped.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("corpus", "fault"),
    [
        ("multi30k-en-vi", "Multi30k has no language vi: cs de en fr"),
        ("multi30k-de-de", "source and target are both de"),
        ("multi30k-german", "there is no corpus multi30k-german"),
    ],
)
def test_wrong_languages_are_refused(corpus: str, fault: str, tmp_path: Path) -> None:
    for name in ("zoo", "policies"):
        ended = _bash(RECIPES / f"{name}.sh", "--dry-run", folder=tmp_path, ON=corpus)
        assert ended.returncode == 2 and fault in ended.stderr


@pytest.mark.parametrize("name", ["quickstart", "zoo", "smoothing"])
def test_what_cannot_be_chosen_is_refused(name: str, tmp_path: Path) -> None:
    ended = _bash(RECIPES / f"{name}.sh", "nothing", folder=tmp_path)
    assert ended.returncode == 2 and "takes no arguments, but got `nothing`" in ended.stderr


@pytest.mark.parametrize("options", [[], ["--fast", "-x"]])
def test_the_checks_tell_their_plan(options: list[str], tmp_path: Path) -> None:
    ended = _bash(RECIPES / "test.sh", "--dry-run", *options, folder=tmp_path)
    assert ended.returncode == 0 and not list(tmp_path.iterdir())
    plan = ended.stdout.splitlines()
    assert all(line.startswith("$ python -m ") for line in plan)
    assert plan[0].endswith("ruff check .") and "pytest" in plan[-1]
    assert plan[-1].endswith(" -x") == bool(options)


def test_settings_of_a_file_come_after_a_recipes_preset(tmp_path: Path) -> None:
    ended = _bash(RECIPES / "multi30k.sh", "--dry-run", folder=tmp_path, CONFIG="my.toml")
    training = next(words for words in _commands(ended.stdout) if words[1] == "train")
    assert training[training.index("--config") + 1] == "my.toml" and "--preset" in training
    assert "CONFIG=my.toml bash recipes/multi30k.sh" in ended.stdout


def test_the_quickstarts_plan_removes_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "runs" / "toy" / "model"
    kept.mkdir(parents=True)
    ended = _bash(RECIPES / "quickstart.sh", "--dry-run", folder=tmp_path)
    assert ended.returncode == 0 and "$ nmtgrid train" in ended.stdout and kept.is_dir()


def _shell(lines: str, folder: Path) -> Completed:
    """Run lines of shell as a recipe would, two of its commands side by side."""
    script = f"set -euo pipefail\nJOBS=2\nsource {RECIPES}/common.sh\n{lines}"
    return _bash("-c", script, folder=folder)


def test_what_runs_side_by_side(tmp_path: Path) -> None:
    done = _shell(
        "work() { sleep 0.2; touch $1; }\n"
        "for name in a b c; do beside $name.log work $name; done\n"
        "all_done; ls ?",
        tmp_path,
    )
    assert (done.returncode, done.stdout.split()[-3:]) == (0, ["a", "b", "c"])
    # It ends at its first fault, as `set -e` says, and its last words are shown.
    done = _shell(
        "bad() { echo something is wrong; false; touch never; }\n"
        "work() { sleep 0.5; touch $1; }\n"
        "beside bad.log bad; beside a.log work a; beside b.log work b\n"
        "all_done; touch never",
        tmp_path,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: background jobs failed: bad.log", "something is wrong"
    ]  # fmt: skip
    assert (tmp_path / "a").exists() and (tmp_path / "b").exists()
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("recipe", "chosen", "fault"),
    [
        ("zoo.sh", {"SEEDS": "1 2 3"}, "SEEDS has no effect here"),
        ("multi30k.sh", {"ON": "toy"}, "ON has no effect here"),
        ("trust.sh", {"ON": "multi30k"}, "ON has no effect here"),
        *(
            (recipe, {name: "1"}, f"{name} has no effect here")
            for recipe, names in WITHOUT_EFFECT.items() for name in names.split()
        ),
        ("zoo.sh", {"ON": "toy", "PRESET": "toy"}, "PRESET has no effect here"),
        ("pervasive.sh", {"ON": "multi30k iwslt14-de-en", "PAIRS": "9"}, "PAIRS has no effect"),
        ("smoothing.sh", {"DATA": "data", "PAIRS": "9"}, "PAIRS has no effect here, on DATA"),
        ("adaptive.sh", {"DISTILLED": "data", "PAIRS": "9"}, "PAIRS has no effect here, on"),
        ("tune.sh", {"MODE": "grid", "DRAWS": "2"}, "DRAWS has no effect here with MODE=grid"),
        ("tune.sh", {"MODE": "grid", "ETA": "2"}, "ETA has no effect here with MODE=grid"),
        ("tune.sh", {"MODE": "random", "DRAWS": "2", "ETA": "2"}, "ETA has no effect here with"),
        ("tune.sh", {"DATA": "data", "ON": "toy"}, "ON has no effect here with DATA"),
        ("tune.sh", {"MODE": "all"}, "invalid MODE: all (choose from: grid random halving"),
        ("slurm.sh", {"TOKENS": "x"}, "TOKENS must be a whole number above 0, not `x`"),
        ("slurm.sh", {"LARGEST": "0"}, "LARGEST must be a whole number above 0, not `0`"),
        ("slurm.sh D M --resume", {"TOKENS": "9"}, "TOKENS has no effect here with options"),
        ("slurm.sh", {"SMALL": "1", "LARGEST": "9"}, "LARGEST has no effect here with SMALL=1"),
        ("smoothing.sh", {"LOSSES": "mle mle"}, "LOSSES has mle twice: mle mle"),
        ("smoothing.sh", {"LOSSES": "mle seq-other-all"}, "there is no loss seq-other-all"),
        ("captions.sh", {"LOSSES": "mle other"}, "there is no loss other"),
        ("captions.sh", {"DECODERS": "nope"}, "invalid DECODERS: nope (choose from: lstm top-down"),
        ("smoothing.sh", {"ARCHS": "nope"}, "invalid ARCHS: nope (choose from: pervasive"),
        ("paragraphs.sh", {"ARCHS": "bilstm nope"}, "invalid ARCHS: nope (choose from: pervasive"),
        ("paragraphs.sh", {"ARCHS": "bilstm bilstm"}, "ARCHS has bilstm twice"),
        ("activations.sh", {"SKIPS": "nope"}, "invalid SKIPS: nope (choose from: residual"),
        ("ingredients.sh", {"STEPS": "nope"}, "STEPS has nope, which is not of the form name:"),
        ("ingredients.sh", {"STEPS": "base:a=1"}, "STEPS has a second step base"),
        ("guarantee.sh", {"ALLOW": "5 200"},
         "ALLOW must be one or several numbers above 0 and below"),
        ("adaptive.sh guarantee", {"ALLOW": "0"}, "ALLOW must be one or several numbers above 0"),
        ("guarantee.sh", {"CONFIDENCE": "9"}, "CONFIDENCE must be a number above 0 and below 1"),
        ("trust.sh", {"ONLY": "kills nope"}, "invalid ONLY: nope (choose from: kills"),
        ("zoo.sh", {"SMALL": "yes"}, "SMALL must be 0 or 1, not `yes`"),
        ("zoo.sh", {"RESUME": "yes"}, "RESUME must be 0 or 1, not `yes`"),
        ("zoo.sh", {"JOBS": "x"}, "JOBS must be a whole number, not `x`"),
        ("zoo.sh", {"UPDATES": "-1"}, "UPDATES must be a whole number, not `-1`"),
        ("zoo.sh", {"UPDATES": "08"}, "UPDATES must be a whole number, not `08`"),
        ("online.sh", {"MINUTES": "1O"}, "MINUTES must be a number, not `1O`"),
        ("quickstart.sh", {"PAIRS": "10k"}, "PAIRS must be a whole number, not `10k`"),
        ("multi30k.sh", {"SEEDS": "x"}, "SEEDS must be one or several whole numbers"),
        ("multi30k.sh", {"SEEDS": "1 1"}, "SEEDS names a seed twice: 1 1"),
        ("pervasive.sh", {"BEAMS": "1 x"}, "BEAMS must be one or several whole numbers"),
        ("zoo.sh", {"LABEL": "a/b"}, "LABEL must be a word"),
        ("zoo.sh", {"SYSTEMS": "bilstm lstm"}, "invalid SYSTEMS: lstm (choose from: pervasive"),
        ("multi30k.sh", {"TRAIN_PAIRS": "9"}, "TRAIN_PAIRS has no effect here"),
        ("extra.sh", {"MERGES": "9"}, "MERGES has no effect here"),
        ("zoo.sh", {"TRAIN_PAIRS": "few"}, "TRAIN_PAIRS must be a whole number, not `few`"),
        ("zoo.sh", {"ON": "toy", "TRAIN_PAIRS": "9"}, "TRAIN_PAIRS and MERGES are for Multi30k"),
        ("online.sh 4.2", {"ARCHS": "transfomer"}, "invalid ARCHS: transfomer (choose from"),
        ("online.sh 4.9", {"ENCODERS": "other"}, "invalid ENCODERS: other (choose from"),
        ("online.sh 4.2 4.16", {"SEEDS": "1 2"}, "figure 4.16 takes one seed"),
        ("policies.sh", {"READERS": "marginal-other"}, "invalid READERS: marginal-other"),
        ("pervasive.sh table-3.4 other", {}, "there is no experiment other"),
        ("adaptive.sh 5.2 other", {}, "there is no table or figure other"),
    ],
)  # fmt: skip
def test_what_a_recipe_cannot_do_is_refused_before_it_begins(
    recipe: str, chosen: dict[str, str], fault: str, tmp_path: Path
) -> None:
    """A record would claim it, or a run of hours would end by it."""
    script, *arguments = recipe.split()
    ended = _bash(RECIPES / script, "--dry-run", *arguments, folder=tmp_path, **chosen)
    assert ended.returncode == 2 and f"error: {fault}" in ended.stderr
    assert "$ " not in ended.stdout


@pytest.mark.parametrize(
    ("recipe", "chosen", "expected"),
    [
        ("adaptive.sh 5.2 5.3 5.4", {"COUNTS": "1", "WEIGHTS": "root", "RATIOS": "0.7"},
         {"sequences=1", "weights=root", "gradient_ratio=0.7"}),
        ("online.sh 4.9", {"ONLY_K": "3"}, {"keep figure-4.9-k3 ", "objective.k=3"}),
        ("zoo.sh", {"ON": "multi30k"}, {"zoo-updates-multi30k.json", "--lowercase"}),
        ("zoo.sh", {"ON": "multi30k", "TRAIN_PAIRS": "900", "MERGES": "300"},
         {"text/train-900 ", "--merges 300 ", "zoo-updates-pairs900-merges300-multi30k.json"}),
        ("zoo.sh", {"ON": "multi30k", "MERGES": "300"}, {"zoo-updates-merges300-multi30k.json"}),
        ("extra.sh", {"ON": "multi30k"}, {"extra-multi30k.json"}),
        ("multi30k.sh", {"PRESET": "toy-exits"}, {"--preset toy-exits"}),
        ("smoothing.sh", {"DATA": "/my/data"}, {"train /my/data", "'DATA=DIR SMALL=1 bash "}),
        ("adaptive.sh speed", {"SEED": "1", "SEEDS": "2"}, {"--seed 2", "--seeds 2"}),
    ],
)  # fmt: skip
def test_what_is_chosen_counts_in_small_runs_too(
    recipe: str, chosen: dict[str, str], expected: set[str], tmp_path: Path
) -> None:
    """The record names it."""
    script, *arguments = recipe.split()
    ended = _bash(RECIPES / script, "--dry-run", *arguments, folder=tmp_path, SMALL="1", **chosen)
    assert ended.returncode == 0, ended.stderr
    assert {text for text in expected if text not in ended.stdout} == set()


def test_records_name_the_seeds_that_were_used(tmp_path: Path) -> None:
    """Some tables and pictures are of the first one."""
    seeds = {}
    for script, *experiments in (
        ("pervasive", "table-3.6", "table-3.7", "figure-3.9", "figure-3.10"),
        ("policies",),
    ):
        path = RECIPES / f"{script}.sh"
        ended = _bash(path, "--dry-run", *experiments, folder=tmp_path, ON="toy", SEEDS="1 2")
        for words in _commands(ended.stdout):
            if words[1].endswith("results.py"):
                seeds[words[3]] = words[words.index("--seeds") + 1]
    both = {name for name, value in seeds.items() if value == "1 2"}
    assert both == {"table-3.7", "policies"} and len(seeds) == 7


CALL = re.compile(r'((?:[A-Z_]+=(?:"[^"]*"|\S+) )*)bash recipes/(\S+\.sh)((?: [\w.-]+)*)')
"""A call of a recipe: its variables, its name, its arguments."""


def test_no_variable_of_a_record_is_refused() -> None:
    """What was measured can be measured again by the same command."""
    records = (read_json(path) for path in sorted((RECIPES / "records").glob("*.json")))
    calls: dict[tuple[str | None, ...], tuple[str, str, str, dict[str, str]]] = {}
    for variables, recipe, arguments in itertools.chain.from_iterable(
        CALL.findall(record.get("command", "")) for record in records
    ):
        chosen = dict(word.split("=", 1) for word in shlex.split(variables))
        # Calls with the same variables are refused alike, but for MODE and the corpus.
        key = (recipe, *chosen, chosen.get("MODE"), chosen.get("ON"))
        calls[key] = (variables, recipe, arguments, chosen)
    assert len(calls) > 50
    refused = {}
    for variables, recipe, arguments, chosen in calls.values():
        # Refused is what is refused before the first command.
        words = ['bash "$@" | head -n 1', "bash", RECIPES / recipe, "--dry-run", *arguments.split()]
        ended = _bash("-c", *words, **chosen)
        if not ended.stdout.startswith("$ "):
            refused[f"{variables}{recipe}{arguments}"] = ended.stderr
    assert refused == {}


@pytest.mark.parametrize(
    ("recipe", "chosen", "expected"),
    [
        ("zoo.sh", {"ON": "toy", "PAIRS": "77"}, "--toy 77 "),
        ("pervasive.sh", {"ON": "multi30k toy", "PAIRS": "77"}, "--toy 77 "),
        ("multi30k.sh", {"BEAM": "7"}, "--beam 7 "),
        ("iwslt14-de-en.sh", {"UPDATES": "77"}, "--max-updates 77 "),
        ("multi30k.sh", {"SMALL": "1", "PAIRS": "77"}, "--toy 77 "),
        ("slurm.sh", {"SMALL": "1", "PAIRS": "77", "UPDATES": "7"}, "--max-updates 7 "),
        ("report.sh", {"CONFIG": "my.toml"}, "--config my.toml "),
        ("smoothing.sh", {"LABEL": "mine"}, "keep table-E.3-mine "),
        ("smoothing.sh", {"ARCHS": "mine", "SETS": "--import mine.py"}, "--arch mine "),
        ("guarantee.sh", {"ALLOW": "0.5 99.5", "CONFIDENCE": ".95"}, "--allow 0.5 99.5 "),
    ],
)  # fmt: skip
def test_what_functions_for_all_recipes_read_has_its_effect(
    recipe: str, chosen: dict[str, str], expected: str, tmp_path: Path
) -> None:
    ended = _bash(RECIPES / recipe, "--dry-run", folder=tmp_path, **chosen)
    assert ended.returncode == 0, ended.stderr
    assert expected in ended.stdout


STUB = """
nmtgrid() {
    while [ $# -gt 1 ]; do
        case "$1" in
        --json | --out | --traces) case "$2" in *.*) echo '{}' >"$2" ;; *) mkdir -p "$2" ;; esac ;;
        esac
        shift
    done
}
DATA=data SETS=() SMALL=0 JOBS=1
"""
"""An `nmtgrid` that only leaves its files."""


def test_models_of_other_settings_are_refused(tmp_path: Path) -> None:
    """The record would say that they had been trained as was asked for."""
    train = "train_model 'a b/model' pervasive toy 1 {} 0 --init start"
    (tmp_path / "a b").mkdir()
    config = tmp_path / "a.toml"
    config.write_text("depth = 1")
    ended = _shell(f"{STUB}CONFIG=a.toml\n{train.format(40)}\n{train.format(40)}", tmp_path)
    assert ended.returncode == 0 and ended.stdout.count("$ nmtgrid train") == 1, ended.stderr
    assert "has already been trained" in ended.stdout
    other = _shell(f"{STUB}CONFIG=a.toml\n{train.format(20)}", tmp_path)
    assert other.returncode == 2 and "a b/model was made with other settings" in other.stderr
    assert "< 40\n" in other.stderr and "> 20\n" in other.stderr
    config.write_text("depth = 2")
    other = _shell(f"{STUB}CONFIG=a.toml\n{train.format(40)}", tmp_path)
    assert other.returncode == 2 and "$ nmtgrid" not in other.stdout
    # Nor is a run resumed that others began; that of an older version is.
    (tmp_path / "a b/model/done.json").unlink()
    (tmp_path / "a b/model/config.json").write_text("{}")
    resumed = f"{STUB}RESUME=1\n{train.format(20)}"
    assert _shell(resumed, tmp_path).returncode == 2
    (tmp_path / "a b/model.command").unlink()
    ended = _shell(resumed, tmp_path)
    assert ended.returncode == 0 and "--resume" in ended.stdout and "--init" not in ended.stdout


def test_results_of_another_command_or_model_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    scores, trained = tmp_path / "model/test-beam1.json", tmp_path / "model/done.json"
    trained.write_text("{}")

    def runs(option: str) -> int:
        ended = _shell(f"{STUB}translate model test 1 --exit {option}", tmp_path)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.count("$ nmtgrid decode")

    assert [runs("1"), runs("1"), runs("2"), runs("2")] == [1, 0, 1, 0]
    # A model that was trained again.
    after = scores.stat().st_mtime_ns + 10**9
    os.utime(trained, ns=(after, after))
    assert runs("2") == 1
    results = tmp_path / "eval/results.json"
    results.parent.mkdir()
    for complete, count in (("false", 1), ("true", 0)):
        results.write_text(f'{{"complete": {complete}}}')
        ended = _shell(f"{STUB}once eval/results.json nmtgrid online-eval other", tmp_path)
        assert ended.stdout.count("$ nmtgrid") == count


def test_half_a_dataset_or_one_of_other_settings_is_not_taken(tmp_path: Path) -> None:
    def runs(pairs: int) -> Completed:
        return _shell(f"{STUB}PAIRS={pairs} toy_dataset data", tmp_path)

    data = tmp_path / "data"
    data.mkdir()
    # Killed while the units were written: the manifest, which comes last, does not name them.
    (data / "vocab.qa.txt").touch()
    (data / "manifest.json").write_text("{}")
    assert "$ nmtgrid bpe learn" in runs(1000).stdout
    (data / "manifest.json").write_text('{"units": {}}')
    assert "$ nmtgrid" not in runs(1000).stdout
    other = runs(500)
    assert other.returncode == 2 and "< 1000" in other.stderr and "> 500" in other.stderr


def test_skip_connections_are_trained_anew_where_settings_are_asked_for(tmp_path: Path) -> None:
    models = tmp_path / "runs/pervasive-multi30k"
    for name in ("max", "dense"):
        (models / f"pa-{name}-seed1").mkdir(parents=True)
        (models / f"pa-{name}-seed1/done.json").write_text("{}")
    chosen = {"ON": "multi30k", "SKIPS": "residual-cumulative dense"}
    path = RECIPES / "activations.sh"
    shared = _bash(path, "--dry-run", folder=tmp_path, **chosen)
    assert "$ nmtgrid train" not in shared.stdout
    assert "--note 'Some models are those of pervasive.sh table-3.4.'" in shared.stdout
    own = _bash(path, "--dry-run", folder=tmp_path, UPDATES="500", **chosen)
    assert own.stdout.count("$ nmtgrid train") == 2 and "--note" not in own.stdout


def test_figures_that_share_a_model_train_it_alike(tmp_path: Path) -> None:
    """Otherwise the second one would be refused."""
    plans = {
        "pervasive": "table-3.4 table-3.5 table-3.6 table-3.7 table-3.8 figure-3.9 conll",
        "online": ALL["online"],
        "adaptive": ALL["adaptive"],
    }
    for name, experiments in plans.items():
        ended = _bash(RECIPES / f"{name}.sh", "--dry-run", *experiments.split(), ON="toy")
        trained: dict[str, list[str]] = {}
        for words in _commands(ended.stdout):
            if words[:2] == ["nmtgrid", "train"] and "--out" in words:
                out = words[words.index("--out") + 1]
                assert trained.setdefault(out, words) == words
        assert len(trained) > 5
    # The reading policies' model, of which recipes/guarantee.sh makes use.
    first, second = (
        next(words for words in _trained(recipe, tmp_path) if "wait-k-area" in words)
        for recipe in ("policies.sh", "guarantee.sh")
    )
    assert first == second
