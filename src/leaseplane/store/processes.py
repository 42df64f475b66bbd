"""The processes that have the data folder open: how they wake each other, and how one is known to be dead.

Each has two files in the folder `processes`: a lock, which the kernel frees when it dies, and a Unix
datagram socket, on which one datagram says "look again". Silence proves nothing: a process may be
stopped for an hour and live. These orders hold, so that a crash between any two steps leaves nothing
that could be misread:

- a lock appears under its name only once it is held (made and locked as `ID.new`, then renamed);
- the socket appears after the lock and goes before it, so a socket without a lock does not exist;
- files of the dead are removed only by one who holds their lock.
"""

import errno
import os
import re
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import WeakSet

from leaseplane.limits import PROCESS_LOOK_SHARED_MS, SOCKET_PATH_BYTES_MAX, WAKES_DRAINED_MAX
from leaseplane.model import AuthorityUnavailable
from leaseplane.store.folder import FolderRefused
from leaseplane.store.kernel_lock import KernelLock

_PROCESS_ID: Final = re.compile(r"[0-9a-f]{16}")
_PUBLISH_TRIES_MAX: Final = 100
_LOOK_AGAIN: Final = b"."
_LOOKED: Final = struct.Struct("<Q16s")
_FULL: Final = frozenset({errno.EAGAIN, errno.ENOBUFS})


class Presence:
    """This process's being there, for the others that have the folder open.

    A forked child has no part in it: there the object is closed, and the parent's files and lock stay.
    """

    def __init__(
        self, process_id: str, folder: Path, folder_fd: int, lock: KernelLock, inbox: socket.socket
    ) -> None:
        self._process_id = process_id
        self._folder = folder
        self._folder_fd = folder_fd
        self._lock = lock
        self._inbox = inbox
        self._note_fd = -1
        self._is_open = True
        _open.add(self)

    @staticmethod
    def open(folder: Path, process_id: str) -> "Presence":
        """Appear in `folder` (the data folder's `processes`) under an id of 16 hexadecimal characters.

        From the first instant at which others can see it, its lock is held. Raises
        `AuthorityUnavailable` where the folder cannot be used, `FolderRefused` where its path is too
        long for a socket and there is no `/proc` to go round that.
        """
        assert _PROCESS_ID.fullmatch(process_id), process_id
        folder_fd = -1
        lock: KernelLock | None = None
        inbox: socket.socket | None = None
        try:
            folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            _sweep(folder_fd)
            lock = _publish_lock(folder_fd, process_id)
            inbox = _bind(folder, folder_fd, process_id)
            return Presence(process_id, folder, folder_fd, lock, inbox)
        except BaseException as error:
            if inbox is not None:
                inbox.close()
            if lock is not None:
                _unlink(f"{process_id}.lock", folder_fd)
                lock.close()
            if folder_fd != -1:
                os.close(folder_fd)
            if isinstance(error, OSError):
                raise AuthorityUnavailable(f"{folder} cannot be used: {error.strerror}") from error
            raise

    @property
    def process_id(self) -> str:
        return self._process_id

    def is_in(self, folder: Path) -> bool:
        """Whether the folder of that name is still the one in which this process appeared."""
        self._check_open()
        ours = os.fstat(self._folder_fd)
        try:
            found = folder.stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)

    def fileno(self) -> int:
        """The descriptor that becomes readable when this process has been woken."""
        return self._inbox.fileno()

    def drain(self) -> None:
        """Take in all wake-ups there are. Call it before looking again, so that none is missed."""
        with suppress(BlockingIOError):
            # Bounded: what is left keeps the descriptor readable.
            for _ in range(WAKES_DRAINED_MAX):
                self._inbox.recv(1)

    def wake(self, process_id: str) -> bool:
        """Tell a process to look again; False when it was not reached (then ask `dead`).

        A full inbox counts as woken: its owner has not yet looked since the wake-ups in it.
        """
        self._check_open()
        address = _address(self._folder, self._folder_fd, process_id)
        try:
            self._inbox.sendto(_LOOK_AGAIN, address)
        except OSError as error:
            if error.errno not in _FULL:
                return False
        else:
            return True
        # Full is either its inbox, or our own account of what was sent and not yet read, which may be
        # owed by quite other processes. A new socket has an account of its own. Where none can be made, the
        # other looks by itself a little later; raising here would deny a commit that stands.
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outbox:
                outbox.setblocking(False)
                outbox.sendto(_LOOK_AGAIN, address)
        except OSError as error:
            return error.errno in _FULL
        return True

    def dead(self, process_ids: set[str]) -> set[str]:
        """Those among them that are proven dead: nobody holds their lock, or it is gone."""
        self._check_open()
        return {process_id for process_id in process_ids if self._is_dead(process_id)}

    def is_looked_after(self, now_boot_ms: int) -> bool:
        """Whether another process, which lives, has just looked for the dead among all: then it need not be
        done again. Otherwise many processes would cost each other more than they do."""
        self._check_open()
        try:
            note = os.pread(self._note(), _LOOKED.size, 0)
        except OSError:
            return False
        if len(note) != _LOOKED.size:
            return False
        looked_boot_ms, who = _LOOKED.unpack(note)
        if not 0 <= now_boot_ms - looked_boot_ms < PROCESS_LOOK_SHARED_MS:
            return False
        process_id = who.decode("ascii", "replace")
        return _PROCESS_ID.fullmatch(process_id) is not None and not self._is_dead(process_id)

    def looked(self, since_boot_ms: int) -> None:
        """Tell the others that this process has just looked for the dead, and when it began to."""
        self._check_open()
        # Where it cannot be told they look themselves.
        with suppress(OSError):
            os.pwrite(self._note(), _LOOKED.pack(since_boot_ms, self._process_id.encode("ascii")), 0)

    def _note(self) -> int:
        if self._note_fd == -1:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._note_fd = os.open("looked", flags, 0o600, dir_fd=self._folder_fd)
        return self._note_fd

    def others(self) -> set[str]:
        """All processes that have appeared in the folder and were not buried, alive or dead, but this."""
        self._check_open()
        try:
            names = os.listdir(self._folder_fd)  # noqa: PTH208 - of the folder we have, whatever has its name now
        except OSError as error:
            raise AuthorityUnavailable(f"{self._folder} cannot be read: {error.strerror}") from error
        found = {name.removesuffix(".lock") for name in names if name.endswith(".lock")}
        return {name for name in found if _PROCESS_ID.fullmatch(name)} - {self._process_id}

    def bury(self, process_id: str) -> bool:
        """Remove the files of a dead process; False where it lives, or another is burying it."""
        self._check_open()
        try:
            lock = KernelLock.try_take(f"{process_id}.lock", folder_fd=self._folder_fd)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        if lock is None:
            return False
        try:
            # Where another burier was faster, the lock that we hold has no name any more.
            if not lock.is_unlinked:
                _remove(process_id, self._folder_fd)
        except OSError:
            # A folder in which nothing can be removed right now: what is left is found again.
            return False
        finally:
            lock.close()
        return True

    def close(self, *, to_be_buried: bool = False) -> None:
        """Disappear. The others take this process for dead from here on; `to_be_buried` leaves the files
        for them to find."""
        if not self._is_open:
            return
        if not to_be_buried:
            _remove(self._process_id, self._folder_fd)
        self._forget()

    def _forget(self) -> None:
        self._is_open = False
        self._inbox.close()
        self._lock.close()
        if self._note_fd != -1:
            os.close(self._note_fd)
        os.close(self._folder_fd)

    def _is_dead(self, process_id: str) -> bool:
        try:
            return KernelLock.is_free(f"{process_id}.lock", folder_fd=self._folder_fd)
        except FileNotFoundError:
            return True
        except OSError:
            # Out of descriptors, say: that proves nothing about the other.
            return False

    def _check_open(self) -> None:
        if not self._is_open:
            raise AuthorityUnavailable(
                "this process's place in the data folder was closed, or is its parent's"
            )


