"""recipes/tune.sh: rungs, grids, what is trained again and what is not, order, table, picture."""

import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nmtgrid.analysis.plotting import lines
from nmtgrid.base.errors import StorageError
from nmtgrid.cli.app import main
from recipes import tune, tune_plan, tune_table
from recipes.tune_plan import Budget, PlanError, Sweep
from tests.unit.helpers.train_command import SMALL_TRANSFORMER, toy_data

PROJECT = Path(__file__).resolve().parents[3]
GRID = {"training.learning_rate": ["1", "2", "3"], "model.dropout": ["0.1", "0.2"]}


def sweep(**changes: Any) -> Sweep:
    values: dict[str, Any] = {
        "data": Path("data"), "out": Path("out"), "arch": "transformer", "preset": "toy",
        "grid": GRID, "mode": "halving", "budget": Budget(90), **changes,
    }  # fmt: skip
    return Sweep(**values)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # Counts are divided by eta and rounded down, until one is left with the full budget.
        ({}, [(6, 10), (2, 30), (1, 90)]),
        ({"eta": 2}, [(6, 22), (3, 45), (1, 90)]),
        ({"eta": 6}, [(6, 15), (1, 90)]),
        ({"eta": 9}, [(6, 10), (1, 90)]),
        ({"rungs": 2}, [(6, 30), (2, 90)]),
        ({"rungs": 1}, [(6, 90)]),
        ({"draws": 3}, [(3, 30), (1, 90)]),
        ({"draws": 1}, [(1, 90)]),
        ({"draws": 99}, [(6, 10), (2, 30), (1, 90)]),
        ({"mode": "random", "draws": 4}, [(4, 90)]),
        ({"mode": "grid", "draws": 4}, [(6, 90)]),
    ],
)
def test_rungs(changes: dict[str, Any], expected: list[tuple[int, int]]) -> None:
    rungs = sweep(**changes).schedule()
    assert [(rung.count, rung.budget.updates) for rung in rungs] == expected
    assert [rung.number for rung in rungs] == [*range(1, len(rungs) + 1)]


def test_minutes_are_divided_too() -> None:
    rungs = sweep(budget=Budget(minutes=30.0)).schedule()
    minutes = [rung.budget.minutes for rung in rungs]
    assert minutes == [pytest.approx(30 / 9), 10.0, 30.0]


@pytest.mark.parametrize(("updates", "minutes"), [(120, 0.0), (7, 0.0), (0, 2.5), (0, 30.0)])
def test_budgets_are_those_of_all_recipes(updates: int, minutes: float) -> None:
    script = f"source {PROJECT}/recipes/common.sh; limits {updates} {minutes:g}; echo ${{LIMIT[@]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    own = Budget(updates, minutes).options()
    assert sorted(done.stdout.split()) == sorted(own)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=1,2 c=x", {"a.b": ["1", "2"], "c": ["x"]}),
        ("a=[1,2],[3]  b=yes", {"a": ["[1,2]", "[3]"], "b": ["yes"]}),
        ("\n a=1 \n", {"a": ["1"]}),
    ],
)
def test_grids(text: str, expected: dict[str, list[str]]) -> None:
    assert tune_plan.parse_grid(text) == expected


def test_a_grid_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "grid.txt"
    path.write_text("# what is compared\na.b = 1, 2\n\nc=x # all\n")
    assert tune_plan.parse_grid(str(path)) == {"a.b": ["1", "2"], "c": ["x"]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no setting"), (" ", "names no setting"), ("=1", "not of the form"),
        ("a=", "not of the form"), ("a=1,,2", "not of the form"), ("a=1 b", "not of the form"),
        ("a=1 a=2", "`a` twice"), ("a=1,2,1", "a value twice"), ("nowhere", "cannot be read"),
    ],
)  # fmt: skip
def test_wrong_grids_are_refused(text: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        tune_plan.parse_grid(text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budget": Budget()}, "MINUTES=M or UPDATES=N"),
        ({"budget": Budget(minutes=-1.0)}, "MINUTES=M or UPDATES=N"),
        ({"budget": Budget(minutes=float("nan"))}, "MINUTES=M or UPDATES=N"),
        ({"eta": 1}, "ETA must be at least 2"),
        ({"jobs": 0}, "JOBS must be at least 1"),
        ({"mode": "random"}, "DRAWS=N"),
        ({"grid": {"training.warmup_updates": ["1", "2"]}}, "MODE=grid"),
        ({"grid": {"a": [*map(str, range(2000))]}}, "more than 1,000"),
        ({"grid": {f"a{n}": ["0", "1"] for n in range(99)}, "draws": 5}, "more than 1,000"),
    ],
)
def test_wrong_sweeps_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        sweep(**changes)


