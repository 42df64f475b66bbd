"""The program that a command line names: found as a shell finds it, and become as a shell becomes it."""

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
"""As a shell says it of a command that is not there, or cannot be run."""

_PYTHON_IGNORES: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python does, for itself; whoever started it expects of the program what it expects of any."""


def restore_signals() -> None:
    """Give this process the dispositions that it was started with, as far as Python lets that be known.

    What its parent ignored stays ignored: so `nohup` means the command as well.
    """
    for number in signal.valid_signals():
        if number in _PYTHON_IGNORES or callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def run_command(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Become this command, found in the PATH of `environment`; a script that names no shell is sh's.

    Its signals are to be restored first. Raises the OSError that says why not.
    """
    file = find_command(command[0], environment)
    try:
        os.execve(file, [*command], environment)  # noqa: S606 - what we are for
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    # A script without a first line that names its shell: execvp(3) and every shell do this.
    os.execve("/bin/sh", ["sh", file, *command[1:]], environment)  # noqa: S606


def find_command(name: str, environment: Mapping[str, str]) -> str:
    """The file that this command is, as execvp(3) finds it.

    Raises FileNotFoundError where there is none, PermissionError where what there is cannot be run.
    """
    if "/" in name:
        places = [name]
    else:
        path = environment.get("PATH") or os.defpath
        places = [str(Path(folder) / name) for folder in path.split(os.pathsep)] if name else []
    found: OSError = FileNotFoundError(errno.ENOENT, "not found")
    for place in places:
        if not os.path.exists(place):  # noqa: PTH110 - what cannot be looked at is not there
            continue
        if os.access(place, os.X_OK) and Path(place).is_file():
            return place
        found = PermissionError(errno.EACCES, "is a folder" if Path(place).is_dir() else "not executable")
    raise found


def refusal_to_run(name: str, error: OSError) -> tuple[int, str]:
    """The exit status that says that this command cannot be run, and a sentence."""
    if isinstance(error, FileNotFoundError):
        return NOT_FOUND, f"there is no command {name!r}; give a path, or a name that is in PATH"
    return NOT_EXECUTABLE, f"{name!r} cannot be run: {error.strerror}"
