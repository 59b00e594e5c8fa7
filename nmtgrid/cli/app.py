"""The command `nmtgrid`: assembles the subcommands and turns errors into messages.

A subcommand's module is imported only when it is called or listed, and none imports torch before it
runs, so that `--help`, `--version` and shell completion respond at once.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import importlib
import importlib.abc
import os
import resource
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from nmtgrid import __version__
from nmtgrid.base import console
from nmtgrid.base.errors import NmtgridError, listed, nearest
from nmtgrid.base.other_names import option_hint
from nmtgrid.base.own_code import import_files, imported_files, own_line
from nmtgrid.cli.options import PIPE_CLOSED, Leave, add_command, drop_output

COMMANDS = {
    "preprocess": "nmtgrid.cli.preprocess",
    "bpe": "nmtgrid.cli.bpe",
    "train": "nmtgrid.cli.train",
    "decode": "nmtgrid.cli.decode",
    "online-eval": "nmtgrid.cli.online_eval",
    "adaptive-tune": "nmtgrid.cli.adaptive_tune",
    "analyze": "nmtgrid.cli.analyze",
    "demo": "nmtgrid.cli.demo",
    "export": "nmtgrid.cli.export",
    "import-fairseq": "nmtgrid.cli.import_fairseq",
    "import-marian": "nmtgrid.cli.import_marian",
    "config-schema": "nmtgrid.cli.config_schema",
}
USER_ERROR, INTERNAL_ERROR, INTERRUPTED = 2, 1, 130
_PROGRAM = "nmtgrid"
_IMPORT = "NMTGRID_IMPORT"
"""Environment variable that lists files for `--import`, separated by colons."""
_NOT_LOADED = (
    "failed to map segment", "cannot allocate memory", "cannot map zero-fill pages",
    "cannot create shared object descriptor", "cannot allocate", "out of memory",
)  # fmt: skip
"""Messages of the dynamic linker if there is too little memory for a library, in lower case."""
_LEAST_MEMORY = 640 << 20
"""Minimum address space, in bytes, to load torch and its libraries."""
_RAISE_LIMIT = (
    "Raise the limit that this process runs under (`ulimit -v`, or that of a job or a container)."
)
_NO_MEMORY_TO_LOAD = (
    f"error: There is too little memory to load torch.\n       End other programs. {_RAISE_LIMIT}\n"
)
_MEMORY_FULL = "error: The memory of this machine is full.\n       {}\n"
_SMALLER = "Use smaller batches or models."
_SMALLER_BATCHES = {
    "train": "Set a smaller `batches.max_tokens` or `batches.max_cells`, or a smaller model.",
    "decode": "Set a smaller `--batch-tokens` or `--beam`.",
    "online-eval": "Set a smaller `--batch-tokens` or `--beam`.",
}
_PAUSE = 10.0
"""Seconds that a muted process of a distributed run waits before it reports an error itself."""
_OBJECTS = 10_000
"""Number of new objects that triggers a garbage collection; Python's default is 700 to 2,000."""
_MOMENT = 0.05
"""Seconds before an interruption that Python dropped is raised again."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on `arguments` (default: those of the process); return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Set before torch is loaded: threads that busy-wait for each other for long slow the work down
    # tenfold as soon as another process needs a core; not spinning at all costs a quarter.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if sys.stderr is None:  # closed by the caller, as with `2>&-`
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    words, debug, imports = general_options(words)
    signals: list[int] = []
    try:
        with _interruptible(signals), warnings.catch_warnings(), _checked_limit():
            # Print the message only, without the line of code that issued it.
            warnings.showwarning = lambda message, *_, **__: console.warn(str(message))
            return _attempt(words, debug, imports, signals)
    except KeyboardInterrupt:  # at any point, even while an error is reported
        pass
    console.say("Interrupted.")
    return 128 + signals[0] if signals else INTERRUPTED


def general_options(words: list[str]) -> tuple[list[str], bool, list[str]]:
    """Return the words without the global options, and the values of these options.

    These are whether `--debug` is given, and the files of `--import` and `NMTGRID_IMPORT`;
    `--quiet` takes effect at once.
    """
    debug, quiet, rest = False, False, []
    imports = [file for file in os.environ.get(_IMPORT, "").split(os.pathsep) if file]
    remaining = iter(words)
    for word in remaining:
        if word == "--":
            rest += [word, *remaining]
        elif word == "--debug":
            debug = True
        elif word == "--quiet":
            quiet = True
        elif word == "--import":
            imports.append(next(remaining, ""))
        elif word.startswith("--import="):
            imports.append(word.partition("=")[2])
        else:
            rest.append(word)
    console.set_quiet(quiet)
    return rest, debug, imports


def _attempt(words: list[str], debug: bool, imports: list[str], signals: list[int]) -> int:
    """Run the command line and report its errors; return the exit code."""
    try:
        import_files(imports)
        code = _run(words)
        if sys.stdout is not None:
            sys.stdout.flush()
    except Leave as leave:
        if leave.code == PIPE_CLOSED:
            drop_output()
        return leave.code
    except (Exception, SystemExit) as fault:
        # A SystemExit raised by user code is an error: the command has not done its work.
        if isinstance(fault, SystemExit) and not own_line(fault):
            raise
        # While modules are imported, an interruption may surface as any other exception.
        if signals:
            raise KeyboardInterrupt from fault
        try:
            return _report(fault, words, debug)
        except (MemoryError, ImportError):
            # There is not even enough memory to format the message.
            _write_plainly(_MEMORY_FULL.format(_SMALLER))
            return USER_ERROR
    if code == INTERRUPTED:
        # Typer turns KeyboardInterrupt into this code; `main` returns the signal's own.
        raise KeyboardInterrupt
    return code


@contextlib.contextmanager
def _checked_limit() -> Iterator[None]:
    """Refuse to load torch if this process's memory limit is too small for it.

    Its libraries would otherwise abort the process without an explanation.
    """
    finder = _TorchFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _TorchFinder(importlib.abc.MetaPathFinder):
    """An import hook that finds no module, but is called before each module is loaded."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if name == "torch" and 0 <= limit < _LEAST_MEMORY:
            raise NmtgridError(
                f"This process may use {limit >> 20:,} MiB of memory, but torch alone needs more "
                f"than {_LEAST_MEMORY >> 20:,} MiB.",
                _RAISE_LIMIT,
            )


