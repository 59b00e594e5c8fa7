"""The command line: each subcommand is a thin function of one dataclass of arguments.

The convention that `app` relies on:

* `cli/<name>.py` or `cli/<name>/` is registered in `app.COMMANDS`; dashes in the command's name are
  underscores in the module's.
* A single command defines `command`, whose docstring is its help. A command with subcommands
  (`bpe`, `analyze`) defines `app = typer.Typer(help=...)`.
* The arguments are a frozen, keyword-only dataclass, which `options.takes` turns into command-line
  options. A table of rules for `options.check_rules` says which options require or exclude others.
* Importing such a module must not import torch or numpy: heavy modules are imported inside the
  functions. A test checks this for `--help` of every command.
* Errors are raised as `NmtgridError`; `app.main` prints them and turns them into exit codes. No
  command calls `sys.exit` or declares `--debug`, which `app` handles; commands catch
  KeyboardInterrupt only to save results or to shut down a server.
"""
