"""The plane's signing keys on disk: one that signs, and the public part of every key there ever was.

A folder holds `keys.json` (the plane's id, and the public keys with their validity) and
`signing-KID.pem` (the one private key in use, mode 0600). A rotation destroys the private key it
replaces: what is retired cannot sign, whoever comes by the folder later. The private key leaves this
module only inside a Signer.

What a crash leaves behind: each file is complete or absent, since it is written under another name,
fsynced and renamed. A private key that `keys.json` does not call current is a leftover of a crash;
the next rotation removes it.
"""

import binascii
import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import UNSET, UnsetType

from leaseplane import limits
from leaseplane.private_file import sync_folder, write_new
from leaseplane.receipts import base64url
from leaseplane.receipts.issue import Signer, check_issuer
from leaseplane.receipts.jwk import UnusableKey, ed25519_thumbprint, public_key_of

_PUBLISHED_FILE: Final = "keys.json"
_LOCK_FILE: Final = "lock"
_READ_TRIES: Final = 5

DID_CONTEXTS: Final = ("https://www.w3.org/ns/did/v1", "https://w3id.org/security/jwk/v1")

_PKCS8_ED25519: Final = bytes.fromhex("302e020100300506032b657004220420")
"""A PrivateKeyInfo of version 0 for id-Ed25519, up to the 32 bytes of the seed."""


class KeyringDamaged(Exception):
    """The key folder holds something that no keyring wrote, or lacks what one wrote."""


class TooManyKeys(Exception):
    """The plane has had as many keys as it may ever have; the current one stays in use."""


