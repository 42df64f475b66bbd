"""Tables in the pages are those of the code."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path

from tests.docs.limits_page import render_limits
from tests.docs.pages import ROOT
from tests.docs.python_page import GROUPS, render_python

import leaseplane
from leaseplane import limits
from leaseplane.bodies import STATUS_OF
from leaseplane.clock import ManualClock
from leaseplane.engine import Authority
from leaseplane.identity.signatures import COVERED
from leaseplane.serving import Engine
from leaseplane.settings import read_settings
from leaseplane.surfaces.rest.metrics import MEANINGS, Metrics, metrics_table

OPERATING = (ROOT / "docs" / "operating.md").read_text()


def table(name: str) -> list[list[str]]:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", OPERATING, re.DOTALL)
    assert found, name
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()[2:]]


def stats_of_an_engine(data: Path) -> Mapping[str, int]:
    plane = Authority.open(read_settings({"LEASEPLANE_DATA": str(data)}), ManualClock(wall_ms=1))

    async def look() -> Mapping[str, int]:
        engine = Engine(plane)
        await engine.start()
        stats = engine.stats()
        await engine.stop()
        return stats

    try:
        return asyncio.run(look())
    finally:
        plane.close()


def test_the_limits() -> None:
    page = (ROOT / "docs" / "limits.md").read_text()
    assert page == render_limits(), "run: python -m tests.docs.limits_page > docs/limits.md"


def test_the_python_page() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    assert page == render_python(), "run: python -m tests.docs.python_page > docs/python.md"
    told = [name for _, names in GROUPS for name in names]
    assert sorted(told) == sorted(set(leaseplane.__all__) - {"__version__"})


def test_the_metrics(tmp_path: Path) -> None:
    stats = stats_of_an_engine(tmp_path)
    metrics = Metrics(lambda: stats, lambda: 0)
    metrics.count("coordination.lease", 200, b"{}")
    _, exposed = metrics.exposition("")
    told = dict(re.findall(r"^# HELP (\S+) (.+)$", exposed.decode(), re.MULTILINE))
    assert told == MEANINGS
    page = re.search(r"<!-- metrics -->\n(.*?)<!-- /metrics -->", OPERATING, re.DOTALL)
    assert page is not None
    assert page[1] == metrics_table(), "run: python -m leaseplane.surfaces.rest.metrics"


def test_the_bounds_of_signed_requests() -> None:
    page = (ROOT / "docs" / "signed-requests.md").read_text()
    for bound in (
        f"at most {limits.SIGNED_REQUEST_AGE_S_MAX} s before or after",
        f"1 to {limits.NONCE_CHARS_MAX} characters",
        f"at most {limits.SIGNATURE_FIELDS_BYTES_MAX:,} bytes",
        *(f'| `"{component}"` |' for component in COVERED),
    ):
        assert bound in page, bound


def test_the_errors() -> None:
    assert [(row[0].strip("`"), int(row[1])) for row in table("errors")] == list(STATUS_OF.items())