_open: WeakSet[Presence] = WeakSet()


def _close_in_child() -> None:
    for presence in list(_open):
        if presence._is_open:
            presence._forget()


os.register_at_fork(after_in_child=_close_in_child)


def _publish_lock(folder_fd: int, process_id: str) -> KernelLock:
    fresh, name = f"{process_id}.new", f"{process_id}.lock"
    assert not _exists(name, folder_fd), "every process has an id of its own"
    for _ in range(_PUBLISH_TRIES_MAX):
        with suppress(FileExistsError):
            lock = KernelLock.try_take(fresh, folder_fd=folder_fd, create=True)
            if lock is not None:
                try:
                    os.rename(fresh, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
                    return lock
                except FileNotFoundError:
                    lock.close()
        # Someone swept the file away between its making and its locking, as if its maker had died.
        _unlink(fresh, folder_fd)
    raise AuthorityUnavailable(f"the lock {fresh} is taken away again and again")


def _sweep(folder_fd: int) -> None:
    """Remove what processes left that died before their lock had its name."""
    for name in os.listdir(folder_fd):
        if name.endswith(".new"):
            with suppress(FileNotFoundError):
                lock = KernelLock.try_take(name, folder_fd=folder_fd)
                if lock is not None:
                    _unlink(name, folder_fd)
                    lock.close()


def _bind(folder: Path, folder_fd: int, process_id: str) -> socket.socket:
    inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        inbox.setblocking(False)
        if sys.platform == "linux":
            # The file gets the socket's own mode, so it is private before anyone can see it.
            os.fchmod(inbox.fileno(), 0o600)
        inbox.bind(_address(folder, folder_fd, process_id))
        os.chmod(f"{process_id}.sock", 0o600, dir_fd=folder_fd)
    except BaseException:
        inbox.close()
        raise
    return inbox


def _address(folder: Path, folder_fd: int, process_id: str) -> str:
    # A socket's address ends at 104 or 108 bytes, and people's folders do not.
    if sys.platform == "linux":
        return f"/proc/self/fd/{folder_fd}/{process_id}.sock"
    path = str(folder / f"{process_id}.sock")
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise FolderRefused(f"{folder} is too long a name for a socket in it; name a shorter data folder")
    return path


def _remove(process_id: str, folder_fd: int) -> None:
    _unlink(f"{process_id}.sock", folder_fd)
    _unlink(f"{process_id}.lock", folder_fd)


def _unlink(name: str, folder_fd: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder_fd)


def _exists(name: str, folder_fd: int) -> bool:
    try:
        os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
