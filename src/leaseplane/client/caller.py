"""The caller: who asks a plane, through which channel, and what it holds. Shared by `Plane` and `AsyncPlane`.

A caller has an instance of its own, and each of its leases is `INSTANCE.n`, so that two parts of one
program exclude each other and still are one node of the wait graph.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import msgspec

from leaseplane.chance import jitter
from leaseplane.client.asking import Chance, Wish
from leaseplane.client.channel import Channel, PlaneClosed, Request
from leaseplane.client.outcomes import LeaseHeld
from leaseplane.clock import Clock, SystemClock
from leaseplane.limits import INSTANCE_CHARS_MAX, PARK_MS_MAX, PARK_SLICE_MS
from leaseplane.model import Access
from leaseplane.operations import BREAK, LEASE, RELEASE, TRUST, WAIT, WITHDRAW, Operation
from leaseplane.secret import Secret
from leaseplane.settings import SettingRefused, Settings, read_setting, settings_of_environment

if TYPE_CHECKING:
    from leaseplane.client.keeper import Keeper, Kept

_OWN_BYTES: Final = 4
_KEY_BYTES: Final = 16
_LEASE_DIGITS: Final = 12
"""What is kept free for the number of a lease behind an instance."""

_callers: "WeakSet[Caller]" = WeakSet()


def _fresh_key() -> str:
    return os.urandom(_KEY_BYTES).hex()


def _no_key() -> None:
    return None


def instance_within(outer: str | None, own: str) -> str:
    """The instance of a part: behind that of what it runs in, so that both are one node of the wait graph.

    What would grow too long keeps the outermost part, which says the node.
    """
    if not outer:
        return own
    longest = INSTANCE_CHARS_MAX - _LEASE_DIGITS
    whole = f"{outer}.{own}"
    if len(whole) <= longest:
        return whole
    root = outer.partition(".")[0]
    return f"{root}.{own}" if len(root) + 1 + len(own) <= INSTANCE_CHARS_MAX else root


class WorkspaceUnknown(SettingRefused):
    """The data folder has no workspace of that name."""


class Caller:
    """One program's way to a plane, embedded or at a URL; made from settings and what overrides them."""

    def __init__(
        self,
        url: str | None,
        *,
        api_key: str | Secret | None,
        data: str | Path | None,
        agent: str | None,
        instance: str | None,
        workspace: str | None,
        decides_here: bool,
        settings: Settings | None,
        clock: Clock | None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.settings = _overridden(settings or settings_of_environment(), url, api_key, data, agent)
        # A record of each answer would be one more row for each ask of an embedded plane, for nothing.
        key = _no_key if self.settings.url is None else _fresh_key
        self.chance = Chance(key, jitter)
        self._decides_here = decides_here
        if workspace is not None and self.settings.url is not None:
            raise SettingRefused("at a URL the API key says the workspace; leave workspace out")
        self._workspace = workspace
        self._actor: str | None = None
        self._outer = instance or self.settings.instance
        self.closed = False
        self._opened()
        _callers.add(self)

    def _opened(self) -> None:
        own = os.urandom(_OWN_BYTES).hex()
        self.instance = instance_within(self._outer, own)
        self._leases = 0
        self._keeper: Keeper | None = None
        self._channel: Channel | None = None
        if self.settings.url is None:
            self._channel = self._open_local()
        else:
            self._channel = self._open_remote(self.settings.url)

    def _open_local(self) -> Channel:
        # One of the two channels is needed, and each takes long to import.
        from leaseplane.client.local import LocalChannel
        from leaseplane.embedded import EmbeddedEngine
        from leaseplane.engine import Authority
        from leaseplane.model import Principal

        workspace = self._workspace or "local"
        if workspace != "local":
            _check_workspace(self.settings, workspace)
        authority = Authority.open(self.settings, self.clock)
        engine = EmbeddedEngine(authority)
        principal = Principal(workspace, "local", credential="local")
        return LocalChannel(engine, principal, decides_here=self._decides_here)

    def _open_remote(self, url: str) -> Channel:
        from leaseplane.client.credential import credential_for
        from leaseplane.client.remote import RemoteChannel
        from leaseplane.store.folder import DataFolder

        folder = DataFolder(self.settings.data)
        credential = credential_for(self.settings, folder, self.settings.agent)
        return RemoteChannel(url, credential, clock=self.clock)

    # -- for the loops -------------------------------------------------------------------------

    @property
    def channel(self) -> Channel:
        """The way to the plane, opened anew in a forked child."""
        if self.closed:
            raise PlaneClosed
        if self._channel is None:
            self._opened()
        assert self._channel is not None
        return self._channel

    def uses(self, channel: Channel) -> bool:
        """Whether that is its channel: it is another one in a forked child."""
        return self._channel is channel

    @property
    def keeper(self) -> "Keeper":
        if self._keeper is None:
            # Only here: whoever asks once keeps nothing.
            from leaseplane.client.keeper import Keeper

            self._keeper = Keeper(self.channel, self.clock, self.chance.jitter)
        return self._keeper

    @property
    def actor(self) -> str:
        """The DID that asks: of a local agent, its key is read, or made, when this is first looked at."""
        if self._actor is None:
            self._actor = _did_of(self.settings.agent, self.settings.data)
        return self._actor

    def now_boot_ms(self) -> int:
        return self.clock.now().boot_ms

    def wish(
        self,
        resource: str,
        timeout_s: float | None,
        access: Access | None,
        note: str | None,
        on_wait: Callable[[LeaseHeld], None] | None,
    ) -> Wish:
        """What a lease of this caller's own is asked for with."""
        if timeout_s is not None and timeout_s < 0:
            raise ValueError("timeout is in seconds, 0 or more; None waits as long as it takes")
        # Opened first: in a forked child the instance is another one.
        self.channel  # noqa: B018
        self._leases += 1
        return Wish(
            resource=resource,
            actor=self.actor,
            instance=f"{self.instance}.{self._leases}",
            access=access,
            note=note,
            timeout_ms=None if timeout_s is None else int(timeout_s * 1000),
            park_slice_ms=PARK_MS_MAX if self.settings.url is None else PARK_SLICE_MS,
            on_wait=on_wait,
        )

    def held_outside(self, resource: str) -> tuple[int, str] | None:
        """Fence and leaseId of what the `run` around this process holds already; None where it does not."""
        settings = self.settings
        if resource not in settings.held:
            return None
        if not settings.held_leases:
            raise SettingRefused(f"LEASEPLANE_HELD names {resource}, but LEASEPLANE_HELD_LEASES is not set")
        return settings.held_leases[settings.held.index(resource)]

    def request(self, operation: Operation, idempotency_key: str | None = None, **members: object) -> Request:
        """One request of the contract; members that are None are left out, and it gets a key where it is
        given none and needs one."""
        given = {name: value for name, value in members.items() if value is not None}
        key = idempotency_key or self.chance.key() if operation.keyed else None
        return Request(operation, given, key)

    # -- the requests of the contract ----------------------------------------------------------

    def ask(
        self,
        resource: str,
        access: Access | None,
        max_wait_ms: int | None,
        lease_id: str | None,
        note: str | None,
        instance: str | None,
        idempotency_key: str | None,
    ) -> Request:
        return self.request(
            LEASE,
            idempotency_key,
            resource=resource,
            actorDid=self.actor,
            instance=instance,
            access=access,
            maxWaitMs=max_wait_ms,
            leaseId=lease_id,
            note=note,
        )

    def release(
        self, resource: str, lease_id: str | None, instance: str | None, idempotency_key: str | None
    ) -> Request:
        members = {"resource": resource, "actorDid": self.actor, "instance": instance, "leaseId": lease_id}
        return self.request(RELEASE, idempotency_key, **members)

    def waiting(self, resource: str | None, actor: str | None) -> Request:
        return self.request(WAIT, resource=resource, actorDid=actor)

    def withdraw(self, resource: str, instance: str | None) -> Request:
        return self.request(WITHDRAW, resource=resource, actorDid=self.actor, instance=instance)

    def trust(self, actor: str | None) -> Request:
        return self.request(TRUST, actorDid=actor or self.actor)

    def break_off(self, resource: str, reason: str, lease_id: str | None) -> Request:
        return self.request(BREAK, resource=resource, reason=reason, leaseId=lease_id)

    # -- life ----------------------------------------------------------------------------------

    def shut(self) -> None:
        """Close the channel, what is held having been let go of."""
        self.closed = True
        _callers.discard(self)
        if self._channel is not None:
            self._channel.close()

    def stop_keeping(self) -> "list[Kept]":
        """Renew nothing any more. Answers what is still held."""
        return [] if self._keeper is None else self._keeper.close()

    def forked(self) -> None:
        """In a forked child: nothing of the parent's is used or taken apart here."""
        _of_the_parent.append((self._channel, self._keeper))
        self._channel = self._keeper = None


_of_the_parent: list[object] = []


def _after_fork_in_child() -> None:
    for caller in list(_callers):
        caller.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _overridden(
    settings: Settings,
    url: str | None,
    api_key: str | Secret | None,
    data: str | Path | None,
    agent: str | None,
) -> Settings:
    changes: dict[str, object] = {}
    if data is not None:
        # A folder that is named is meant more than a server in the environment.
        changes |= {"data": Path(data), "url": None}
    if url is not None:
        changes["url"] = read_setting("url", url)
    if agent is not None:
        changes["agent"] = read_setting("agent", agent)
    if api_key is not None:
        changes["api_key"] = api_key if isinstance(api_key, Secret) else read_setting("api_key", api_key)
    return msgspec.structs.replace(settings, **changes)


def _did_of(agent: str, data: Path) -> str:
    """The DID that is meant: the agent is one, or the name of one of this machine's."""
    if ":" in agent:
        return agent
    from leaseplane.identity.agents import DEFAULT_AGENT, agent_named
    from leaseplane.store.folder import DataFolder

    # The one that nobody has to name is made when it is first needed; a mistyped name is no new agent.
    return agent_named(DataFolder(data), agent, make=agent == DEFAULT_AGENT, random_bytes=os.urandom).did


def _check_workspace(settings: Settings, workspace: str) -> None:
    from leaseplane.identity.registry import open_registry
    from leaseplane.store.folder import DataFolder

    registry = open_registry(DataFolder.open(settings.data), os.urandom)
    try:
        if all(known.name != workspace for known in registry.workspaces()):
            raise WorkspaceUnknown(
                f"there is no workspace {workspace!r}; `leaseplane workspace list` shows what there is, and "
                "`leaseplane workspace create` makes one"
            )
    finally:
        registry.close()
