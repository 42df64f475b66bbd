"""The plane as a command opens it on the data folder itself: for one command, beside others too."""

from collections.abc import Iterator
from contextlib import contextmanager

from leaseplane.clock import Clock
from leaseplane.engine import Authority
from leaseplane.settings import Settings
from leaseplane.store.folder import DataFolder
from leaseplane.surfaces.cli.terminal import wrong_usage


@contextmanager
def opened_plane(settings: Settings, clock: Clock, *, governs: bool = False) -> Iterator[Authority]:
    """The plane of `settings.data`, which has reclaimed what was due, closed in the end.

    Its server `governs` it (see `Authority.open`), and makes it where there is none; for anyone else there
    has to be one: a mistyped folder is told, and not made. Raises `CommandRefused`, `FolderRefused` and
    `AuthorityUnavailable`.
    """
    if not governs and not DataFolder(settings.data).database.exists():
        raise wrong_usage(
            f"there is no plane in {settings.data}; name its folder with --data or LEASEPLANE_DATA"
        )
    plane = Authority.open(settings, clock, governs=governs)
    try:
        yield plane
    finally:
        plane.close()
