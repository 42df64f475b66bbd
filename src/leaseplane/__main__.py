"""The command `leaseplane`, as a process: it begins and ends as quickly as it can."""

import gc
import os
import sys
from contextlib import suppress
from typing import NoReturn


def start() -> NoReturn:
    """Be the program: run the command of this process's arguments, and end.

    What is imported before the command begins stays, so the garbage collector never has to look at it. Nor
    is the interpreter taken apart in the end: all that has to be closed is by then, and it takes longer than
    an ask.
    """
    gc.disable()
    from leaseplane.surfaces.cli.program import main

    gc.freeze()
    gc.enable()
    status = main()
    for stream in (sys.stdout, sys.stderr):
        # What cannot be written here was told, or has nobody to be told to.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    start()
