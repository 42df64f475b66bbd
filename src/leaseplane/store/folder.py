"""The data folder: where it is, and who may use it."""


class FolderRefused(Exception):
    """The data folder, or a file in it, is not one that this program may use.

    It is a usage error and not an `AuthorityUnavailable`: waiting and asking again change nothing,
    someone has to name another folder, mend this one, or install another version. The message says
    which of these.
    """
