"""Python files of the user, which define what is named as FILE.py:Name on the command line."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from nmtgrid.base.errors import ConfigError
from nmtgrid.base.spans import shortened


def own_module(text: str, form: str, example: str) -> tuple[Path, str, ModuleType]:
    """Return the file of FILE.py:Name, the name, and the file's module, which is run once.

    `form` is what the text should look like, `example` an option that does. Raises ConfigError
    for another form, and for a file that cannot be read or fails.
    """
    file, _, name = text.rpartition(":")
    path = Path(file)
    if not path.name.endswith(".py") or not name:
        what = form.partition(":")[2].lower()
        raise ConfigError(
            f"`{shortened(text)}` is not of the form {form}.",
            f"Name the {what} after a colon: `{example}`.",
        )
    return path, name, _module(path.resolve())


@functools.cache
def _module(path: Path) -> ModuleType:
    name = f"nmtgrid_own_{len(sys.modules)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        line = getattr(error, "lineno", None)
        where = f"{path}:{line}" if line else str(path)
        raise ConfigError(
            f"{where}: this file failed: {type(error).__name__}: {error}",
            "It is Python, and runs as a part of nmtgrid.",
        ) from error
    return module
