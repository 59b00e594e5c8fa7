"""The command line: each subcommand is a thin function of one record of arguments.

The convention that `app` relies on:

* `cli/<name>.py` or `cli/<name>/` is entered in `app.COMMANDS`; dashes of the command's name are
  underscores here.
* A single command defines `command`, whose docstring is its help. A command with subcommands
  (`bpe`, `analyze`) defines `app = typer.Typer(help=...)`.
* The arguments are a frozen, keyword-only dataclass, which `options.takes` makes a command line of.
  Which options require or exclude others is a table of rules for `options.check_rules`.
* Importing such a module must not import torch, nor numpy: heavy modules are imported inside the
  functions. `--help` of every command is tested for it.
* Faults are raised as `NmtgridError`; `app.main` prints them and turns them into exit codes. No
  command catches KeyboardInterrupt, calls `sys.exit` or declares `--debug`, which `app` handles.
"""
