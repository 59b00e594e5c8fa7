"""The processor's maker."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from nmtgrid.base import devices
from nmtgrid.base.devices import is_intel


@pytest.fixture(autouse=True)
def _forgetting() -> Iterator[None]:
    is_intel.cache_clear()
    yield
    is_intel.cache_clear()


@pytest.mark.parametrize(
    ("maker", "named", "expected"),
    [
        ("AuthenticAMD", "", False),
        ("GenuineIntel", "", True),
        (None, "AMD64 Family 25, AuthenticAMD", False),
        (None, "Intel64 Family 6, GenuineIntel", True),
        (None, "arm", False),
    ],
)
def test_the_maker_is_read_or_asked_for(
    maker: str | None, named: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read from the kernel's list of processors or, where there is none, asked of Python."""
    listed = tmp_path / "cpuinfo"
    if maker is not None:
        listed.write_text(f"processor : 0\nvendor_id : {maker}\n", encoding="utf-8")
    monkeypatch.setattr(devices, "Path", lambda _: listed)
    monkeypatch.setattr(platform, "processor", lambda: named)
    assert is_intel() is expected
