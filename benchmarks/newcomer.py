"""Four simulated new users follow the documentation: the cost of each command, by user.

    python -m benchmarks.newcomer [--user NAME] [--folder DIR] [--out RECORD]
    python -m benchmarks.newcomer --page

The first form runs the commands of newcomer.toml in a folder for each user and writes a record:
commands, processor seconds and exit codes. The output of each command is in
DIR/USER/screen/NUMBER.txt. The second form writes the tables of newcomer.md from the record in
recipes/records. A test checks that the pages contain the commands and that the tables are current.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import re
import resource
import signal
import subprocess
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docs.markdown import fill_blocks
from recipes.machine import machine, software
from recipes.seeds import Record
from recipes.tables import markdown

PROJECT = Path(__file__).resolve().parent.parent
PAGE = PROJECT / "benchmarks" / "newcomer.md"
RECORD = PROJECT / "recipes" / "records" / "newcomer-trial.json"
LIMIT = 600.0
"""Time limit of a command in seconds."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One command of a user, as newcomer.toml describes it."""

    command: str
    page: str = ""
    budget: str = ""
    status: int = 0
    port: int = 0


@dataclasses.dataclass(frozen=True)
class User:
    """A user who reads only the README and the documentation."""

    name: str
    goal: str
    steps: Sequence[Step]
    files: Sequence[tuple[str, str]] = ()
    setup: str = ""


def read_users() -> list[User]:
    """Return the users of newcomer.toml."""
    text = (PROJECT / "benchmarks" / "newcomer.toml").read_text(encoding="utf-8")
    return [
        User(**{**user, "steps": [Step(**step) for step in user["steps"]]})
        for user in tomllib.loads(text)["user"]
    ]


USERS = read_users()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the commands, or write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--user", action="append", help="only this user; may be repeated")
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder")
    parser.add_argument("--out", type=Path, help="the record; default: that of the project")
    parser.add_argument("--page", action="store_true", help="write newcomer.md from the record")
    options = parser.parse_args(arguments)
    if options.page:
        PAGE.write_text(page(), encoding="utf-8")
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        users = [user for user in USERS if options.user is None or user.name in options.user]
        commands = [row for user in users for row in follow(user, folder / user.name)]
    out = options.out or RECORD
    if options.user and out.is_file():  # keep those of the other users
        earlier = json.loads(out.read_text(encoding="utf-8"))["commands"]
        names = [user.name for user in USERS]
        commands += [row for row in earlier if row["user"] not in options.user]
        commands.sort(key=lambda row: names.index(row["user"]))
    out.write_text(json.dumps(record(commands), indent=1, ensure_ascii=False) + "\n", "utf-8")


def follow(user: User, folder: Path) -> list[dict[str, Any]]:
    """Run the commands of a user in a new folder; return a row for each."""
    (folder / "screen").mkdir(parents=True)
    for name in ("recipes", "nmtgrid", "pyproject.toml", "constraints.txt"):
        (folder / name).symlink_to(PROJECT / name)
    for page_name, name in user.files:
        (folder / name).write_text(saved(page_name, name), encoding="utf-8")
    if user.setup:
        subprocess.run(user.setup, shell=True, cwd=folder, check=True, capture_output=True)
    rows: list[dict[str, Any]] = []
    servers: list[tuple[subprocess.Popen[bytes], dict[str, Any]]] = []
    answer = ""
    try:
        for number, step in enumerate(user.steps, 1):
            path = folder / "screen" / f"{number:02}.txt"
            line = typed(step).replace("STREAM", _identity(answer))
            before, began = _children(), time.monotonic()
            process = _start(line, folder, path)
            row: dict[str, Any] = {
                "user": user.name, "page": step.page, "command": typed(step),
            }  # fmt: skip
            if step.port:
                servers.append((process, row))
                _wait(step.port)
                code = 0
            else:
                code = _finish(process)
            seconds = round(_children() - before, 1)
            row |= {"seconds": seconds, "exit code": code, "as expected": code == step.status}
            rows.append(row)
            if "/streams" in line and "STREAM" not in step.command:
                answer = path.read_text(encoding="utf-8")
            wall = time.monotonic() - began
            print(f"{user.name} {number}: exit {code}, {seconds} s, {wall:.0f} s of the clock")
    finally:
        for process, row in servers:
            before = _children()
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(LIMIT)
            row["seconds"] = round(_children() - before, 1)
    return rows


def _finish(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a command; one that reaches the time limit is killed."""
    try:
        return process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def _start(line: str, folder: Path, screen: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    with screen.open("w", encoding="utf-8") as file:
        file.write(f"$ {line}\n")
        file.flush()
        return subprocess.Popen(
            line, shell=True, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip


def typed(step: Step) -> str:
    """Return the command line with the additions of the trial (`budget`)."""
    if "=" in step.budget and not step.budget.startswith("-"):
        return f"{step.budget} {step.command}"
    words, arrow, target = step.command.partition(" > ")
    return f"{words} {step.budget}".rstrip() + arrow + target


def saved(page_name: str, name: str) -> str:
    """Return the text of a file that a page shows in a code block."""
    text = (PROJECT / page_name).read_text(encoding="utf-8")
    pattern = rf"`{re.escape(name)}`(?:(?!\n\n).)*:\n\n```\w+\n(.*?)^```"
    block = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    if block is None:
        raise SystemExit(f"error: {page_name} shows no file `{name}`.")
    return block[1]


def record(commands: Sequence[dict[str, Any]]) -> Record:
    """Return the record, with a row for each user, and all commands."""
    rows = []
    for name in dict.fromkeys(row["user"] for row in commands):
        own = [row for row in commands if row["user"] == name]
        rows.append({
            "user": name,
            "commands": len(own),
            "of which from pages": sum(row["page"] != "" for row in own),
            "refused": sum(row["exit code"] != 0 for row in own),
            "not as expected": sum(not row["as expected"] for row in own),
            "processor seconds": round(sum(row["seconds"] for row in own), 1),
        })  # fmt: skip
    return {
        "experiment": "newcomer",
        "title": "Four new users follow the pages",
        "command": "python -m benchmarks.newcomer",
        "small": False,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "software": software(),
        "rows": rows,
        "commands": list(commands),
    }


def page() -> str:
    """Return the text of newcomer.md with the tables of the record."""
    contents = json.loads(RECORD.read_text(encoding="utf-8"))
    head = ["user", "commands", "of which from pages", "refused", "processor seconds"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    lines += [[str(row[name]) for name in head] for row in contents["rows"]]
    text = (
        f"{contents['date']}; {contents['machine']}; {contents['software']}.\n\n{markdown(lines)}"
    )
    for user in USERS:
        rows = [row for row in contents["commands"] if row["user"] == user.name]
        lines = [["page", "command", "processor s", "exit code"], ["---", "---", "---:", "---:"]]
        lines += [
            [row["page"], f"`{row['command']}`", f"{row['seconds']:.1f}", str(row["exit code"])]
            for row in rows
        ]
        text += f"\n### {user.name[0].upper()}{user.name[1:]}: {user.goal}\n\n{markdown(lines)}"
    return fill_blocks(PAGE.read_text(encoding="utf-8"), {"trial": lambda: text})


def _children() -> float:
    """Return the processor seconds of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _identity(answer: str) -> str:
    """Return the stream id in a response, or the placeholder of the page."""
    match = re.search(r'"stream": ?"([^"]+)"', answer)
    return match[1] if match else "STREAM"


def _wait(port: int) -> None:
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60).close()
        except urllib.error.HTTPError:  # the server responds
            return
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit(f"error: no response on port {port}.")


if __name__ == "__main__":
    main()
