"""The credential: what is shown to a server so that it knows who asks.

In this order: the API key of the settings; where the server is on this machine, the key that its first
start left in the data folder for this machine's commands; or else a signature by the agent's own key on
each request.
"""

import os
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import Final, Protocol
from urllib.parse import urlsplit

from leaseplane.identity.agents import DEFAULT_AGENT, Agent, agent_named
from leaseplane.limits import SECRET_FILE_BYTES_MAX
from leaseplane.model import AuthorityUnavailable
from leaseplane.private_file import NotPrivate, read_secret
from leaseplane.secret import Secret
from leaseplane.settings import SettingRefused, Settings
from leaseplane.store.folder import DataFolder, FolderRefused

_NONCE_BYTES: Final = 16
_LOOPBACK_V4: Final = IPv4Network("127.0.0.0/8")
_LOOPBACK_V6: Final = IPv6Address("::1")

Headers = list[tuple[str, str]]


class Credential(Protocol):
    """What is shown with each request to one server. Safe to use from any thread."""

    def headers(self, method: str, url: str, body: bytes, *, now_s: int) -> Headers:
        """The header fields that say who sends this request.

        `url` is absolute and encoded, exactly as it will be sent, with its query; `body` is empty where
        there is none; `now_s` are seconds since 1970. Asked for each request anew, also for a repeat.
        """
        ...


class Bearer:
    """An API key, the same for each request."""

    __slots__ = ("_api_key",)

    def __init__(self, api_key: Secret) -> None:
        self._api_key = api_key

    def headers(self, method: str, url: str, body: bytes, *, now_s: int) -> Headers:
        return [("authorization", f"Bearer {self._api_key.reveal()}")]


class Signing:
    """An agent's own key: each request has its signature, with a nonce of its own (RFC 9421)."""

    __slots__ = ("_agent", "_random_bytes")

    def __init__(self, agent: Agent, random_bytes: Callable[[int], bytes]) -> None:
        self._agent = agent
        self._random_bytes = random_bytes

    def headers(self, method: str, url: str, body: bytes, *, now_s: int) -> Headers:
        nonce = self._random_bytes(_NONCE_BYTES).hex()
        return self._agent.sign_request(method, url, body, created_s=now_s, nonce=nonce)


def credential_for(
    settings: Settings,
    folder: DataFolder,
    agent: str,
    *,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> Credential:
    """What to show to the server at `settings.url`, where `agent` asks: the name of an agent of this
    machine, or a DID.

    The key in the data folder is shown to a loopback address alone: it opens the plane of this machine,
    and no other server is to learn it.

    Raises `SettingRefused` where there is nothing to show: the DID's key is not on this machine, as far
    as can be known. `FolderRefused` where the file with the API key, or with the agent's key, is damaged or
    not its reader's alone; `AgentUnknown` for a name that no agent has, but for `default`, which is made.
    `AuthorityUnavailable` where the disk refuses.
    """
    assert settings.url is not None, "an embedded plane asks for no credential"
    if settings.api_key is not None:
        return Bearer(settings.api_key)
    if is_loopback(settings.url):
        kept = _kept_api_key(folder)
        if kept is not None:
            return Bearer(kept)
    if ":" in agent:
        raise SettingRefused(
            f"the server at {settings.url} has to be shown who asks: set LEASEPLANE_API_KEY to a key that "
            f"may name {agent}, or name one of this machine's agents, which sign with their own key "
            "(leaseplane agent list)"
        )
    return Signing(
        agent_named(folder, agent, make=agent == DEFAULT_AGENT, random_bytes=random_bytes), random_bytes
    )


def is_loopback(url: str) -> bool:
    """Whether what is sent to this URL stays on this machine: `localhost`, 127.0.0.0/8 or ::1.

    Only as the address is written: no name but `localhost` (RFC 6761) is ever resolved for it.
    """
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address in _LOOPBACK_V4 if isinstance(address, IPv4Address) else address == _LOOPBACK_V6


def _kept_api_key(folder: DataFolder) -> Secret | None:
    """The key that the server keeps for this machine's commands, None where there is none."""
    from leaseplane.identity.api_keys import ApiKeyMalformed, key_id_of

    try:
        text = read_secret(folder.api_key, SECRET_FILE_BYTES_MAX).decode("ascii").strip()
        key_id_of(text)
    except FileNotFoundError:
        return None
    except NotPrivate as refused:
        raise FolderRefused(str(refused)) from None
    except OSError as error:
        raise AuthorityUnavailable(f"{folder.api_key} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, ApiKeyMalformed):
        # Without the cause, which may hold a part of the key.
        raise FolderRefused(
            f"{folder.api_key} does not hold an API key; move it away, and `leaseplane serve` makes another"
        ) from None
    return Secret(text)
