"""The command line: one file per subcommand, each a thin Typer function over a plain function.

The convention that `app` relies on:

* `cli/<name>.py` is entered in `app.COMMANDS`; dashes of the command's name are underscores here.
* A single command defines `command`: a function with `Annotated` Typer options, whose docstring is
  its help. A command with subcommands (`bpe`, `analyze`) defines `app = typer.Typer(help=...)`.
* Importing such a file must not import torch, nor numpy: heavy modules are imported inside the
  functions. `--help` of every command is tested for it.
* Faults are raised as `NmtgridError`; `app.main` prints them and turns them into exit codes. No
  command catches KeyboardInterrupt, calls `sys.exit` or declares `--debug`, which `app` handles.
* `options` holds the option types that several commands share, and what belongs to them.
"""
