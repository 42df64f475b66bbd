"""Private files: readable by their owner alone from their first instant, and on the disk as a whole.

A file gets the name by which it is read only once it is complete: it is written under another one with
`write_new`, then renamed or linked, and then the folder is synced. What a crash leaves is a draft that
nobody reads, or the whole file.
"""

import os
from pathlib import Path


def write_new(path: Path, content: bytes) -> None:
    """Make a file of mode 0600 that holds `content`, durable but for its name, or none.

    Raises FileExistsError where there is something of that name, and never follows a link there;
    otherwise whatever the disk raises.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            # The umask can only have taken rights away, the owner's own among them.
            os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in this folder durable: without it a power loss may take a new one away."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
