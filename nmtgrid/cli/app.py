"""The command `nmtgrid`: puts the subcommands together and turns faults into messages.

A subcommand's file is imported only when it is called or listed, and none of them imports torch
before it works, so that `--help`, `--version` and shell completion answer at once.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from nmtgrid import __version__
from nmtgrid.base import console
from nmtgrid.base.errors import NmtgridError, nearest
from nmtgrid.cli.options import PIPE_CLOSED, Leave

COMMANDS = {
    "preprocess": "nmtgrid.cli.preprocess",
    "bpe": "nmtgrid.cli.bpe",
    "train": "nmtgrid.cli.train",
    "decode": "nmtgrid.cli.decode",
    "online-eval": "nmtgrid.cli.online_eval",
    "adaptive-tune": "nmtgrid.cli.adaptive_tune",
    "analyze": "nmtgrid.cli.analyze",
    "export": "nmtgrid.cli.export",
    "import-fairseq": "nmtgrid.cli.import_fairseq",
}
FAULT_OF_THE_USER, FAULT_OF_OURS, INTERRUPTED = 2, 1, 130
_PROGRAM = "nmtgrid"
_PAUSE = 10.0
"""Seconds that a process which another one speaks for waits before it tells of its own fault."""

_MOMENT = 0.05
"""Seconds after which an interruption that came to nothing is made again."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on `arguments` (default: those of the process); return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Before torch is loaded: threads that spin long while they wait for each other slow the work
    # down tenfold as soon as another process wants a core; not to spin at all costs a quarter.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if sys.stderr is None:  # closed by whoever called, as by `2>&-`
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    given, debug = _take_debug(given)
    caught: list[int] = []
    try:
        with _interruptible(caught), warnings.catch_warnings():
            warnings.showwarning = _warn
            return _attempt(given, debug, caught)
    except KeyboardInterrupt:  # at any point, also while a fault is told of
        pass
    console.say("Interrupted.")
    return 128 + caught[0] if caught else INTERRUPTED


def _attempt(given: list[str], debug: bool, caught: list[int]) -> int:
    """Run the command line and tell of its faults; return the exit code."""
    try:
        code = _run(given)
        if sys.stdout is not None:
            sys.stdout.flush()
    except Leave as leave:
        if leave.code == PIPE_CLOSED:
            _drop_output()
        return leave.code
    except Exception as fault:
        # While modules are loaded, an interruption may come out as any fault of theirs.
        if caught:
            raise KeyboardInterrupt from fault
        return _explain(fault, given, debug)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code


def program() -> NoReturn:
    """Run the command line, and end the process with its exit code."""
    codes: list[int] = []
    # Before any other such function is registered, so that it is the last of them to be called.
    atexit.register(_after_interruption, codes)
    codes.append(main())
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # One of torchrun's. torch keeps its communication threads for as long as anything refers
        # to their group, and with shards its caches always do: a thread that lets go of a tensor
        # while Python shuts down would abort the process. So there is no shutdown.
        _leave_at_once(codes[0])
    sys.exit(codes[0])


def _after_interruption(codes: Sequence[int]) -> None:
    """Let the exit code stand that `main` gave.

    `python -m` ends a process by SIGINT if ever an interruption passed through code that was
    compiled from a string (a data class is made of such), whoever caught it afterwards.
    """
    if codes and codes[0] > 128:
        _leave_at_once(codes[0])


def _leave_at_once(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, AttributeError):
            stream.flush()
    os._exit(code)


def _warn(message: Warning | str, *where: Any, **more: Any) -> None:
    """Tell of a warning in the words of whoever gave it, not of where in the code it arose."""
    console.warn(str(message))


@contextlib.contextmanager
def _interruptible(caught: list[int]) -> Iterator[None]:
    """Let SIGINT and SIGTERM interrupt what runs, so that it tidies up; add to `caught` which."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        raise KeyboardInterrupt

    def ignored(what: sys.UnraisableHookArgs) -> None:
        # Python lets nothing out of some places, such as an import's callbacks: once more, then.
        if caught and what.exc_type is KeyboardInterrupt:
            main_thread = threading.main_thread().ident
            again = threading.Timer(_MOMENT, signal.pthread_kill, [main_thread, caught[-1]])
            again.daemon = True
            again.start()
        else:
            tell(what)

    tell, sys.unraisablehook = sys.unraisablehook, ignored
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for kind in (signal.SIGINT, signal.SIGTERM):
            # One that is ignored (as after `nohup`) or somebody else's stays so.
            if signal.getsignal(kind) in (signal.SIG_DFL, signal.default_int_handler):
                before[kind] = signal.signal(kind, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = tell


class _InOrder(typer.core.TyperGroup):
    """Lists the subcommands in the order of the work, groups among the others."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in COMMANDS if name in self.commands]


