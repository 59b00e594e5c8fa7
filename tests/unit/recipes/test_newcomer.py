"""The trial of new users: its commands stand on the pages, its tables come from the record."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import newcomer
from benchmarks.newcomer import PROJECT, RECORD, USERS, Step, User, typed


def _words(text: str) -> str:
    return " ".join(text.replace("\\\n", " ").split())


def test_commands_and_files_stand_on_their_pages() -> None:
    steps = [step for user in USERS for step in user.steps if step.page]
    pages = {step.page: _words((PROJECT / step.page).read_text("utf-8")) for step in steps}
    assert [step.command for step in steps if step.command not in pages[step.page]] == []
    for user in USERS:
        for page, name in user.files:
            assert len(newcomer.saved(page, name).splitlines()) > 3
    with pytest.raises(SystemExit, match=r"README\.md shows no file `none\.py`"):
        newcomer.saved("README.md", "none.py")


def test_the_page_and_its_record_are_current() -> None:
    """Run `python -m benchmarks.newcomer` where the commands differ, `--page` where tables do."""
    commands = json.loads(RECORD.read_text(encoding="utf-8"))["commands"]
    typed_now = [(user.name, typed(step)) for user in USERS for step in user.steps]
    assert [(row["user"], row["command"]) for row in commands] == typed_now
    assert all(row["as expected"] for row in commands)
    assert newcomer.PAGE.read_text(encoding="utf-8") == newcomer.page()


def test_a_user_is_followed_and_counted(tmp_path: Path) -> None:
    user = User(
        "somebody",
        "try",
        [
            Step("cat own.txt > copy.txt", page="README.md"),
            Step("sh -c 'exit 2'", status=2),
            Step("true", budget="A=1", status=1),
            Step("""echo '{"stream": "ab"}' /streams"""),
            Step("echo STREAM"),
        ],
        setup="echo mine > own.txt",
    )
    rows = newcomer.follow(user, tmp_path / "home")
    assert [(row["exit code"], row["as expected"]) for row in rows] == [
        (0, True), (2, True), (0, False), (0, True), (0, True),
    ]  # fmt: skip
    assert rows[2]["command"] == "A=1 true"
    assert (tmp_path / "home" / "copy.txt").read_text() == "mine\n"
    assert (tmp_path / "home" / "screen" / "02.txt").read_text() == "$ sh -c 'exit 2'\n"
    assert (tmp_path / "home" / "screen" / "05.txt").read_text() == "$ echo ab\nab\n"
    (total,) = newcomer.record([row | {"seconds": 1.5} for row in rows])["rows"]
    assert total == {
        "user": "somebody", "commands": 5, "of which from pages": 1, "refused": 1,
        "not as expected": 1, "processor seconds": 7.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (Step("nmtgrid x > y", budget="--n 1"), "nmtgrid x --n 1 > y"),
        (Step("bash x.sh", budget="N=1 M=2"), "N=1 M=2 bash x.sh"),
        (Step("nmtgrid x"), "nmtgrid x"),
    ],
)
def test_a_budget_is_added_where_it_belongs(step: Step, line: str) -> None:
    assert typed(step) == line
    assert re.fullmatch(r"\S.*\S", line)