def _write_plainly(message: str) -> None:
    """Write a message without the console, which would load modules and take memory."""
    with contextlib.suppress(OSError, MemoryError):
        sys.stderr.write(message)
        sys.stderr.flush()


def program() -> NoReturn:
    """Run the command line, and end the process with its exit code."""
    codes: list[int] = []

    def end_after_interruption() -> None:
        # `python -m` ends the process with SIGINT if an interruption has ever passed through code
        # compiled from a string (as dataclasses generate it), even if it was caught afterwards: the
        # exit code that `main` returned must be kept.
        if codes and codes[0] > 128:
            _end_process(codes[0])

    # Objects that torch creates on import are never freed: scanning them for garbage again and
    # again would take a seventh of a command's start-up time.
    gc.set_threshold(_OBJECTS)
    # Registered before any other exit function, so that it is called last.
    atexit.register(end_after_interruption)
    codes.append(main())
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # A process of torchrun. torch keeps its communication threads as long as anything refers
        # to their group, and with shards its caches always do: a thread that releases a tensor
        # while Python shuts down would abort the process. So Python's shutdown is skipped.
        _end_process(codes[0])
    sys.exit(codes[0])


def _end_process(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, AttributeError):
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def _interruptible(signals: list[int]) -> Iterator[None]:
    """Let SIGINT and SIGTERM interrupt the command, so that it cleans up; append to `signals`."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    def repeat(unraisable: sys.UnraisableHookArgs) -> None:
        # Python swallows exceptions in some places, such as import callbacks: signal again.
        if signals and unraisable.exc_type is KeyboardInterrupt:
            main_thread = threading.main_thread().ident
            again = threading.Timer(_MOMENT, signal.pthread_kill, [main_thread, signals[-1]])
            again.daemon = True
            again.start()
        else:
            report(unraisable)

    report, sys.unraisablehook = sys.unraisablehook, repeat
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for kind in (signal.SIGINT, signal.SIGTERM):
            # Signals that are ignored (as after `nohup`) or have another handler stay as they are.
            if signal.getsignal(kind) in (signal.SIG_DFL, signal.default_int_handler):
                before[kind] = signal.signal(kind, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = report


# By default, click lists commands alphabetically.
class _InOrder(typer.core.TyperGroup):
    """Lists the subcommands in the order of a typical workflow."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in COMMANDS if name in self.commands]


