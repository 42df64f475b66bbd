"""This machine's agents: a name, an Ed25519 key pair, and the did:key that it makes.

Each is a file of its own, `DATA/agents/NAME.json`, mode 0600: whoever can read it is the agent. They
are this machine's also where a server elsewhere is asked, so none is ever looked for over the network.

What a crash leaves behind: an agent's file gets its name when it is complete and on the disk. What was
being written under another one is read by nobody.
"""

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from leaseplane.limits import SECRET_FILE_BYTES_MAX
from leaseplane.model import AuthorityUnavailable
from leaseplane.private_file import NotPrivate, read_secret, sync_folder, write_new
from leaseplane.resources import NameRefused, check_agent_name
from leaseplane.store.folder import DataFolder, FolderRefused, make_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DEFAULT_AGENT: Final = "default"
"""The agent of whoever names none: made when it is first needed."""

_SUFFIX: Final = ".json"
_SEED_BYTES: Final = 32

RandomBytes = Callable[[int], bytes]
"""A source of unpredictable bytes, as `os.urandom`."""


class AgentUnknown(FolderRefused):
    """This machine has no agent of that name. The message says how to make it."""


class AgentExists(Exception):
    """This machine has an agent of that name already: `agent`."""

    def __init__(self, agent: "Agent") -> None:
        super().__init__(f"there is an agent {agent.name} already, {agent.did}")
        self.agent = agent


class Agent:
    """One of this machine's agents. Its private key signs, and leaves this module in no other way."""

    __slots__ = ("_private_key", "did", "name")

    def __init__(self, name: str, did: str, private_key: "Ed25519PrivateKey") -> None:
        self.name = name
        self.did = did
        self._private_key = private_key

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, did={self.did!r})"

    def sign_request(
        self, method: str, target_uri: str, body: bytes, *, created_s: int, nonce: str
    ) -> list[tuple[str, str]]:
        """The header fields that sign this request for the agent (RFC 9421): see `sign_request`."""
        # Only here: it brings a library that most commands can do without.
        from leaseplane.identity.signatures import sign_request

        fields = sign_request(
            method, target_uri, body, private_key=self._private_key, created_s=created_s, nonce=nonce
        )
        return [(name.decode("ascii"), value.decode("ascii")) for name, value in fields]


class _Kept(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What the file of an agent holds."""

    name: str
    did: str
    private_key: str
    """The seed of RFC 8032, 32 bytes in hexadecimal."""

    def __repr__(self) -> str:
        return f"_Kept({self.name!r}, …)"


def agent_named(folder: DataFolder, name: str, *, make: bool, random_bytes: RandomBytes) -> Agent:
    """This machine's agent of that name; with `make`, made where there is none.

    Any number of processes may make one at the same time: all get the same. Raises `AgentUnknown` where
    there is none and none is to be made, `FolderRefused` where its file is damaged or not its reader's
    alone, `NameRefused` for what cannot be a name, `AuthorityUnavailable` where the disk refuses.
    """
    check_agent_name(name)
    agent = _read(folder, name)
    if agent is not None:
        return agent
    if not make:
        made_when = ""
        if name == DEFAULT_AGENT:
            made_when = "; it is made when something is first asked for, too"
        raise AgentUnknown(
            f"this machine has no agent {name} in {folder.agents}; make it with: "
            f"leaseplane agent create {name}{made_when}"
        )
    with contextlib.suppress(AgentExists):
        return create_agent(folder, name, random_bytes=random_bytes)
    return agent_named(folder, name, make=False, random_bytes=random_bytes)


def create_agent(folder: DataFolder, name: str, *, random_bytes: RandomBytes) -> Agent:
    """Make an agent of that name. Raises `AgentExists` where there is one, and what `agent_named` does."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from leaseplane.dids import did_key_of

    check_agent_name(name)
    seed = random_bytes(_SEED_BYTES)
    private_key = Ed25519PrivateKey.from_private_bytes(seed)
    did = did_key_of(private_key.public_key().public_bytes_raw())
    content = msgspec.json.encode(_Kept(name, did, seed.hex())) + b"\n"
    for place in (folder.path, folder.agents):
        make_private(place)
    path = folder.agents / (name + _SUFFIX)
    # No agent's name begins with a dot, so a draft that a crash leaves is nobody's.
    draft = folder.agents / f".{name}.{random_bytes(8).hex()}"
    try:
        write_new(draft, content)
        try:
            # Linked under its name as a whole: nobody ever reads half a key, and the first one wins.
            os.link(draft, path)
        except FileExistsError:
            pass
        else:
            return Agent(name, did, private_key)
        finally:
            draft.unlink()
            sync_folder(folder.agents)
    except OSError as error:
        raise AuthorityUnavailable(f"{path} cannot be written: {error.strerror}") from error
    agent = _read(folder, name)
    if agent is None:
        raise AuthorityUnavailable(f"{path} was taken away while it was looked at; try again")
    raise AgentExists(agent)


def agents_of(folder: DataFolder) -> list[Agent]:
    """All of this machine's agents, by name. Raises what `agent_named` does for the first that is damaged."""
    try:
        found = [path.name for path in folder.agents.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise AuthorityUnavailable(f"{folder.agents} cannot be read: {error.strerror}") from error
    names = sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX) and _is_name(name))
    return [agent for agent in (_read(folder, name) for name in names) if agent is not None]


def _is_name(file_name: str) -> bool:
    try:
        check_agent_name(file_name.removesuffix(_SUFFIX))
    except NameRefused:
        # A draft that a crash left, or what somebody else put there.
        return False
    return True


def _read(folder: DataFolder, name: str) -> Agent | None:
    """The agent in its file, None where there is no file."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from leaseplane.dids import did_key_of

    path = folder.agents / (name + _SUFFIX)
    try:
        content = read_secret(path, SECRET_FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    except NotPrivate as refused:
        raise FolderRefused(str(refused)) from None
    except OSError as error:
        raise AuthorityUnavailable(f"{path} cannot be read: {error.strerror}") from error

    def refuse(fault: str) -> NoReturn:
        raise FolderRefused(
            f"{path} {fault}; restore it from a backup, or move it away and make another agent with: "
            f"leaseplane agent create {name}"
        ) from None

    try:
        kept = msgspec.json.decode(content, type=_Kept)
        private_key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(kept.private_key))
        did = did_key_of(private_key.public_key().public_bytes_raw())
    except (msgspec.DecodeError, ValueError):
        # Without the cause, whose text may repeat a part of the key.
        refuse("does not hold an agent's key")
    if did != kept.did:
        refuse("holds a key and a DID that do not belong together")
    if kept.name != name:
        # A copy, or two names that are one to a file system that knows no capitals.
        refuse(f"holds the key of an agent {kept.name[:64]!r}")
    return Agent(name, did, private_key)