def assemble(names: Sequence[str]) -> typer.Typer:
    """Return the application with the subcommands `names`."""
    app = typer.Typer(
        cls=_InOrder,
        name=_PROGRAM,
        help="Neural machine translation, from raw parallel text to scored translations.",
        epilog="`--debug`, anywhere on the line, shows the traceback of an error.",
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for name in names:
        module = importlib.import_module(COMMANDS[name])
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(module.command)
    return app


def _root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Run before every subcommand."""


def _run(given: list[str]) -> int:
    if "--version" in given[:1]:
        print(f"{_PROGRAM} {__version__}")
        return 0
    first = given[0] if given else "--help"
    if first in COMMANDS:
        app = assemble([first])
        groups = {group.name for group in app.registered_groups}
        if len(given) == 1 and first in groups:
            given = [first, "--help"]
    elif first.startswith("-"):
        app = assemble(list(COMMANDS))
        given = given or [first]
    else:
        raise NmtgridError(
            f"There is no command `{first}`.",
            f"{nearest(first, COMMANDS)} `{_PROGRAM} --help` lists them.",
        )
    command = typer.main.get_command(app)
    result = command.main(args=given, prog_name=_PROGRAM, standalone_mode=False)
    return result if isinstance(result, int) else 0


def _take_debug(given: list[str]) -> tuple[list[str], bool]:
    """Return the arguments without `--debug` before any `--`, and whether it was there."""
    end = given.index("--") if "--" in given else len(given)
    kept = [word for word in given[:end] if word != "--debug"]
    return kept + given[end:], len(kept) < end


def _explain(fault: Exception, given: list[str], debug: bool) -> int:
    """Tell people of `fault`; return the exit code."""
    if isinstance(fault, OSError) and fault.errno == errno.EPIPE:
        _drop_output()
        return PIPE_CLOSED
    if console.is_hushed():
        # The process that speaks has most likely met the same fault, and torchrun, which ends the
        # others as soon as one has failed, must not end it before it has told of it. Where it
        # has not, this one is still here after the pause.
        time.sleep(_PAUSE)
        console.speak()
    if debug:
        traceback.print_exception(fault)
    if isinstance(fault, NmtgridError):
        console.error(fault.problem.replace("\n", "\n       "), fault.advice)
        return FAULT_OF_THE_USER
    if type(fault).__name__ == "Abort":
        console.say("Interrupted.")
        return INTERRUPTED
    # Typer brings its own copy of click in some versions and takes the installed one in others:
    # its usage errors are known by what they can do.
    if hasattr(fault, "format_message"):
        words = [_PROGRAM, *_command_words(given), "--help"]
        console.error(fault.format_message(), f"`{' '.join(words)}` shows how it is used.")
        return FAULT_OF_THE_USER
    if isinstance(fault, OSError) and fault.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" {fault.filename} could not be written." if fault.filename else ""
        console.error(f"The disk is full.{where}", "Free some space and run the command again.")
        return FAULT_OF_THE_USER
    if isinstance(fault, OSError) and fault.strerror:
        console.error(f"{fault.filename}: {fault.strerror}." if fault.filename else f"{fault}")
        return FAULT_OF_THE_USER
    if _is_out_of_memory(fault):
        console.error("The memory of this machine is full.", "Use smaller batches or models.")
        return FAULT_OF_THE_USER
    console.error(
        f"This is a fault in {_PROGRAM} itself: {type(fault).__name__}: {fault}",
        "Please report it; the same command with `--debug` shows where it happened.",
    )
    return FAULT_OF_OURS


def _is_out_of_memory(fault: BaseException) -> bool:
    if not isinstance(fault, (MemoryError, RuntimeError)):
        return False
    # Imported here: with torch, for which `--help` need not wait.
    from nmtgrid.base.devices import is_out_of_memory

    return is_out_of_memory(fault)


def _drop_output() -> None:
    """Forget standard output: what Python still wants to flush at its end must go somewhere."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _command_words(given: list[str]) -> list[str]:
    """Return the names of the command and, in a group, of what was called in it."""
    if not given or given[0] not in COMMANDS:
        return []
    module = importlib.import_module(COMMANDS[given[0]])
    group = getattr(module, "app", None)
    named = [] if group is None else [held.name for held in group.registered_commands]
    return [word for place, word in enumerate(given[:2]) if place == 0 or word in named]
