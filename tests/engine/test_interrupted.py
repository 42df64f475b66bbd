"""What a signal's exception leaves that comes between any two steps of a transaction: nothing."""

import sqlite3
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from leaseplane.clock import SystemClock
from leaseplane.engine import Authority
from leaseplane.settings import read_settings


class Came(KeyboardInterrupt):
    pass


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Authority]:
    settings = read_settings({"LEASEPLANE_DATA": str(tmp_path / "data"), "HOME": str(tmp_path)})
    opened = Authority.open(settings, SystemClock())
    yield opened
    opened.close()


def write_lock_is_free(plane: Authority) -> bool:
    other = sqlite3.connect(plane.folder.database, timeout=0, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    finally:
        other.close()
    return True


def test_the_write_lock_is_given_back_wherever_it_comes(plane: Authority) -> None:
    """Raised at every call and return that a transaction comes to, which is when Python handles signals."""
    kept: list[BaseException] = []  # as whoever cleans up first keeps it, with all that its frames refer to
    steps = came_at = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal steps
        code = frame.f_code
        if code.co_name == "commit_path" and event == "return":
            # A generator's yield: no signal is handled there.
            return
        if code.co_filename.endswith(("engine.py", "sqlite.py", "database.py")):
            steps += 1
            if steps == came_at:
                raise Came

    def write(state: object) -> None:
        plane.store.put_meta("of this test", "written")

    for came_at in range(1, 400):
        steps = 0
        sys.setprofile(profile)
        try:
            plane.decide_once([write])
        except Came as came:
            kept.append(came)
        finally:
            sys.setprofile(None)
        assert write_lock_is_free(plane), "".join(traceback.format_exception(kept[-1]))
        if steps < came_at:
            break
    assert 20 < len(kept) < 399
    assert plane.decide_once([write]).settled
