"""User-defined Python files: `--import FILE` runs them and makes their definitions known.

Architectures and objectives are registered by the file itself (`zoo.register`, `objectives.add`);
reading policies and latency metrics are looked up here, by the names of classes and functions.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from nmtgrid.base.errors import ConfigError, list_names, nearest
from nmtgrid.base.spans import shortened

ADVICE = "If it is your own, name the file that defines it: `--import FILE`, or `imports=[FILE]`."
"""Advice for an unknown name, on the command line and in Python."""
_modules: dict[Path, ModuleType] = {}
_texts: dict[Path, bytes] = {}
"""The content of each file when it was run."""
_running: set[Path] = set()


def import_files(files: Iterable[str | Path]) -> None:
    """Run each file once in this process; other files of its folder can be imported by it.

    Warns if a file has changed since. Raises ConfigError for a file that is not Python code,
    cannot be read, or fails.
    """
    if isinstance(files, (str, bytes, Path)):
        raise ConfigError(f"imports must be a list of files: `imports=[{str(files)!r}]`.")
    if not isinstance(files, Iterable):
        raise TypeError(f"imports must be a list of files, but is {files!r}.")
    for file in files:
        if not isinstance(file, (str, Path)) or Path(file).suffix != ".py":
            raise ConfigError(
                f"`{shortened(str(file))}` cannot be imported: it is not the name of a .py file.",
                "Name a Python file: `--import my_model.py`, or `imports=['my_model.py']`.",
            )
        path = Path(file).resolve()
        if path in _running:
            raise ConfigError(
                f"{path} calls nmtgrid while it is imported.",
                'Put the call under `if __name__ == "__main__":`.',
            )
        # If several files define a name, the file named last wins.
        if path in _modules:
            _modules[path] = _modules.pop(path)
            _warn_of_change(path)
        else:
            _modules[path] = _loaded(path) or _run(path)
            _texts[path] = path.read_bytes()


def imported_name(text: str) -> str:
    """Return the name in `text`; the file of the short form FILE.py:Name is run first.

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
    """Raise ConfigError if texts that begin with FILE.py:Name take one name from two files."""
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
    """Return the definitions in the imported files for which `accepts` is true, by name.

    Names that a file has itself imported from elsewhere are left out.
    """
    return {
        name: value
        for module in _modules.values()
        for name, value in vars(module).items()
        if _defines(module, value) and accepts(value)
    }


def definition_line(name: str) -> str:
    """Return `FILE:LINE: ` of a class or function that an imported file defines, or ""."""
    definitions = own_definitions(lambda value: inspect.isclass(value) or inspect.isfunction(value))
    return _line(definitions[name]) if name in definitions else ""


def undecorated(kind: type, base: type | None = None) -> tuple[type, list[str]] | None:
    """Return the first class of `kind`'s MRO that is not decorated as a dataclass, if any.

    Its settings, which would be lost, are returned with it. The search ends at `base`, whose
    attributes other than fields do not count as settings.
    """
    others = {*dir(base)} - {field.name for field in dataclasses.fields(base)} if base else set()
    for cls in kind.__mro__:
        settings = [
            name
            for name, hint in inspect.get_annotations(cls).items()
            if name not in others and "ClassVar" not in str(hint)
        ]
        if settings and "__dataclass_fields__" not in vars(cls):
            return cls, settings
        if cls is base:
            break
    return None


def check_dataclass(kind: Any, what: str) -> None:
    """Raise TypeError unless `kind` and its bases are dataclasses whose fields have defaults."""
    lost = undecorated(kind) if isinstance(kind, type) else None
    if not dataclasses.is_dataclass(kind) or lost:
        name = getattr(lost[0] if lost else kind, "__name__", str(kind))
        raise TypeError(
            f"{what} must be a dataclass: write @dataclasses.dataclass(frozen=True) above "
            f"class {name}"
        )
    missing = (dataclasses.MISSING, dataclasses.MISSING)
    fields = dataclasses.fields(kind)
    if names := [f.name for f in fields if (f.default, f.default_factory) == missing]:
        raise TypeError(
            f"{what} must have a default for each setting: give one to {list_names(names)}"
        )


def check_callable(call: Any, what: str, *names: str) -> None:
    """Raise TypeError unless `call` can be called with arguments of these names, in order."""
    if not callable(call) or _misfit(call, names, {}):
        raise TypeError(f"{what} must be called with ({', '.join(names)})")