def test_too_few_updates_are_refused() -> None:
    with pytest.raises(PlanError, match="4 updates are too few"):
        sweep(budget=Budget(4)).schedule()


def test_combinations_and_draws() -> None:
    every = sweep().settings()
    assert [[*setting.values()] for setting in every[:3]] == [
        ["1", "0.1"], ["1", "0.2"], ["2", "0.1"],
    ]  # fmt: skip
    assert len({json.dumps(setting) for setting in every}) == 6 and [*every[0]] == [*GRID]
    drawn = [sweep(draws=3, seed=seed).settings() for seed in (1, 1, 2, 3, 4)]
    assert drawn[0] == drawn[1]
    assert len({json.dumps(draw) for draw in drawn}) > 1
    assert all(len(draw) == 3 and all(each in every for each in draw) for draw in drawn)
    # Far too many to be listed are drawn from all the same.
    many = {f"a{n}": [str(value) for value in range(10)] for n in range(12)}
    assert len(sweep(grid=many, draws=5).settings()) == 5


def test_a_folder_is_of_one_run_alone() -> None:
    """Whatever changes what is trained changes the name; where and how many at a time does not."""

    def name(plan: Sweep, index: int = 0, rung: int = 0) -> str:
        return plan.training(index, plan.settings()[index], plan.schedule()[rung]).name

    own = name(sweep())
    assert own == name(sweep(jobs=3, out=Path("x"), data=Path("y"), retry=True))
    others = [
        name(sweep(), 1), name(sweep(), 0, 1), name(sweep(seed=2)), name(sweep(arch="bilstm")),
        name(sweep(preset="")), name(sweep(options=("--set", "a=1"))), name(sweep(eta=2)),
    ]  # fmt: skip
    assert len({own, *others}) == 8
    long = sweep(grid={"smoothing.token.vectors": ["/a/b" * 100]})
    assert len(name(long)) < 100 and "/" not in name(long)


def test_settings_of_the_grid_come_last() -> None:
    plan = sweep(options=("--set", "model.dropout=0.9"))
    words = plan.training(0, plan.settings()[0], plan.schedule()[0]).options
    assert words[-1] == "model.dropout=0.1" and words.count("--preset") == 1


def record(loss: float | None, rung: int = 1, **settings: str) -> dict[str, Any]:
    """Return a record; a loss of None is that of a run that failed."""
    return {
        "settings": settings or {"a": str(loss)}, "rung": rung, "budget": "3 updates", "seed": 1,
        "outcome": "finished" if loss is not None else "failed", "valid_nll": loss,
        "reason": "" if loss is not None else "bad", "command": "nmtgrid train",
        "curve": {"minutes": [0.5, 1.0], "nll": [9.0, loss]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([3.0, 1.0, 2.0], [1, 2, 0]),
        ([2.0, 1.0, 1.0, 2.0], [1, 2, 0, 3]),
        ([None, 2.0, None, 1.0], [3, 1]),
        ([None, None], []),
    ],
)
def test_the_order_of_runs(losses: list[float | None], expected: list[int]) -> None:
    assert tune_table.ranked([record(loss) for loss in losses]) == expected


def test_the_best_is_of_the_last_rung() -> None:
    records = [
        record(1.0, a="x"), record(2.0, a="y"), record(None, a="z"), record(1.6, a="w"),
        record(1.5, 2, a="y"), record(1.7, 2, a="x"),
    ]  # fmt: skip
    best = tune_table.best_run(records)
    assert best is not None and (best["settings"], best["rung"]) == ({"a": "y"}, 2)
    rows = tune_table.table_rows(records)
    assert [(row["a"], row["rung"]) for row in rows] == [("y", 2), ("x", 2), ("w", 1), ("z", 1)]
    assert rows[0]["valid_bits"] == pytest.approx(1.5 * 1.4426950408889634)
    assert rows[-1]["valid_bits"] is None
    # Where a rung has failed as a whole, the best of the one before is all there is.
    best = tune_table.best_run([record(1.0, a="x"), record(None, 2, a="x")])
    assert best is not None and best["rung"] == 1
    assert tune_table.best_run([record(None)]) is None


