"""leaseplane: agents act when the plane says yes, and the log says why."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leaseplane.receipts.verify import Verdict, verify_receipt

__version__ = "0.1.0"
__all__ = ["Verdict", "__version__", "verify_receipt"]

# Looked up on first use, so that `import leaseplane` alone costs next to nothing.
_HOME = {
    "Verdict": "leaseplane.receipts.verify",
    "verify_receipt": "leaseplane.receipts.verify",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
