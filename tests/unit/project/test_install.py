"""The install gate, without installing anything: the commands it would run, and its refusals."""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from nmtgrid.cli import app


@pytest.fixture(scope="module")
def gate() -> ModuleType:
    path = Path(__file__).resolve().parents[3] / ".ci" / "install-gate"
    loader = importlib.machinery.SourceFileLoader("install_gate", str(path))
    spec = importlib.util.spec_from_loader("install_gate", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _wheel(folder: Path, names: list[str], extras: list[str]) -> Path:
    path = folder / "nmtgrid-9.8.7-py3-none-any.whl"
    lines = [f"Provides-Extra: {extra}" for extra in extras]
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("nmtgrid-9.8.7.dist-info/METADATA", "\n".join(["Name: nmtgrid", *lines]))
        for name in names:
            wheel.writestr(name, "")
    return path


def test_a_wheel_holds_the_package_alone(gate: ModuleType, project: Path, tmp_path: Path) -> None:
    text = (project / "pyproject.toml").read_text(encoding="utf-8")
    declared = set(tomllib.loads(text)["project"]["optional-dependencies"])
    assert declared == set(gate.NEEDS_EXTRA) | gate.FOR_PEOPLE
    extras = ["ctranslate2", "docs", "sentencepiece", "simuleval", "tensorboard", "test"]
    right = ["nmtgrid/__init__.py", "nmtgrid/py.typed"]
    needed = [extra for extra in extras if extra not in gate.FOR_PEOPLE]
    assert gate.check_wheel(_wheel(tmp_path, right, extras)) == needed
    for names in (right[:1], [*right, "tests/conftest.py"]):
        with pytest.raises(gate.Failed, match=r"py\.typed"):
            gate.check_wheel(_wheel(tmp_path, names, extras))
    with pytest.raises(gate.Failed, match="Extras"):
        gate.check_wheel(_wheel(tmp_path, right, [*extras, "moon"]))


def test_the_quickstart_is_the_recipes(gate: ModuleType, tmp_path: Path) -> None:
    commands = gate.quickstart_commands(tmp_path, 77)
    assert [words[1] for words in commands] == ["preprocess", "bpe", "train", "decode", "analyze"]
    assert all(words[0] == "nmtgrid" and words[1] in app.COMMANDS for words in commands)
    assert not any("$" in word for words in commands for word in words)
    assert commands[0][2:4] == ["--toy", gate.PAIRS] and commands[2][-1] == gate.SHORTER[-1]
    assert commands[2][commands[2].index("--max-updates") + 1] == "77"


def test_pairs_are_interpreters_and_versions(
    gate: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = sys.executable
    assert gate.pairs([f"{here}:oldest", f"{here}:2.13.0", f"{here}:newest"]) == [
        (here, "2.11.0"), (here, "2.13.0"), (here, "newest")
    ]  # fmt: skip
    for wrong in ("3.1:2.13.0", here, f"{here}:", "no/python:newest"):
        with pytest.raises(gate.Failed, match=r"The form is 3\.12:2\.13\.0"):
            gate.pairs([wrong])
    assert gate.main(["3.1:2.13.0", "--work", str(tmp_path / "work")]) == 2
    assert "3.1:2.13.0" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


def test_the_watch_sees_what_is_opened_in_the_checkout(gate: ModuleType, tmp_path: Path) -> None:
    checkout, log, beside = tmp_path / "checkout", tmp_path / "log", tmp_path / "beside"
    checkout.mkdir()
    (checkout / "a").write_text("a", encoding="utf-8")
    beside.write_text("b", encoding="utf-8")
    watch = gate.WATCH.format(checkout=str(checkout), log=str(log))
    code = f"{watch}\nopen({str(beside)!r}).close()\nopen('checkout/a').close()\n"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert log.read_text(encoding="utf-8") == f"{checkout / 'a'}\n"


def test_sandboxes_do_not_see_the_environment_around_them(
    gate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", "NMTGRID_DATA", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, "somewhere")
    sandbox = gate.Sandbox(tmp_path)
    assert not {"PYTHONPATH", "NMTGRID_DATA", "VIRTUAL_ENV"} & set(sandbox.environment)
    assert sandbox.environment["PATH"].split(os.pathsep)[0] == str(tmp_path / "venv" / "bin")
    assert sandbox.call(sys.executable, "-c", "print(input())", stdin="x\n") == "x\n"
    with pytest.raises(gate.Failed, match="exited with 3"):
        sandbox.call(sys.executable, "-c", "raise SystemExit(3)")
    assert sandbox.call(sys.executable, "-c", "raise SystemExit(2)", code=2) == ""


def test_the_table_says_what_failed_and_why(gate: ModuleType) -> None:
    rows = [
        {"python": "3.11.7", "torch": "2.11.0", "passed": True, "bleu": 39.66,
         "seconds": {"torch": 60.0, "wheel": 5.0, "quickstart": 90.0, "all": 200.0}},
        {"python": "3.13.0", "torch": "2.15.0", "passed": False, "fault": "No wheel.\nmore",
         "seconds": {"all": 3.0}},
    ]  # fmt: skip
    _, first, second = gate.table(rows).splitlines()
    assert first.split() == ["3.11.7", "2.11.0", "65", "90", "200", "39.66", "passed"]
    assert second.split() == ["3.13.0", "2.15.0", "0", "0", "3", "failed:", "No", "wheel."]