def test_lines_join_what_differs_in_one_setting() -> None:
    records = [
        record(1.0, a="1", b="x"), record(2.0, a="2", b="x"), record(3.0, a="3", b="x"),
        record(4.0, a="1", b="y"), record(5.0, a="3", b="y"),
    ]  # fmt: skip
    best = records[0]["settings"]
    own, other = tune_table.marginal_lines(records, "a", ["1", "2", "3"], best)
    assert ([*own.x], [*own.y], own.faint) == ([0, 1, 2], [1.0, 2.0, 3.0], False)
    assert ([*other.x], [*other.y], other.faint) == ([0, 2], [4.0, 5.0], True)


@pytest.mark.parametrize("rungs", [1, 2])
def test_the_picture(tmp_path: Path, rungs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [record(2.0, a="1", b="x"), record(1.0, a="2", b="x"), record(None, a="3", b="x")]
    records += [record(0.5, 2, a="2", b="x")] * (rungs - 1)
    drawn: list[Any] = []

    def draw_panels(panels: Any, path: Path) -> None:
        drawn.extend(panels)
        lines.draw_panels(panels, path)

    monkeypatch.setattr(tune_table, "draw_panels", draw_panels)
    path = tmp_path / "table.png"
    tune_table.draw(records, {"a": ["1", "2", "3"], "b": ["x"]}, path)
    assert path.read_bytes()[:4] == b"\x89PNG"
    # A setting of one value has no diagram.
    curves, marginal = drawn
    assert "a 2, b x" in curves.title and curves.logarithmic_x == (rungs == 2)
    assert [line.faint for line in curves.lines] == [False] * rungs + [True]
    assert marginal.places == ["1", "2", "3"] and [[*line.x] for line in marginal.lines] == [[0, 1]]


class Fake:
    """Trainings that end at once: their losses, and what was called."""

    def __init__(self, loss: Callable[[dict[str, str], int], float | int]) -> None:
        self.loss, self.running, self.most = loss, 0, 0
        self.calls: list[tuple[str, str]] = []

    def __call__(self, words: Sequence[str], **_: Any) -> Any:
        sets = dict(word.split("=", 1) for word in words if word.count("=") == 1)
        updates = int(words[words.index("--max-updates") + 1])
        folder = Path(words[words.index("--out") + 1])
        settings = {name: sets[name] for name in GRID}
        self.calls.append((f"{updates} {'/'.join(settings.values())}", words[-1]))
        loss = self.loss(settings, updates)
        code = 0
        if isinstance(loss, int):
            code = loss
            folder.with_name(f"{folder.name}.log").write_text("update 1\nerror: It broke.\n")
        else:
            folder.mkdir(exist_ok=True)
            events = [
                {"event": "validated", "update": updates, "minutes": updates / 10, "nll": loss},
                {"event": "finished", "update": updates, "minutes": updates / 10},
            ]
            text = "".join(f"{json.dumps(line)}\n" for line in events)
            (folder / "metrics.jsonl").write_text(text)
        self.running += 1
        self.most = max(self.most, self.running)
        return _Process(self, code)


class _Process:
    def __init__(self, fake: Fake, code: int) -> None:
        self.fake, self.returncode, self.polled = fake, code, 0

    def poll(self) -> int | None:
        self.polled += 1
        if self.polled == 2:
            self.fake.running -= 1
        return self.returncode if self.polled > 1 else None

    def wait(self) -> int:
        return self.returncode

    def terminate(self) -> None:
        """It ends by itself."""


def by_rate(settings: dict[str, str], updates: int) -> float:
    """The higher the rate and the longer the training, the better."""
    rate, dropout = float(settings["training.learning_rate"]), float(settings["model.dropout"])
    return 10 - rate + dropout - updates / 100


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Fake, list[dict[str, Any]]]]:
    monkeypatch.setattr(tune, "_PAUSE", 0.0)
    # Which asks a program of its own where there are GPUs.
    monkeypatch.setattr(tune, "machine", lambda: "a machine")

    def run(asked: Sweep, loss: Callable[[dict[str, str], int], float | int]) -> Any:
        fake = Fake(loss)
        monkeypatch.setattr(subprocess, "Popen", fake)
        trainings = tune.Trainings(asked, [1000] * len(asked.settings()))
        return fake, tune.run(asked, trainings)

    return run


