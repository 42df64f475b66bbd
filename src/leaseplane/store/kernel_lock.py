"""A lock on a file that the kernel frees when its owner dies, however it dies.

It is flock(2): it belongs to the open file, not to the process, so a second lock on the same file is
refused also within one process, and closing some other descriptor of the file does not drop it (as it
would with POSIX locks). For the same reason a forked child holds its parent's lock, and would keep a
dead parent looking alive; so every lock is closed in the child at once. Closing it there does not free
the parent's, unlocking it would: nothing here ever unlocks, it only closes. Children that exec inherit
nothing. A child forked by C code that neither execs nor runs Python's fork hooks is beyond our reach.
"""

import fcntl
import os
from io import FileIO
from typing import Final
from weakref import WeakSet


class KernelLock:
    """One held lock. It is free once `close` was called, the object is gone, or the process is."""

    def __init__(self, file: FileIO) -> None:
        self.file: Final = file
        _held.add(self)

    @staticmethod
    def try_take(name: str, *, folder_fd: int, create: bool = False) -> "KernelLock | None":
        """Lock a file of the folder for oneself, or answer None when another holds it.

        `create` makes the file (mode 0600) and insists on being the one who made it.
        Raises FileNotFoundError, FileExistsError and whatever else opening a file raises.
        """
        flags = os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if create else 0)
        file = _open(name, flags, folder_fd)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except BaseException:
            file.close()
            raise
        return KernelLock(file)

    @staticmethod
    def is_free(name: str, *, folder_fd: int) -> bool:
        """Whether nobody holds the lock. Those who only look do not get in each other's way.

        Raises FileNotFoundError and whatever else opening a file raises.
        """
        with _open(name, os.O_RDWR | os.O_NOFOLLOW, folder_fd) as file:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    @property
    def is_unlinked(self) -> bool:
        """Whether the locked file has lost its name, and with it its meaning."""
        return os.fstat(self.file.fileno()).st_nlink == 0

    def close(self) -> None:
        self.file.close()


_held: WeakSet[KernelLock] = WeakSet()


def _close_in_child() -> None:
    for lock in list(_held):
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)


def _open(name: str, flags: int, folder_fd: int) -> FileIO:
    # A file object and not a bare descriptor: if its owner is forgotten, the lock goes with it.
    descriptor = os.open(name, flags | os.O_CLOEXEC, 0o600, dir_fd=folder_fd)
    return FileIO(descriptor, "r+")
