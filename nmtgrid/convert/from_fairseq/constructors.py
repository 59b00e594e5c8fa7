"""What a checkpoint's pickle may hold: the few things that are built, and names that stay words."""

from __future__ import annotations

import dataclasses
from typing import Any


class PickleFault(ValueError):
    """What is wrong with a pickle, without the name of the file."""


@dataclasses.dataclass(frozen=True)
class Inert:
    """A thing that is not known here, by its name; nothing is ever called on it."""

    name: str


@dataclasses.dataclass(frozen=True)
class Namespace:
    """Options as argparse keeps them."""

    values: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Stored:
    """`count` numbers of torch's storage type `kind`, from `start` on in the storage `key`."""

    kind: str
    key: str
    count: int
    start: int = 0


@dataclasses.dataclass(frozen=True)
class View:
    """A tensor: a strided view of stored numbers, all in numbers of elements."""

    stored: Stored
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Maker:
    """A constructor that the machine does itself."""

    name: str


STORAGES = {
    "FloatStorage", "HalfStorage", "BFloat16Storage", "DoubleStorage", "LongStorage", "IntStorage",
    "ShortStorage", "CharStorage", "ByteStorage", "BoolStorage",
}  # fmt: skip
_MAKERS = {
    "collections.OrderedDict", "collections.defaultdict", "argparse.Namespace", "torch.Size",
    "torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter", "copy_reg._reconstructor", "copyreg._reconstructor",
}  # fmt: skip
_INERT = {"_codecs.encode"} | {
    f"{package}.{kind}"
    for package in ("builtins", "__builtin__")
    for kind in ("object", "set", "frozenset", "list", "dict", "tuple", "int", "float", "bool",
                 "str", "unicode", "bytes", "bytearray", "complex", "slice")
}  # fmt: skip
_INERT_PACKAGES = (
    "fairseq.", "fairseq_cli.", "examples.", "numpy.", "torch.", "omegaconf.", "enum.", "typing.",
    "collections.", "pathlib.", "datetime.",
)  # fmt: skip
MOST_AXES = 8


def known(name: str) -> Any:
    """Return what stands for the global `name`. Raises PickleFault unless it is known."""
    if name in _MAKERS:
        return Maker(name)
    if name in _INERT or name.startswith(_INERT_PACKAGES):
        return Inert(name)
    raise PickleFault(
        f"it asks for `{name[:80]}`, which is no part of a model: such a file may be made to run "
        "code on whoever reads it. Nothing of it was run"
    )


def made(maker: Any, arguments: Any) -> Any:
    """Return what the constructor `maker` builds of `arguments`."""
    if isinstance(maker, Inert):
        return Inert(maker.name)
    if not isinstance(maker, Maker) or not isinstance(arguments, tuple):
        raise PickleFault("it calls what is no function")
    name = maker.name.rpartition(".")[2]
    if name == "OrderedDict":
        return dict(pairs([part for pair in (arguments[0] if arguments else []) for part in pair]))
    if name == "defaultdict":
        return {}
    if name == "Namespace":
        return Namespace({})
    if name == "Size":
        return tuple(arguments[0])
    if name == "_reconstructor":
        return made(arguments[0], ())
    if name == "_rebuild_parameter":
        return arguments[0]
    stored, offset, shape, strides = arguments[:4]
    if not isinstance(stored, Stored) or not len(shape) == len(strides) <= MOST_AXES:
        raise PickleFault("it has a tensor that makes no sense")
    return View(stored, counted(offset), tuple(map(counted, shape)), tuple(map(counted, strides)))


def pairs(items: list[Any]) -> list[tuple[Any, Any]]:
    """Return the pairs of key and value in a row; only texts and numbers are keys of interest."""
    pairs = zip(items[0::2], items[1::2], strict=True)
    return [(key, value) for key, value in pairs if isinstance(key, (str, int, float))]


def counted(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise PickleFault("it has a size that is no count")
    return value