class PublishedKey(
    msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """The public part of one key and when it was in use, in unix seconds."""

    kid: str
    x: str
    """The public key, base64url (RFC 8037)."""
    created_s: int
    not_before_s: int
    """Receipts dated earlier are not this key's. 0 for the first key: nothing came before it."""
    retired_s: int | UnsetType = UNSET
    """Receipts dated later are not this key's. Absent for the key in use."""

    def jwk(self) -> dict[str, object]:
        """The key as a JWK. `iat`, `nbf` and `exp` are its validity (OpenID Federation 1.0, 8.7)."""
        members: dict[str, object] = {
            "kty": "OKP",
            "crv": "Ed25519",
            "x": self.x,
            "kid": self.kid,
            "use": "sig",
            "iat": self.created_s,
            "nbf": self.not_before_s,
        }
        if self.retired_s is not UNSET:
            members["exp"] = self.retired_s
        return members


class Published(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What everyone may know of a plane's keys: its id, and every key it ever had, oldest first."""

    issuer: str
    keys: tuple[PublishedKey, ...]

    @property
    def current(self) -> PublishedKey:
        """The key in use."""
        return self.keys[-1]

    def jwks(self) -> dict[str, list[dict[str, object]]]:
        """The content of `/.well-known/jwks.json` (RFC 7517 section 5)."""
        return {"keys": [key.jwk() for key in self.keys]}

    def did_document(self, host: str) -> dict[str, object]:
        """The content of `/.well-known/did.json` for a server reached as `host` (`name` or `name:port`).

        A did:web document whose verification methods are JsonWebKey. Retired keys stay assertion
        methods, since receipts from their time still verify; the JWKs say which time that was.
        Sources: W3C DID Core 1.0, Controlled Identifiers 1.0 section 2.2.3, did:web method.
        """
        did = "did:web:" + quote(host.lower(), safe=".-")
        methods: list[dict[str, object]] = [
            {
                "id": f"{did}#{key.kid}",
                "type": "JsonWebKey",
                "controller": did,
                "publicKeyJwk": key.jwk(),
            }
            for key in self.keys
        ]
        return {
            "@context": list(DID_CONTEXTS),
            "id": did,
            "alsoKnownAs": [self.issuer],
            "verificationMethod": methods,
            "assertionMethod": [method["id"] for method in methods],
        }


def read_published(folder: Path) -> Published:
    """The public keys in a key folder. Needs no private key, and makes nothing.

    Raises FileNotFoundError where there is no keyring, KeyringDamaged where the list is broken.
    """
    path = folder / _PUBLISHED_FILE
    try:
        published = msgspec.json.decode(path.read_bytes(), type=Published)
        check_issuer(published.issuer)
        for key in published.keys:
            public_key_of(key.jwk())
    except (msgspec.DecodeError, UnicodeDecodeError, UnusableKey, ValueError) as fault:
        raise KeyringDamaged(f"{path} is broken: {fault}") from None
    in_use = [key.retired_s is UNSET for key in published.keys]
    if in_use != [False] * (len(in_use) - 1) + [True]:
        raise KeyringDamaged(f"{path} is broken: its last key has to be the only one in use")
    return published


class Keyring:
    """The signing keys of one plane, as one process sees them.

    `published` and `signer` are what the disk held when this keyring was opened or last refreshed.
    """

    def __init__(self, folder: Path, random_bytes: Callable[[int], bytes], issuer: str | None) -> None:
        """Use `Keyring.open`."""
        self._folder = folder
        self._published_path = str(folder / _PUBLISHED_FILE)
        self._random_bytes = random_bytes
        self._issuer = issuer
        self._seen: tuple[int, ...] = ()
        self.published: Published
        self.signer: Signer

    def __repr__(self) -> str:
        return f"Keyring({str(self._folder)!r}, kid={self.signer.kid!r})"

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        now_s: int,
        random_bytes: Callable[[int], bytes],
        issuer: str | None = None,
    ) -> "Keyring":
        """The keyring in `folder`; made, with a first key and an id of the plane, where there is none.

        `now_s` is unix seconds, `random_bytes` a cryptographically secure source (`os.urandom`).
        `issuer` is the `iss` of receipts from now on: a public URL that the operator configured.
        Without it, it is the plane's own id, `urn:leaseplane:` and 22 random characters, which is
        made once and stays. Any number of processes may open one folder at the same time.

        Raises KeyringDamaged, ValueError for an `issuer` that is no URI, and OSError.
        """
        ring = cls(folder, random_bytes, None if issuer is None else check_issuer(issuer))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (folder / _PUBLISHED_FILE).exists():
            with _locked(folder):
                # Another process may have been first, while this one waited for the lock.
                if not (folder / _PUBLISHED_FILE).exists():
                    ring._make(now_s)
        ring.refresh()
        return ring

    def refresh(self) -> bool:
        """Notice a rotation by another process; true if there was one.

        Costs one `stat` otherwise: call it before a batch of receipts. The signer that a rotation
        replaced signs nothing from here on. Raises KeyringDamaged and OSError.
        """
        if self._seen == (seen := self._identity()):
            return False
        for _ in range(_READ_TRIES):
            published = read_published(self._folder)
            try:
                private_key = self._read_private(published.current)
            except FileNotFoundError:
                # A rotation between the two reads took that key away, or someone else did.
                if seen == (seen := self._identity()):
                    break
                continue
            self._take(published, private_key)
            self._seen = seen
            return True
        raise KeyringDamaged(f"{self._folder} lacks the private key that it signs with")

    def rotate(self, now_s: int) -> PublishedKey:
        """Retire the key in use and sign with a new one, which is answered.

        Receipts of the old key stay valid; its private part is destroyed. Other processes may sign
        with it until they refresh, at most SIGNING_KEY_NOTICED_S_MAX; what they date later is
        invalid. Raises TooManyKeys, KeyringDamaged, and OSError where the disk refuses; unless the
        new key is in its place by then, the old one stays in use.
        """
        with _locked(self._folder):
            self.refresh()
            old = self.published.current
            if len(self.published.keys) >= limits.SIGNING_KEYS_MAX:
                raise TooManyKeys(f"a plane has at most {limits.SIGNING_KEYS_MAX} keys")
            # A clock that was set back does not make a key older than its predecessor.
            begins_s = max(now_s, old.not_before_s)
            retired = msgspec.structs.replace(old, retired_s=begins_s + limits.SIGNING_KEY_NOTICED_S_MAX)
            private_key, new = self._new_key(created_s=now_s, not_before_s=begins_s)
            published = Published(self.published.issuer, (*self.published.keys[:-1], retired, new))
            # The private key first: a list that names a key which is not there would stop the plane.
            self._write_private(new, private_key)
            self._write_published(published)
            self._take(published, private_key)
            self._seen = self._identity()
            self._destroy_all_private_but(new)
        return new

    def _make(self, now_s: int) -> None:
        plane_id = base64url.encode(self._random_bytes(16)).decode("ascii")
        private_key, first = self._new_key(created_s=now_s, not_before_s=0)
        self._write_private(first, private_key)
        self._write_published(Published(f"urn:leaseplane:{plane_id}", (first,)))
        self._destroy_all_private_but(first)

    def _new_key(self, *, created_s: int, not_before_s: int) -> tuple[Ed25519PrivateKey, PublishedKey]:
        private_key = Ed25519PrivateKey.from_private_bytes(self._random_bytes(32))
        public_key = private_key.public_key().public_bytes_raw()
        return private_key, PublishedKey(
            kid=ed25519_thumbprint(public_key),
            x=base64url.encode(public_key).decode("ascii"),
            created_s=created_s,
            not_before_s=not_before_s,
        )

    def _take(self, published: Published, private_key: Ed25519PrivateKey) -> None:
        signer = Signer(
            private_key,
            self._issuer or published.issuer,
            not_before_s=published.current.not_before_s,
        )
        if hasattr(self, "signer"):
            self.signer.retire()
        self.published = published
        self.signer = signer

    # -- files ---------------------------------------------------------------------------------

    def _identity(self) -> tuple[int, ...]:
        # The list is only ever replaced as a whole: another inode is another list.
        stat = os.stat(self._published_path)  # noqa: PTH116 - a third of the price of Path.stat
        return (stat.st_ino, stat.st_mtime_ns, stat.st_size)

    def _private_path(self, key: PublishedKey) -> Path:
        return self._folder / f"signing-{key.kid}.pem"

    def _read_private(self, key: PublishedKey) -> Ed25519PrivateKey:
        path = self._private_path(key)
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise KeyringDamaged(f"{path} can be read by others: make it yours alone (chmod 600)")
            pem = file.read()
        private_key = _private_key_in(pem)
        if private_key is None:
            raise KeyringDamaged(f"{path} is not a private key")
        if (
            not isinstance(private_key, Ed25519PrivateKey)
            or ed25519_thumbprint(private_key.public_key().public_bytes_raw()) != key.kid
        ):
            raise KeyringDamaged(f"{path} is not the private key of {key.kid}")
        return private_key

    def _write_private(self, key: PublishedKey, private_key: Ed25519PrivateKey) -> None:
        # Seldom, and it takes longer to import than an ask.
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        pem = private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        _write_durably(self._private_path(key), pem)

    def _write_published(self, published: Published) -> None:
        listed = msgspec.json.format(msgspec.json.encode(published), indent=2)
        _write_durably(self._folder / _PUBLISHED_FILE, listed + b"\n")

    def _destroy_all_private_but(self, key: PublishedKey) -> None:
        for path in self._folder.glob("signing-*"):
            if path != self._private_path(key):
                path.unlink()
        sync_folder(self._folder)


def _private_key_in(pem: bytes) -> object | None:
    """The private key of this PEM, of whatever kind; None where it is none.

    What this module writes has one form (RFC 8410 section 7: the same 16 bytes, then the seed) and is read
    here, as the library's reader for all forms takes longer to import than an ask.
    """
    lines = pem.split()
    if lines[:3] == [b"-----BEGIN", b"PRIVATE", b"KEY-----"] and lines[4:] == [b"-----END", *lines[1:3]]:
        with contextlib.suppress(ValueError):
            der = binascii.a2b_base64(lines[3], strict_mode=True)
            if len(der) == len(_PKCS8_ED25519) + 32 and der.startswith(_PKCS8_ED25519):
                return Ed25519PrivateKey.from_private_bytes(der[-32:])
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    # A lock of the kernel's: it ends with the process, however that ends.
    descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_durably(path: Path, content: bytes) -> None:
    """Put a private file in place, complete and on the disk. The caller holds the lock."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    write_new(unfinished, content)
    unfinished.replace(path)
    sync_folder(path.parent)