def check_methods(value: object, what: str, interface: type, names: Iterable[str]) -> None:
    """Raise ConfigError unless `value` has these methods of `interface`, with their parameters."""
    for name in names:
        theirs = getattr(interface, name)
        _, *parameters = inspect.signature(theirs).parameters.values()
        keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        ordered = [p.name for p in parameters if p.name not in keywords]
        words = ["self", *ordered, *["*"][: len(keywords)], *(f"{word}=..." for word in keywords)]
        own = getattr(value, name, None)
        is_missing = not callable(own) or getattr(type(value), name, None) is theirs
        if is_missing:
            problem = f"has no method `{name}`"
        elif reason := _misfit(own, ordered, dict.fromkeys(keywords)):
            problem = f"has a method `{name}` with other parameters: {reason}"
        else:
            continue
        raise ConfigError(
            f"{_line(type(value))}{what} {problem}.", f"Write `def {name}({', '.join(words)})`."
        )


def _misfit(call: Any, ordered: Iterable[str], keywords: dict[str, Any]) -> str:
    """Return why `call` cannot be called with these arguments, or ""."""
    try:
        inspect.signature(call).bind(*ordered, **keywords)
    except TypeError as fault:
        return str(fault)
    except ValueError:  # a function not written in Python
        pass
    return ""


def _line(definition: Any) -> str:
    try:
        return f"{inspect.getfile(definition)}:{inspect.getsourcelines(definition)[1]}: "
    except (OSError, TypeError):  # the class was created by a call, or the file has changed
        return ""


def _defines(module: ModuleType, value: Any) -> bool:
    return getattr(value, "__module__", "") == module.__name__


def _warn_of_change(path: Path) -> None:
    # The definitions of a file that was removed stay in use.
    if path.is_file() and path.read_bytes() != _texts[path]:
        warnings.warn(
            f"{path} has been changed since it was imported, but a file is run only once: its "
            "earlier definitions are used. Restart Python (in a notebook: the kernel).",
            stacklevel=4,
        )


def _loaded(path: Path) -> ModuleType | None:
    """Return the module of a file that Python has run already: as a program, or by `import`."""
    for module in [*sys.modules.values()]:
        file = getattr(module, "__dict__", {}).get("__file__") or ""
        if Path(file).name == path.name and Path(file).resolve() == path:
            return module
    return None


def _run(path: Path) -> ModuleType:
    # After all others, so that files of this folder shadow no module.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    importlib.invalidate_caches()  # the file may have been written a moment ago
    importable = importlib.machinery.PathFinder.find_spec(path.stem)
    # Under its own name if that is free: another file that imports it must not run it again.
    if path.stem in sys.modules or importable is None or importable.origin != str(path):
        name = f"nmtgrid_own_{len(sys.modules)}_{path.stem}"
    else:
        name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module there.
    sys.modules[name] = module
    _running.add(path)
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError as error:
        del sys.modules[name]
        if path.exists():  # the file's own code did not find another file
            raise _failed(path, error) from error
        names = [file.name for file in path.parent.glob("*.py")]
        close = difflib.get_close_matches(path.name, names, n=1)
        advice = f"Did you mean `{close[0]}`?" if close else "Check the path."
        raise ConfigError(f"There is no file {path} to import.", advice) from error
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _failed(path, error) from error
    finally:
        _running.remove(path)
    _check_neighbours(path, module)
    return module


def _check_neighbours(path: Path, module: ModuleType) -> None:
    """Raise ConfigError if a module has imported from another folder instead of its own.

    Python has only one module per name, perhaps that of another folder, imported earlier.
    """
    for value in vars(module).values():
        name = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "")
        beside = path.parent / f"{name}.py"
        origin = getattr(sys.modules.get(str(name)), "__file__", None)
        if origin and beside.is_file() and Path(origin).resolve() != beside.resolve():
            raise ConfigError(
                f"{path} imports `{name}`, but gets {origin}, not the file in its own folder.",
                f"Rename {beside.name}, or start Python anew if the other was imported before.",
            )


def _failed(path: Path, error: BaseException) -> ConfigError:
    where = _last_line(error, {path.parent}) or str(path)
    if isinstance(error, SyntaxError) and (error.filename or "").endswith(".py") and error.lineno:
        where = f"{error.filename}:{error.lineno}"
    return ConfigError(
        f"{where}: this file failed: {type(error).__name__}: {error}",
        "The file is executed as Python code: correct the error in it.",
    )


def imported_files() -> list[str]:
    """Return the names of the files that were imported."""
    return [path.name for path in _modules]


def own_line(fault: BaseException) -> str:
    """Return `FILE:LINE` of the user's own code nearest to where a fault was raised, or "".

    Own code is the imported files, the running program, and other files in their folders. With
    `python -m nmtgrid` the program is not the user's.
    """
    program = getattr(sys.modules["__main__"], "__file__", None)
    folders = {path.parent for path in _modules}
    if program:
        folders.add(Path(program).resolve().parent)
    return _last_line(fault, folders - {Path(__file__).resolve().parents[1]})


def _last_line(fault: BaseException, folders: set[Path]) -> str:
    lines = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(fault.__traceback__)
        if Path(frame.filename).resolve().parent in folders
    ]
    return lines[-1] if lines else ""
