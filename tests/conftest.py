"""What every test starts from: none of the settings of whoever runs it, and no folder but its own."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

VECTORS = "LEASEPLANE_VECTORS"

# Where it is furthest from UTC (Pacific/Kiritimati, written so that no time zone database is needed): a
# time that was told by the local clock would be on another day. Whoever names a TZ gets that.
FAR_FROM_UTC = "<+14>-14"
os.environ.setdefault("TZ", FAR_FROM_UTC)
time.tzset()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("LEASEPLANE_") and name != VECTORS:
            monkeypatch.delenv(name)
    # Where a test forgets to name a data folder, it must not be that of the person at the keyboard.
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data-home"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB, which can really be full."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(place)],
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        pytest.skip(f"mounting a small disk takes more rights than this user has: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