def test_halving_trains_the_best_anew(tmp_path: Path, trained: Any) -> None:
    asked = sweep(out=tmp_path)
    fake, records = trained(asked, by_rate)
    names = [name for name, _ in fake.calls]
    first = [f"10 {rate}/{dropout}" for rate in "123" for dropout in ("0.1", "0.2")]
    assert names == [*first, "30 3/0.1", "30 3/0.2", "90 3/0.1"]
    assert {way for _, way in fake.calls} == {"--overwrite"} and fake.most == 1
    assert [record["rung"] for record in records] == [1] * 6 + [2] * 2 + [3]
    last = records[-1]
    assert (
        last["updates"] == 90
        and last["minutes"] == 9.0
        and last["valid_nll"] == pytest.approx(10 - 3 + 0.1 - 0.9)
    )
    assert last["seed"] == 1 and "torch" in last["software"] and last["machine"]
    # Begun again, nothing is trained, and the records are the same.
    again, kept = trained(asked, by_rate)
    assert again.calls == [] and kept == records
    # A larger grid trains what is new alone.
    larger = {**GRID, "training.learning_rate": ["1", "2", "3", "4"]}
    fake, _ = trained(
        dataclasses.replace(asked, grid=larger, mode="grid", budget=Budget(10)), by_rate
    )
    assert [name for name, _ in fake.calls] == ["10 4/0.1", "10 4/0.2"]


def test_ties_go_to_the_first_of_the_grid(tmp_path: Path, trained: Any) -> None:
    fake, _ = trained(sweep(out=tmp_path), lambda settings, updates: 1.0)
    assert [name for name, _ in fake.calls[6:]] == ["30 1/0.1", "30 1/0.2", "90 1/0.1"]


def test_ties_of_later_rungs_go_to_who_was_ahead(tmp_path: Path, trained: Any) -> None:
    def loss(settings: dict[str, str], updates: int) -> float:
        return -by_rate(settings, updates) if updates < 30 else 1.0

    fake, _ = trained(sweep(out=tmp_path), loss)
    assert [name for name, _ in fake.calls[6:]] == ["30 1/0.2", "30 1/0.1", "90 1/0.2"]


def test_side_by_side(tmp_path: Path, trained: Any) -> None:
    fake, records = trained(sweep(out=tmp_path, jobs=4), by_rate)
    assert fake.most == 4 and len(records) == 9
    alone, same = trained(sweep(out=tmp_path / "alone"), by_rate)
    assert [record["settings"] for record in records] == [record["settings"] for record in same]
    assert sorted(fake.calls) == sorted(alone.calls)


def test_failed_runs_are_recorded_and_left(tmp_path: Path, trained: Any) -> None:
    def loss(settings: dict[str, str], updates: int) -> float | int:
        return 2 if settings["training.learning_rate"] == "3" else by_rate(settings, updates)

    asked = sweep(out=tmp_path)
    fake, records = trained(asked, loss)
    assert [name for name, _ in fake.calls[6:]] == ["30 2/0.1", "30 2/0.2", "90 2/0.1"]
    failed = [record for record in records if record["outcome"] == "failed"]
    assert [(record["exit_code"], record["reason"], record["valid_nll"]) for record in failed] == [
        (2, "It broke.", None)
    ] * 2
    assert trained(asked, loss)[0].calls == []
    # Tried again, and this time they learn: they go on, what was trained is not trained again.
    fake, _ = trained(dataclasses.replace(asked, retry=True), by_rate)
    assert [name for name, _ in fake.calls] == [
        "10 3/0.1", "10 3/0.2", "30 3/0.1", "30 3/0.2", "90 3/0.1"
    ]  # fmt: skip


@pytest.mark.parametrize("code", [2, -9])
def test_a_rung_that_fails_ends_the_sweep(tmp_path: Path, trained: Any, code: int) -> None:
    fake, records = trained(sweep(out=tmp_path), lambda settings, updates: code)
    assert len(fake.calls) == len(records) == 6
    reasons = {2: "It broke.", -9: "killed by SIGKILL"}
    assert {record["reason"] for record in records} == {reasons[code]}
    assert tune_table.report(sweep(out=tmp_path), records) == 1
    assert len(json.loads((tmp_path / "table.json").read_text())) == 6


