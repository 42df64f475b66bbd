"""leaseplane: agents act when the plane says yes, and the log says why."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leaseplane.client.aio import AsyncLease, AsyncPlane
    from leaseplane.client.outcomes import (
        Deadlock,
        InvalidRequest,
        LeaseHeld,
        LeaseLost,
        NotAllowed,
        NotHeld,
        NotHolder,
        Refused,
        StaleLease,
        TooMany,
    )
    from leaseplane.client.plane import Lease, Plane
    from leaseplane.model import AuthorityUnavailable, OutcomeUnknown
    from leaseplane.receipts.verify import Verdict, verify_receipt
    from leaseplane.settings import SettingRefused
    from leaseplane.store.folder import FolderRefused

__version__ = "0.1.0"
__all__ = [
    "AsyncLease",
    "AsyncPlane",
    "AuthorityUnavailable",
    "Deadlock",
    "FolderRefused",
    "InvalidRequest",
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "NotAllowed",
    "NotHeld",
    "NotHolder",
    "OutcomeUnknown",
    "Plane",
    "Refused",
    "SettingRefused",
    "StaleLease",
    "TooMany",
    "Verdict",
    "__version__",
    "verify_receipt",
]

# Looked up on first use, so that `import leaseplane` alone costs next to nothing.
_NAMES_OF = {
    "leaseplane.client.aio": ("AsyncLease", "AsyncPlane"),
    "leaseplane.client.outcomes": (
        "Deadlock",
        "InvalidRequest",
        "LeaseHeld",
        "LeaseLost",
        "NotAllowed",
        "NotHeld",
        "NotHolder",
        "Refused",
        "StaleLease",
        "TooMany",
    ),
    "leaseplane.client.plane": ("Lease", "Plane"),
    "leaseplane.model": ("AuthorityUnavailable", "OutcomeUnknown"),
    "leaseplane.receipts.verify": ("Verdict", "verify_receipt"),
    "leaseplane.settings": ("SettingRefused",),
    "leaseplane.store.folder": ("FolderRefused",),
}
_HOME = {name: home for home, names in _NAMES_OF.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
