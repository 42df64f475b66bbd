"""Private files: readable by their owner alone from their first instant, and on the disk as a whole.

A file gets the name by which it is read only once it is complete: it is written under another one with
`write_new`, then renamed or linked, and then the folder is synced. What a crash leaves is a draft that
nobody reads, or the whole file.
"""

import os
import stat
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


class NotPrivate(Exception):
    """A file that holds a secret is not its reader's alone, or is none. The message says what to do."""


def read_secret(path: Path, bytes_max: int) -> bytes:
    """What a file that holds a secret has in it: at most `bytes_max` bytes.

    Raises `NotPrivate` where this user may not read it, where others may read or write it, where it
    belongs to someone who owns neither this process nor the folder around it, or where it is no file or a
    larger one; FileNotFoundError where there is none; otherwise whatever the disk raises.
    """
    try:
        # Not blocking: what has the name may be a pipe that nobody ever writes to.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError:
        raise NotPrivate(
            f"{path} may not be read by this user (user {os.geteuid()}); name a data folder of your own"
        ) from None
    try:
        # Of the open file: what has the name may be another one an instant later.
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotPrivate(f"{path} is not a file; move it away")
        # Root runs the commands of a container whose folder is somebody else's, and his files with it.
        if found.st_uid not in (os.geteuid(), path.parent.stat().st_uid):
            raise NotPrivate(
                f"{path} belongs to user {found.st_uid}, who could change what it says; move it away, or "
                f"make it yours with: chown {os.geteuid()} '{path}'"
            )
        if found.st_mode & 0o077:
            raise NotPrivate(
                f"{path} is open to others (mode {stat.S_IMODE(found.st_mode):04o}); make it yours alone "
                f"with: chmod 600 '{path}'"
            )
        content = os.read(descriptor, bytes_max + 1)
    finally:
        os.close(descriptor)
    if len(content) > bytes_max:
        raise NotPrivate(f"{path} has more than {bytes_max} bytes, so it is no secret of ours; move it away")
    return content
