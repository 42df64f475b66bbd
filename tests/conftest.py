"""What every test starts from: none of the settings of whoever runs it, and no folder but its own."""

import os
from pathlib import Path

import pytest

VECTORS = "LEASEPLANE_VECTORS"


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("LEASEPLANE_") and name != VECTORS:
            monkeypatch.delenv(name)
    # Where a test forgets to name a data folder, it must not be that of the person at the keyboard.
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data-home"))
