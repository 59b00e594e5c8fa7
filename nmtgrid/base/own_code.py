"""User-defined Python files: `--import FILE` runs them and makes their definitions known.

Architectures and objectives are registered by the file itself (`zoo.register`, `objectives.add`);
reading policies and latency metrics are looked up here, by the names of classes and functions.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from nmtgrid.base.errors import ConfigError, nearest
from nmtgrid.base.spans import shortened

ADVICE = "If it is your own, name the file that defines it: `--import FILE`, or `imports=[FILE]`."
"""What to do about a name that is not known, on the command line and in Python."""
_modules: dict[Path, ModuleType] = {}


def import_files(files: Iterable[str | Path]) -> None:
    """Run each file once in this process.

    Raises ConfigError for what is no Python file, cannot be read, or fails.
    """
    if isinstance(files, (str, bytes, Path)):
        raise ConfigError(f"imports must be a list of files: `imports=[{str(files)!r}]`.")
    for file in files:
        if not isinstance(file, (str, Path)) or Path(file).suffix != ".py":
            raise ConfigError(
                f"`{shortened(str(file))}` cannot be imported: it is not the name of a .py file.",
                "Name a Python file: `--import my_model.py`, or `imports=['my_model.py']`.",
            )
        path = Path(file).resolve()
        # Of several definitions with one name, that of the file named last is taken.
        _modules[path] = _modules.pop(path) if path in _modules else _run(path)


def imported_name(text: str) -> str:
    """Return the name in `text`, having run the file of the short form FILE.py:Name.

    Raises ConfigError as `import_files` does, and for a file that does not define the name.
    """
    file, _, name = text.rpartition(":")
    if text.endswith(".py"):
        file, name = text, ""
    if not file.endswith(".py"):
        return text
    import_files([file])
    module = _modules[Path(file).resolve()]
    if not name:
        raise ConfigError(f"`{text}` names only a file.", f"Name what it defines: `{file}:NAME`.")
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if _defines(module, value)]
        raise ConfigError(f"{file} does not define `{shortened(name)}`.", nearest(name, own))
    return name


def check_unique(texts: Iterable[str]) -> None:
    """Raise ConfigError if texts that begin with FILE.py:Name have one name of two files."""
    files: dict[str, str] = {}
    for text in texts:
        file, _, name = next(iter(text.split()), "").rpartition(":")
        if not file.endswith(".py"):
            continue
        first = files.setdefault(name, file)
        if Path(first).resolve() != Path(file).resolve():
            raise ConfigError(
                f"`{name}` is defined by two files: {first} and {file}.", "Rename one of the two."
            )


def own_definitions(accepts: Callable[[Any], bool]) -> dict[str, Any]:
    """Return what the imported files define and `accepts` takes, by name.

    What a file has imported from elsewhere is not its own.
    """
    return {
        name: value
        for module in _modules.values()
        for name, value in vars(module).items()
        if _defines(module, value) and accepts(value)
    }


def definition_line(name: str) -> str:
    """Return `FILE:LINE: ` of the class or function that an imported file defines, else nothing."""
    definitions = own_definitions(lambda value: inspect.isclass(value) or inspect.isfunction(value))
    if name not in definitions:
        return ""
    definition = definitions[name]
    try:
        return f"{inspect.getfile(definition)}:{inspect.getsourcelines(definition)[1]}: "
    except (OSError, TypeError):  # the class has been made by a call, or the file has changed
        return ""


def _defines(module: ModuleType, value: Any) -> bool:
    return getattr(value, "__module__", "") == module.__name__


def _run(path: Path) -> ModuleType:
    name = f"nmtgrid_own_{len(sys.modules)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError as error:
        del sys.modules[name]
        if path.exists():  # the file's own code looks for another
            raise _failed(path, error) from error
        names = [file.name for file in path.parent.glob("*.py")]
        close = difflib.get_close_matches(path.name, names, n=1)
        advice = f"Did you mean `{close[0]}`?" if close else "Check the path."
        raise ConfigError(f"There is no file {path} to import.", advice) from error
    except Exception as error:
        del sys.modules[name]
        raise _failed(path, error) from error
    return module


def _failed(path: Path, error: Exception) -> ConfigError:
    line = getattr(error, "lineno", None)
    where = f"{path}:{line}" if line else str(path)
    return ConfigError(
        f"{where}: this file failed: {type(error).__name__}: {error}",
        "The file is executed as Python code: correct the error in it.",
    )
