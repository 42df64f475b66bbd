"""The tests themselves run far from UTC (case 35), and so does every process that they start."""

import os
import subprocess
import sys
import time

import pytest
from tests.conftest import FAR_FROM_UTC

from leaseplane.answers import time_text

pytestmark = pytest.mark.skipif(
    os.environ["TZ"] != FAR_FROM_UTC, reason="another time zone was asked for with TZ"
)


def test_it_is_tomorrow_here() -> None:
    assert time.localtime(0).tm_gmtoff == 14 * 3_600
    assert time_text(0) == "1970-01-01T00:00:00.000Z"


def test_started_processes_are_here_too() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import time; print(time.localtime(0).tm_gmtoff)"],
        capture_output=True,
        check=True,
        text=True,
    )
    assert told.stdout.strip() == str(14 * 3_600)
