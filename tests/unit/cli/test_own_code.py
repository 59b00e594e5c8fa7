"""User-defined Python files: run once, with files next to them, and messages if they fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nmtgrid.base import own_code
from nmtgrid.base.errors import ConfigError
from nmtgrid.base.own_code import import_files
from nmtgrid.cli import app
from nmtgrid.cli.app import main
from tests.conftest import PROJECT

PAIR = {
    "pair_base.py": "import nmtgrid.online.policies as policies\n"
    "open(__file__ + '.runs', 'a').write('x')\n"
    "class Base(policies.Policy):\n    pass\n",
    "pair_own.py": "from pair_base import Base\nfrom nmtgrid.cli.app import main\n"
    "class Paired(Base):\n    pass\n"
    "if __name__ == '__main__':\n    raise SystemExit(main())\n",
}


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "nmtgrid", "--import", "own/pair_own.py"],
        ["-m", "nmtgrid", "--import", "own/pair_base.py", "--import", "own/pair_own.py"],
        ["own/pair_own.py", "--import", "own/pair_own.py", "--import", "own/pair_base.py"],
    ],
)
def test_own_files_import_their_neighbours_and_run_once(tmp_path: Path, words: list[str]) -> None:
    """As a program, with the option, and from another file: a second run would register twice."""
    (tmp_path / "own").mkdir()
    for name, text in PAIR.items():
        (tmp_path / "own" / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *words, "--version"], cwd=tmp_path, env={**os.environ,
        "PYTHONPATH": str(PROJECT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "own" / "pair_base.py.runs").read_text() == "x"


def test_neighbours_of_one_name_in_two_folders(tmp_path: Path) -> None:
    """Python has one module per name, so the second file would import the first one's neighbour."""
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "shared_base.py").write_text(f"def where():\n    return '{folder}'\n")
        (tmp_path / folder / "shared_own.py").write_text("from shared_base import where\n")
    import_files([tmp_path / "first" / "shared_own.py"])
    with pytest.raises(ConfigError, match=r"second/shared_own\.py imports `shared_base`, but gets"):
        import_files([tmp_path / "second" / "shared_own.py"])


def test_a_file_that_calls_the_program_while_it_is_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "unguarded.py"
    file.write_text(f"import nmtgrid.cli.app as app\napp.main(['--import', {str(file)!r}])\n")
    assert main(["--version", "--import", str(file)]) == 0
    assert "unguarded.py calls nmtgrid while it is imported" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_changed_own_file_is_not_run_again_without_a_word(tmp_path: Path) -> None:
    file = tmp_path / "changing.py"
    file.write_text("value = 1\n", encoding="utf-8")
    import_files([file])
    import_files([file])  # no warning, which would be an error in tests
    file.write_text("value = 2\n", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"changing\.py has been changed.*Restart Python"):
        import_files([file])
    file.unlink()
    import_files([file])


def test_what_python_m_nmtgrid_starts_is_not_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    package = PROJECT / "nmtgrid"
    program = sys.modules["__main__"]
    monkeypatch.setattr(program, "__file__", str(package / "__main__.py"), raising=False)
    code = compile("1 / 0", str(package / "__init__.py"), "exec")
    with pytest.raises(ZeroDivisionError) as caught:
        exec(code)
    assert own_code.own_line(caught.value) == ""


@pytest.mark.parametrize(
    ("code", "expected", "message"),
    [
        ("\n1 / 0", 2, "failing.py:3: your own code failed: ZeroDivisionError"),
        ("return 0", 1, "bug in nmtgrid: KeyError: 0 Please report it, unless failing.py"),
    ],
)
def test_faults_of_own_code_are_not_said_to_be_nmtgrids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    code: str, expected: int, message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(own_code, "_modules", {})
    file = tmp_path / "failing.py"
    file.write_text("def call():\n    " + code.replace("\n", "\n    "), encoding="utf-8")

    def run(words: list[str]) -> int:
        called: int = own_code._modules[file].call()
        return {1: 1}[called]

    monkeypatch.setattr(app, "_run", run)
    assert main(["decode", "--import", str(file)]) == expected
    assert message in " ".join(capsys.readouterr().err.split()).replace(f"{tmp_path}/", "")
