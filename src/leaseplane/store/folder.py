"""The data folder: where it is, who may use it, and which server owns it."""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from leaseplane.model import AuthorityUnavailable
from leaseplane.store.kernel_lock import KernelLock

_SERVER_LOCK: Final = "server.lock"
_NAMED_TRIES_MAX: Final = 50
_NAMED_RETRY_S: Final = 0.01
_OWNER_BYTES_MAX: Final = 4_096


class FolderRefused(Exception):
    """The data folder, or a file in it, is not one that this program may use.

    It is a usage error and not an `AuthorityUnavailable`: waiting and asking again change nothing,
    someone has to name another folder, mend this one, or install another version. The message says
    which of these.
    """


def default_folder(*, platform: str, home: Path, xdg_data_home: str | None) -> Path:
    """The platform's folder for a user's data (XDG Base Directory Specification; Apple's guidelines)."""
    if platform == "darwin":
        return home / "Library" / "Application Support" / "leaseplane"
    # A relative path there is invalid and to be ignored, says the specification.
    if xdg_data_home and Path(xdg_data_home).is_absolute():
        return Path(xdg_data_home) / "leaseplane"
    return home / ".local" / "share" / "leaseplane"


class DataFolder(msgspec.Struct, frozen=True):
    """A data folder that was found fit for use, and the names of what lies in it."""

    path: Path

    @staticmethod
    def open(path: Path) -> "DataFolder":
        """Make the folder where it is missing (mode 0700), or make sure that only its owner can write to it.

        Raises `FolderRefused` where others could write, or where something else has the name;
        `AuthorityUnavailable` where it cannot be made or looked at.
        """
        path = path.absolute()
        folder = DataFolder(path)
        for place in (path, folder.keys, folder.processes):
            make_private(place)
        return folder

    @property
    def database(self) -> Path:
        return self.path / "plane.db"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def processes(self) -> Path:
        return self.path / "processes"

    @property
    def agents(self) -> Path:
        return self.path / "agents"

    @property
    def api_key(self) -> Path:
        return self.path / "api-key"


class ServerOwner(msgspec.Struct, frozen=True):
    """The server that owns a data folder, as it names itself to the next."""

    pid: int
    url: str
    started_wall_ms: int


class ServerOwnership:
    """One server owns the data folder. The kernel frees it when the owner dies, however it dies."""

    def __init__(self, lock: KernelLock) -> None:
        self._lock = lock

    @staticmethod
    def take(
        folder: DataFolder, owner: ServerOwner, *, sleep: Callable[[float], None] = time.sleep
    ) -> "ServerOwnership":
        """Become the folder's server. Raises `FolderRefused`, naming the one that is."""
        name = folder.path / _SERVER_LOCK
        seen: bytes | None = None
        try:
            descriptor = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                for _ in range(_NAMED_TRIES_MAX):
                    lock = _lock_or_make(descriptor)
                    if lock is not None:
                        ownership = ServerOwnership(lock)
                        ownership.name(owner)
                        return ownership
                    # An owner that has the lock writes its name an instant later; until then the file
                    # is empty or still names one that died. Two readings that agree are believed.
                    before, seen = seen, _read(name)
                    if seen and seen == before:
                        break
                    sleep(_NAMED_RETRY_S)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise AuthorityUnavailable(f"{name} cannot be locked: {error.strerror}") from error
        raise FolderRefused(f"the data folder {folder.path} is owned by {_told(seen)}; stop that one first")

    def name(self, owner: ServerOwner) -> None:
        """Name the owner anew: what its URL is may be known only after it has the folder."""
        # Of one length (JSON may end in spaces), so that no reader finds the end of an older name in it.
        self._lock.file.seek(0)
        self._lock.file.write(msgspec.json.encode(owner).ljust(_OWNER_BYTES_MAX))

    def close(self) -> None:
        """Give the folder up. The file stays: taking its name away would let two servers lock two files."""
        if not self._lock.file.closed:
            self._lock.file.truncate(0)
            self._lock.close()


def make_private(path: Path) -> None:
    """Make a folder that only its owner can write to (mode 0700), or see that what is there is one.

    Raises what `DataFolder.open` does.
    """
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
        except FileExistsError:
            pass
        else:
            path.chmod(0o700)
        found = path.stat()
    except OSError as error:
        raise AuthorityUnavailable(f"the data folder {path} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise FolderRefused(f"{path} is not a folder; move it away or name another data folder")
    # Who can write here can put a database and signing keys of their own in place of ours. Root, who
    # could anyway, may also own it; and root itself may use anyone's, as it does in containers.
    if os.geteuid() not in (found.st_uid, 0) and found.st_uid != 0:
        raise FolderRefused(
            f"{path} belongs to user {found.st_uid}, who could change the plane; name a folder of your own"
        )
    if found.st_mode & 0o022:
        raise FolderRefused(
            f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):04o}), who could change the "
            f"plane; mend it with: chmod go-w '{path}'"
        )


def _lock_or_make(folder_fd: int) -> KernelLock | None:
    try:
        return KernelLock.try_take(_SERVER_LOCK, folder_fd=folder_fd)
    except FileNotFoundError:
        try:
            return KernelLock.try_take(_SERVER_LOCK, folder_fd=folder_fd, create=True)
        except FileExistsError:
            return None


def _read(name: Path) -> bytes:
    with name.open("rb") as file:
        return file.read(_OWNER_BYTES_MAX)


def _told(named: bytes | None) -> str:
    try:
        owner = msgspec.json.decode(named or b"", type=ServerOwner)
    except msgspec.DecodeError:
        return "a server that is just starting"
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(owner.started_wall_ms // 1_000))
    return f"the server at {owner.url} (process {owner.pid}, started {started})"
