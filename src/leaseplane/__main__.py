"""The command `leaseplane`, as a process: it begins and ends as quickly as it can."""

import gc
import os
import sys
from contextlib import suppress
from typing import Final, NoReturn

_OBJECTS_UNTIL_COLLECTED: Final = 50_000
"""More than any command makes by importing."""


def start() -> NoReturn:
    """Be the program: run the command of this process's arguments, and end.

    What a command imports stays, so the garbage collector is kept from looking at it again and again. Nor is
    the interpreter taken apart in the end: all that has to be closed is by then, and it takes longer than an
    ask.
    """
    gc.set_threshold(_OBJECTS_UNTIL_COLLECTED)
    _import_msgspec()
    from leaseplane.surfaces.cli.program import main

    status = main()
    for stream in (sys.stdout, sys.stderr):
        # What cannot be written here was told, or has nobody to be told to.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


def _import_msgspec() -> None:
    """Import it without `typing_extensions`, of which it takes what `typing` has as well on every Python
    that we run on: with all that this one imports, it would be an eighth of the time of an ask."""
    name = "typing_extensions"
    if name not in sys.modules:
        # The import system's own way to say that there is no such module.
        sys.modules[name] = None  # type: ignore[assignment]
        try:
            import msgspec  # noqa: F401
        finally:
            del sys.modules[name]


if __name__ == "__main__":
    start()
