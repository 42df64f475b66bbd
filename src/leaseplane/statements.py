"""What the receipt of an answer states: the request as it came, the outcome, and the answer's digest."""

from msgspec import UNSET

from leaseplane.answers import time_text
from leaseplane.model import (
    Acquire,
    Ask,
    Deadlock,
    Granted,
    Held,
    Listed,
    ListWaits,
    NotHeld,
    NotHolder,
    Released,
    Reply,
    StaleLease,
)
from leaseplane.model import Release as ReleaseCommand
from leaseplane.receipts.profile import (
    AnswerGiven,
    AnswerRefused,
    Grant,
    LeaseRefusal,
    LeaseRefusalCode,
    LeaseStated,
    Listing,
    Release,
    ReleaseRefusal,
    ReleaseRefusalCode,
    Renewal,
    RequestStated,
    Statement,
)


def statement_of(ask: Ask, reply: Reply, answer_digest: str) -> Statement | None:
    """The statement for this answer, or None where the contract gives it no receipt.

    Receipts go with every 200 and 409 of asking for a lease, releasing it, and listing the queue.
    """
    command, outcome = ask.command, reply.outcome
    match command:
        case Acquire():
            match outcome:
                case Granted():
                    return (Renewal if outcome.renewed else Grant)(
                        jti=reply.jti,
                        iat=reply.iat_s,
                        workspace=ask.principal.workspace,
                        auth=ask.principal.auth,
                        request=_request(ask),
                        actor_did=command.actor,
                        resource=command.resource,
                        lease=_lease(outcome),
                        answer=AnswerGiven(digest=answer_digest),
                    )
                case Held():
                    return _lease_refusal(ask, command, reply, "lease_held", answer_digest)
                case Deadlock():
                    return _lease_refusal(ask, command, reply, "deadlock", answer_digest)
                case StaleLease():
                    return _lease_refusal(ask, command, reply, "stale_lease", answer_digest)
                case _:
                    return None
        case ReleaseCommand():
            match outcome:
                case Released():
                    return Release(
                        jti=reply.jti,
                        iat=reply.iat_s,
                        workspace=ask.principal.workspace,
                        auth=ask.principal.auth,
                        request=_request(ask),
                        actor_did=command.actor,
                        resource=command.resource,
                        lease=_lease(outcome),
                        answer=AnswerGiven(digest=answer_digest),
                    )
                case NotHeld():
                    return _release_refusal(ask, command, reply, "not_held", answer_digest)
                case NotHolder():
                    return _release_refusal(ask, command, reply, "not_holder", answer_digest)
                case StaleLease():
                    return _release_refusal(ask, command, reply, "stale_lease", answer_digest)
                case _:
                    return None
        case ListWaits():
            assert isinstance(outcome, Listed)
            return Listing(
                jti=reply.jti,
                iat=reply.iat_s,
                workspace=ask.principal.workspace,
                auth=ask.principal.auth,
                request=_request(ask),
                answer=AnswerGiven(digest=answer_digest),
                actor_did=UNSET if command.actor is None else command.actor,
                resource=UNSET if command.resource is None else command.resource,
            )
        case _:
            return None


def _request(ask: Ask) -> RequestStated:
    return RequestStated(method=ask.request.method, path=ask.request.path, digest=ask.request.digest)


def _lease(outcome: Granted | Released) -> LeaseStated:
    lease = outcome.lease if isinstance(outcome, Granted) else outcome
    return LeaseStated(
        lease_id=lease.lease_id,
        fence=lease.fence,
        granted_at=time_text(lease.granted_wall_ms),
        expires_at=time_text(lease.expires_wall_ms),
    )


def _lease_refusal(
    ask: Ask, command: Acquire, reply: Reply, code: LeaseRefusalCode, answer_digest: str
) -> LeaseRefusal:
    return LeaseRefusal(
        jti=reply.jti,
        iat=reply.iat_s,
        workspace=ask.principal.workspace,
        auth=ask.principal.auth,
        request=_request(ask),
        actor_did=command.actor,
        resource=command.resource,
        code=code,
        answer=AnswerRefused(digest=answer_digest),
    )


def _release_refusal(
    ask: Ask, command: ReleaseCommand, reply: Reply, code: ReleaseRefusalCode, answer_digest: str
) -> ReleaseRefusal:
    return ReleaseRefusal(
        jti=reply.jti,
        iat=reply.iat_s,
        workspace=ask.principal.workspace,
        auth=ask.principal.auth,
        request=_request(ask),
        actor_did=command.actor,
        resource=command.resource,
        code=code,
        answer=AnswerRefused(digest=answer_digest),
    )
