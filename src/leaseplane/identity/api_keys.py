"""API keys: what one looks like, and how it is kept without being known.

    lpk_7rk2m0vq8x4d_<33 characters of secret><6 characters of checksum>
    └── key id ─────┘

The key id is public: it is shown in lists and names a key that is to be revoked. The secret is 192
random bits. The checksum is the CRC-32 of all that stands before it: a mistyped key is told apart
from an unknown one without a look-up, and a secret scanner that knows the pattern raises no false
alarm. What is stored is a keyed hash (BLAKE2b, RFC 7693) under a secret that lies beside the database
and not in it, so that a copy of the database alone neither holds a key nor lets one be tested.
"""

import os
import re
import stat
import zlib
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Final

from leaseplane.private_file import sync_folder, write_new
from leaseplane.secret import Secret
from leaseplane.store.folder import FolderRefused

PREFIX: Final = "lpk_"
API_KEY_PATTERN: Final = r"lpk_[0-9a-hjkmnp-tv-z]{12}_[0-9A-Za-z]{39}"
"""What an API key looks like, for scanners of secrets and for whoever has to blot one out."""

API_KEY: Final = re.compile(API_KEY_PATTERN)
_ID_DIGITS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_CHARS: Final = 12
_SECRET_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # noqa: S105
_SECRET_BYTES: Final = 24
_SECRET_CHARS: Final = 33
_CHECK_CHARS: Final = 6
_HASH_SECRET_BYTES: Final = 32

RandomBytes = Callable[[int], bytes]
"""A source of unpredictable bytes, as `os.urandom` or `secrets.token_bytes`."""

assert len(_SECRET_DIGITS) ** _SECRET_CHARS >= 2 ** (8 * _SECRET_BYTES)
assert len(_SECRET_DIGITS) ** _CHECK_CHARS >= 2**32


class ApiKeyMalformed(ValueError):
    """What was shown cannot be an API key, or was mistyped. The message never repeats it."""


def mint_api_key(random_bytes: RandomBytes) -> tuple[str, Secret]:
    """A new API key: its id, which is public, and the whole key, which is shown once."""
    identity = int.from_bytes(random_bytes(8), "big") >> 4
    key_id = PREFIX + _digits(identity, _ID_DIGITS, _ID_CHARS)
    secret = _digits(int.from_bytes(random_bytes(_SECRET_BYTES), "big"), _SECRET_DIGITS, _SECRET_CHARS)
    checked = f"{key_id}_{secret}"
    return key_id, Secret(checked + _checksum(checked))


def key_id_of(api_key: str) -> str:
    """The key id in `api_key`. Raises `ApiKeyMalformed` where it is none, or its checksum is wrong."""
    if API_KEY.fullmatch(api_key) is None:
        raise ApiKeyMalformed(f"This is not an API key of a plane; one begins with {PREFIX}.")
    if _checksum(api_key[:-_CHECK_CHARS]) != api_key[-_CHECK_CHARS:]:
        raise ApiKeyMalformed("This API key is mistyped: its checksum is wrong.")
    return api_key[: len(PREFIX) + _ID_CHARS]


def _checksum(text: str) -> str:
    return _digits(zlib.crc32(text.encode("ascii")), _SECRET_DIGITS, _CHECK_CHARS)


def _digits(number: int, digits: str, width: int) -> str:
    text = ""
    for _ in range(width):
        number, digit = divmod(number, len(digits))
        text = digits[digit] + text
    assert number == 0
    return text


# -- the keyed hash ----------------------------------------------------------------------------


class KeyHash:
    """The plane's keyed hash of API keys. Holds the hash's secret, and never shows it."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        assert len(secret) == _HASH_SECRET_BYTES
        self._secret = secret

    def __call__(self, api_key: bytes) -> bytes:
        """The 32 bytes under which `api_key` is stored and cached."""
        return blake2b(api_key, key=self._secret, digest_size=32).digest()

    @property
    def fingerprint(self) -> bytes:
        """Tells one hash's secret from another without giving it away: 16 bytes."""
        return blake2b(b"", key=self._secret, digest_size=16, person=b"fingerprint").digest()

    def __repr__(self) -> str:
        return "KeyHash(…)"


def load_key_hash(keys_folder: Path, random_bytes: RandomBytes) -> KeyHash:
    """The plane's keyed hash, its secret in `keys_folder/api-keys.secret`, made on first use.

    Mode 0600, durable before it is used; of ten processes that make it at once, all use the same one.
    Raises `FolderRefused` where the file does not hold a secret, and `OSError`.
    """
    path = keys_folder / "api-keys.secret"
    if not path.exists():
        # Linked under its name as a whole: no process ever reads half a secret, and the first one wins.
        draft = _write_draft(path, random_bytes(_HASH_SECRET_BYTES), random_bytes)
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
        sync_folder(keys_folder)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o600)
    secret = path.read_bytes()
    if len(secret) != _HASH_SECRET_BYTES:
        raise FolderRefused(f"{path} does not hold {_HASH_SECRET_BYTES} bytes; restore it from a backup")
    return KeyHash(secret)


def keep_api_key(path: Path, api_key: Secret, random_bytes: RandomBytes) -> None:
    """Put `api_key` into the file `path`, mode 0600, durably, and as a whole or not at all."""
    draft = _write_draft(path, api_key.reveal().encode("ascii") + b"\n", random_bytes)
    try:
        draft.replace(path)
    except OSError:
        draft.unlink()
        raise
    sync_folder(path.parent)


def _write_draft(beside: Path, content: bytes, random_bytes: RandomBytes) -> Path:
    """Write a private file beside `beside`, under a name of its own; answer its path."""
    draft = beside.with_name(f".{beside.name}.{random_bytes(8).hex()}")
    write_new(draft, content)
    return draft