def test_a_run_without_a_loss_has_failed(tmp_path: Path, trained: Any) -> None:
    _, records = trained(sweep(out=tmp_path), lambda settings, updates: float("nan"))
    assert {(record["outcome"], record["exit_code"]) for record in records} == {("failed", 0)}


def test_what_was_begun_is_resumed(tmp_path: Path, trained: Any) -> None:
    asked = sweep(out=tmp_path, mode="grid")
    names = [
        asked.training(index, settings, asked.schedule()[0]).name
        for index, settings in enumerate(asked.settings())
    ]
    # One has saved a state, one was killed before.
    (tmp_path / "runs" / names[1] / "checkpoints" / "update-3").mkdir(parents=True)
    (tmp_path / "runs" / names[2] / "checkpoints").mkdir(parents=True)
    fake, _ = trained(asked, by_rate)
    ways = [way for _, way in fake.calls]
    assert ways == ["--overwrite", "--resume", *["--overwrite"] * 4]


def test_a_signal_begins_nothing_more(
    tmp_path: Path, trained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, started = sweep(out=tmp_path, mode="grid"), []
    real = tune.Trainings._begin

    def begin(self: tune.Trainings, training: Any) -> None:
        real(self, training)
        started.append(training)
        if len(started) == 2:
            self.stop(signal.SIGTERM)

    monkeypatch.setattr(tune.Trainings, "_begin", begin)
    with pytest.raises(tune.Interrupted) as caught:
        # The second one ends with the code of the signal: it is neither finished nor failed.
        trained(asked, lambda settings, updates: 1.0 if settings["model.dropout"] == "0.1" else 143)
    assert caught.value.number == signal.SIGTERM
    assert len(started) == 2 and len([*(tmp_path / "runs").glob("*.json")]) == 1


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_data(tmp_path_factory.mktemp("tune") / "data")


def _main(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["tune.py", *map(str, words)])
    return tune.main()


OPTIONS = SMALL_TRANSFORMER[4:]


def test_wrong_settings_are_refused_before_any_training(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    grid = "training.learning_rat=1 model.dropout=0.1,2"
    words = (toy, "--out", out, "--arch", "transformer", "--preset", "toy", "--updates", 9)
    assert _main(monkeypatch, *words, "--grid", grid, "--", *OPTIONS) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "Did you mean `training.learning_rate`?" in shown
    assert "with training.learning_rat=1, model.dropout=2" in shown and "Traceback" not in shown
    assert not out.exists()
    assert _main(monkeypatch, toy, "--out", out, "--grid", "a=", "--updates", 9) == 2
    assert _main(monkeypatch, tmp_path / "no", "--out", out, "--grid", "a=1", "--updates", 9) == 2


def test_other_data_are_refused(toy: Path, tmp_path: Path) -> None:
    asked = sweep(data=toy, out=tmp_path)
    tune.check_same_data(asked)
    tune.check_same_data(asked)
    other = toy_data(tmp_path / "data", "--separate")
    with pytest.raises(StorageError, match=r"other data.*LABEL="):
        tune.check_same_data(dataclasses.replace(asked, data=other))


@pytest.mark.slow
def test_a_sweep_from_the_first_command_to_the_table(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real trainings: one diverges, one wins and its command trains the same model."""
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    out = tmp_path / "out"
    words = (toy, "--out", out, "--arch", "transformer", "--preset", "toy", "--jobs", 2)
    grid = "training.learning_rate=0.003,1e30"
    options = ("--updates", 4, "--eta", 2, "--grid", grid, "--", *OPTIONS)
    assert _main(monkeypatch, *words, *options) == 0
    shown = capsys.readouterr()
    rows = json.loads((out / "table.json").read_text())
    assert [(row["learning_rate"], row["rung"], row["outcome"]) for row in rows] == [
        ("0.003", 2, "finished"), ("1e30", 1, "failed")
    ]  # fmt: skip
    assert rows[0]["updates"] == 4 and rows[0]["parameters"] > 1000
    assert "not finite" in shown.err
    (model,) = out.glob("runs/4-updates-*[0-9a-f]")
    command = shown.out.strip().splitlines()[-1].split()
    assert command[:2] == ["nmtgrid", "train"] and command[-2:] == ["--out", "MODEL"]
    assert main([*command[1:-1], str(tmp_path / "again")]) == 0
    files = [folder / "model.safetensors" for folder in (model, tmp_path / "again")]
    assert files[0].read_bytes() == files[1].read_bytes()
