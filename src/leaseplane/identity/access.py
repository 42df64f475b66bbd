"""The gate: who asks, and whom they may name.

`Gate.authenticate` turns what an HTTP request shows into a `Principal`; `authorise` says, purely, what
this principal may ask. An agent that has proven who it is (a bound key, a signed request) names itself
only. Reading is not naming: any key of a workspace sees its whole queue and every agent's trust, so it
may narrow what it reads to any agent.
"""

from collections.abc import Sequence
from typing import Final

from leaseplane.identity.api_keys import ApiKeyMalformed
from leaseplane.identity.registry import KeyKind, KeyRecord, Registry
from leaseplane.identity.signatures import SignatureRefused, verify_request
from leaseplane.limits import BEARER_CHARS_MAX, CREDENTIAL_CACHED_MS_MAX, CREDENTIALS_CACHED_MAX
from leaseplane.model import Acquire, Auth, Break, Command, Moment, Principal, Release, Withdraw


class Unauthenticated(Exception):
    """It is not known who asks: `unauthenticated`, 401. The message never repeats what was shown."""


class ActorMismatch(Exception):
    """An authenticated agent named another: `actor_mismatch`, 403."""


class Forbidden(Exception):
    """A credential without that right: `forbidden`, 403."""


_AUTH_OF_KIND: Final[dict[KeyKind, Auth]] = {
    "bound": "api-key-bound",
    "any-actor": "api-key",
    "operator": "api-key",
    "test": "test-key",
}

_SHOW_A_CREDENTIAL: Final = (
    "Send an API key of the workspace as Authorization: Bearer …, or sign the request (RFC 9421) with the "
    "key of an agent that the operator has admitted."
)


class Gate:
    """Authenticates requests against one registry, from one thread (see `Registry`).

    API keys that were accepted are remembered for at most 500 ms of the boot clock, so that a revoked
    one is refused within a second in every process. Only keys of this plane are remembered: what
    strangers send makes nothing grow.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._key_hash = registry.key_hash
        # By the keyed hash and not by the key: no key stays in memory, and how long a look-up takes
        # tells nothing about the keys that are in it.
        self._accepted: dict[bytes, tuple[Principal, int]] = {}

    def authenticate(
        self,
        method: str,
        target_uri: str,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        now: Moment,
    ) -> Principal:
        """Say who sent this request.

        `target_uri` is the absolute URI as the client must have meant it (`https://host/path?query`,
        undecoded), and `headers` are the field lines in order, their names in small letters as ASGI
        has them. Raises `Unauthenticated`, and `AuthorityUnavailable` where the registry cannot
        answer: nobody is let through then.
        """
        authorization: bytes | None = None
        signed = False
        for name, value in headers:
            if name == b"authorization":
                if authorization is not None:
                    raise Unauthenticated("Send one Authorization header, not several.")
                authorization = value
            elif name in (b"signature-input", b"signature"):
                signed = True
        if authorization is None:
            if not signed:
                raise Unauthenticated(_SHOW_A_CREDENTIAL)
            return self._by_signature(method, target_uri, headers, body, now)
        if signed:
            # Believing one and passing over the other would leave the sender with the wrong belief.
            raise Unauthenticated("Send an API key or a signature, not both.")
        return self._by_key(authorization, now)

    def still_admits(self, principal: Principal, now: Moment) -> bool:
        """Whether a request of this principal would be let in now: its key was not revoked and has not
        expired, its agent not dismissed. For requests that were let in and are still open.

        Looks afresh. Raises `AuthorityUnavailable` where the registry cannot answer.
        """
        if principal.auth == "http-signature":
            return self._registry.workspace_of(principal.credential) == principal.workspace
        record = self._registry.key(principal.credential)
        return (
            record is not None
            and record.revoked_wall_ms is None
            and (record.expires_wall_ms is None or record.expires_wall_ms > now.wall_ms)
        )

    def _by_key(self, authorization: bytes, now: Moment) -> Principal:
        if authorization[:7].lower() != b"bearer " or len(authorization) > BEARER_CHARS_MAX:
            raise Unauthenticated(_SHOW_A_CREDENTIAL)
        api_key = authorization[7:].strip(b" ")
        key_hash = self._key_hash(api_key)
        accepted = self._accepted.get(key_hash)
        if accepted is not None and now.boot_ms < accepted[1]:
            return accepted[0]
        self._accepted.pop(key_hash, None)
        try:
            record = self._registry.find_key(api_key.decode("ascii", "replace"))
        except ApiKeyMalformed as error:
            raise Unauthenticated(str(error)) from None
        if record is None or record.revoked_wall_ms is not None:
            raise Unauthenticated("This API key is not one of this plane, or it has been revoked.")
        if record.expires_wall_ms is not None and record.expires_wall_ms <= now.wall_ms:
            raise Unauthenticated("This API key has expired.")
        principal = principal_of(record)
        if len(self._accepted) >= CREDENTIALS_CACHED_MAX:
            self._accepted.pop(next(iter(self._accepted)))
        self._accepted[key_hash] = (principal, now.boot_ms + CREDENTIAL_CACHED_MS_MAX)
        return principal

    def _by_signature(
        self,
        method: str,
        target_uri: str,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        now: Moment,
    ) -> Principal:
        try:
            signed = verify_request(method, target_uri, headers, body, now.wall_ms)
        except SignatureRefused as refusal:
            raise Unauthenticated(str(refusal)) from None
        # Only after the proof: a stranger learns nothing about who is admitted, and spends no nonce.
        workspace = self._registry.workspace_of(signed.did)
        if workspace is None:
            raise Unauthenticated("The signature is right, but no operator has admitted this agent.")
        if not self._registry.spend_nonce(signed.did, signed.nonce, now):
            raise Unauthenticated("This signed request has been seen before: sign each with a new nonce.")
        return Principal(workspace, "http-signature", credential=signed.did, actor=signed.did)


def principal_of(record: KeyRecord) -> Principal:
    """Whom the holder of this API key is taken for."""
    return Principal(
        record.workspace,
        _AUTH_OF_KIND[record.kind],
        credential=record.key_id,
        actor=record.actor,
        operator=record.kind == "operator",
    )


def authorise(principal: Principal, command: Command) -> None:
    """Let `principal` ask for `command`, or raise `ActorMismatch` or `Forbidden`.

    - To acquire, release or withdraw names the agent that does: an authenticated agent only itself. An
      operator's key holds nothing, so it does none of these.
    - To break a lease takes an operator's key.
    - To read the queue or a trust score is open to every credential of the workspace.
    """
    match command:
        case Acquire() | Release() | Withdraw():
            if principal.operator:
                raise Forbidden(
                    "An operator's key holds no leases and waits for none: use an agent's key, one made with "
                    "--actor or --any-actor."
                )
            if principal.actor is not None and principal.actor != command.actor:
                raise ActorMismatch(
                    f"This credential belongs to {principal.actor}, and an agent can only name itself."
                )
        case Break():
            if not principal.operator:
                raise Forbidden("Only an operator's key may break a lease.")
