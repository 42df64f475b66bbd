"""The agents of the histories: short names in the texts, canonical did:key DIDs on the wire."""

import hashlib
from functools import cache
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_ED25519_PUBLIC: Final = b"\xed\x01"
"""The multicodec prefix of an Ed25519 public key (did:key method, multicodec table)."""


@cache
def private_key(name: str) -> Ed25519PrivateKey:
    """The agent's key: the same name has the same key in every run and every world."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"scenario agent {name}".encode()).digest())


@cache
def did(name: str) -> str:
    """The agent's DID. A name that is a DID already stands for itself."""
    if name.startswith("did:"):
        return name
    raw = _ED25519_PUBLIC + private_key(name).public_key().public_bytes_raw()
    number, text = int.from_bytes(raw, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = _BASE58[digit] + text
    agent = f"did:key:z{text}"
    _NAMES[agent] = name
    return agent


_NAMES: Final[dict[str, str]] = {}


def name(agent_did: str) -> str:
    """The short name of a DID, for messages; the DID itself where it has none."""
    return _NAMES.get(agent_did, agent_did)