def assemble(names: Sequence[str]) -> typer.Typer:
    """Return the application with the subcommands `names`."""
    app = typer.Typer(
        cls=_InOrder,
        name=_PROGRAM,
        help="Neural machine translation, from raw parallel text to scored translations.",
        epilog="`nmtgrid COMMAND --help` shows the options of a command, with examples. "
        "Translations, alignment links and subwords go to standard output, tables and messages to "
        "standard error.",
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    # The only import by name: a command is loaded only when it is needed.
    for name in names:
        module = importlib.import_module(COMMANDS[name])
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            add_command(app, name, module.command)
    return app


def _root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, help="Print the version and exit.")
    ] = False,
    imports: Annotated[
        list[Path] | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="Run this Python file first, to add the architectures, objectives, reading "
            "policies and latency metrics that it defines. Anywhere on the line; may be repeated. "
            f"The environment variable `{_IMPORT}` lists files too.",
        ),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            help="Print only warnings, errors and output for standard output. Anywhere on the "
            "line.",
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show the traceback of an error. Anywhere on the line."),
    ] = False,
) -> None:
    """Declare the global options for `--help`; `main` removes all but the first from the line."""


def _run(words: list[str]) -> int:
    if "--version" in words[:1]:
        print(f"{_PROGRAM} {__version__}")
        return 0
    first = words[0] if words else "--help"
    if first in COMMANDS:
        # Import only this command: importing all would take most of the start-up time.
        app = assemble([first])
        if len(words) == 1 and app.registered_groups:
            words = [first, "--help"]
    elif first.startswith("-"):
        app = assemble(list(COMMANDS))
        words = words or [first]
    else:
        raise NmtgridError(
            f"There is no command `{first}`.",
            f"{nearest(first, COMMANDS)} `{_PROGRAM} --help` lists them.",
        )
    command = typer.main.get_command(app)
    result = command.main(args=words, prog_name=_PROGRAM, standalone_mode=False)
    return result if isinstance(result, int) else 0


