"""What several tests of receipts need: statements from the vectors, and the published vectors of others."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings

from leaseplane.receipts.profile import STATEMENTS, Statement

UNHURRIED = settings(deadline=None)
"""The machine may be busy with something else: how long one example takes says nothing here."""


def statement_in(payload: dict[str, Any]) -> Statement:
    members = {name: value for name, value in payload.items() if name not in ("v", "iss")}
    return msgspec.convert(members, STATEMENTS[payload["op"], payload["outcome"]])


def published(name: str) -> Path:
    """A file or folder of `shared/vectors`, which lies beside the project or where the environment says."""
    configured = os.environ.get("LEASEPLANE_VECTORS")
    roots = [Path(configured)] if configured else []
    roots += [parent.parent / "shared" / "vectors" for parent in Path(__file__).resolve().parents]
    for root in roots:
        if (root / name).exists():
            return root / name
    pytest.skip(f"the published vectors in ../shared/vectors/{name} are not there")