def _report(fault: BaseException, words: list[str], debug: bool) -> int:
    """Print the problem and the advice; return the exit code."""
    if isinstance(fault, OSError) and fault.errno == errno.EPIPE:
        drop_output()
        return PIPE_CLOSED
    if console.messages.quiet:
        # The process that prints has most likely met the same error, and torchrun, which ends all
        # others as soon as one has failed, must not end it before it has reported the error. If it
        # has not met the error, this process is still alive after the pause and reports it.
        time.sleep(_PAUSE)
        console.messages.quiet = False
    if debug:
        traceback.print_exception(fault)
    # Typer brings its own copy of click in some versions and takes the installed one in others:
    # its errors are known by their name, or by what they can do.
    if type(fault).__name__ == "Abort":
        console.say("Interrupted.")
        return INTERRUPTED
    if isinstance(fault, NmtgridError):
        console.error(fault.problem.replace("\n", "\n       "), fault.advice)
    elif hasattr(fault, "format_message"):
        usage = f"`{_command_path(words)} --help` shows the options."
        option = getattr(fault, "option_name", "")
        hint = option_hint(words[0] if words else "", option)
        # The meaning of an option in another toolkit is a better guess than a similar spelling.
        message = f"No such option: {option}" if hint else fault.format_message()
        # Versions of Typer that validate with pydantic prefix the message with its error name.
        message = message.replace(": Value error, ", ": ", 1)
        console.error(message, f"{hint} {usage}".strip())
    elif isinstance(fault, OSError) and fault.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" {fault.filename} could not be written." if fault.filename else ""
        console.error(f"The disk is full.{where}", "Free some space and run the command again.")
    elif _lacks_memory_to_load(fault):
        _write_plainly(_NO_MEMORY_TO_LOAD)
    elif _is_out_of_memory(fault):
        _report_memory(fault, words)
    elif isinstance(fault, OSError) and fault.strerror:
        console.error(f"{fault.filename}: {fault.strerror}." if fault.filename else f"{fault}")
    elif where := own_line(fault):
        console.error(
            f"{where}: your own code failed: {type(fault).__name__}: {fault}",
            "The same command with `--debug` shows how it was called.",
        )
    else:
        own = imported_files()
        unless = f", unless {listed(own)} returned an invalid value" if own else ""
        console.error(
            f"This is a bug in {_PROGRAM}: {type(fault).__name__}: {fault}",
            f"Please report it{unless}; the same command with `--debug` shows where it happened.",
        )
        return INTERNAL_ERROR
    return USER_ERROR


def _command_path(words: list[str]) -> str:
    """Return the program with the command, and in a group the subcommand, that was called."""
    if not words or words[0] not in COMMANDS:
        return _PROGRAM
    group = getattr(importlib.import_module(COMMANDS[words[0]]), "app", None)
    subcommands = [command.name for command in group.registered_commands] if group else []
    return " ".join([_PROGRAM, words[0], *(word for word in words[1:2] if word in subcommands)])


def _lacks_memory_to_load(fault: BaseException | None) -> bool:
    """Return whether a module could not be loaded for lack of memory."""
    # numpy and others raise their own ImportError from that of the linker.
    while fault is not None:
        message = str(fault).lower()
        if isinstance(fault, ImportError) and any(words in message for words in _NOT_LOADED):
            return True
        fault = fault.__cause__ or fault.__context__
    return False


def _is_out_of_memory(fault: BaseException) -> bool:
    if isinstance(fault, MemoryError) or (
        isinstance(fault, OSError) and fault.errno == errno.ENOMEM
    ):
        return True
    # Such errors come only from torch, so it is not imported just for this check (`--help` need not
    # wait for it); after a failed import there would not be enough memory to import it again.
    if not isinstance(fault, RuntimeError) or "torch" not in sys.modules:
        return False
    # There is no memory for a thread's stack, or for a primitive of oneDNN. For products of
    # mismatched sizes, oneDNN reports a missing primitive descriptor instead.
    text = str(fault).replace("primitive descriptor", "")
    if any(words in text for words in ("can't start new thread", "could not create a prim")):
        return True
    from nmtgrid.base.devices import is_out_of_memory

    return is_out_of_memory(fault)


def _report_memory(fault: BaseException, words: list[str]) -> None:
    """Print whether the machine's or the GPU's memory is full, and how to make batches smaller."""
    advice = _SMALLER_BATCHES.get(words[0] if words else "", _SMALLER)
    if isinstance(fault, RuntimeError) and "torch" in sys.modules:
        from nmtgrid.base.devices import fragmentation_advice, is_of_gpu

        if is_of_gpu(fault):
            advice = f"{advice} {fragmentation_advice(fault)}".strip()
            console.error("The memory of the GPU is full.", advice)
            return
    _write_plainly(_MEMORY_FULL.format(advice))
