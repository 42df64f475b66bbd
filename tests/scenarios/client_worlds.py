"""What programs and people ask with, as worlds: `Plane`, `AsyncPlane` and the commands.

Embedded, each agent has the folder open as a program of its own would, all on one clock that the history
sets. At a URL they ask the server of `rest_world`.
"""

import asyncio
import io
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec
from tests.scenarios.rest_world import PATIENCE_S, RestWorld
from tests.scenarios.world import TERM_MS, Answer, Capability, Op, ParkedAsk

from leaseplane import AsyncPlane, AuthorityUnavailable, OutcomeUnknown, Plane, Refused
from leaseplane.bodies import STATUS_OF
from leaseplane.client.local import LocalChannel
from leaseplane.client.outcomes import Response
from leaseplane.clock import Clock, ManualClock
from leaseplane.embedded import EmbeddedEngine
from leaseplane.limits import PARK_MS_MAX
from leaseplane.secret import Secret
from leaseplane.settings import Settings, read_settings
from leaseplane.surfaces.cli.program import parsed, perform
from leaseplane.surfaces.cli.terminal import Terminal

RAW = "a client sends what its parameters can say"
STRANGER = "did:example:stranger"


def answer_of(response: Response) -> Answer:
    return Answer(
        response.status, {name: value for name, value in response.body.items() if name != "receipt"}
    )


def arguments(op: Op, body: Mapping[str, Any], idempotency_key: str | None) -> tuple[str, dict[str, Any]]:
    """The method of a plane for this operation, and its arguments."""
    named = {
        "lease": ("ask", ("resource", "access", "maxWaitMs", "leaseId", "note", "instance")),
        "release": ("release", ("resource", "leaseId", "instance")),
        "wait": ("waiting", ("resource", "actorDid")),
        "withdraw": ("withdraw", ("resource", "instance")),
        "trust": ("trust", ("actorDid",)),
        "break": ("break_off", ("resource", "reason", "leaseId")),
    }
    method, members = named[op]
    python = {"maxWaitMs": "max_wait_ms", "leaseId": "lease_id", "actorDid": "actor"}
    given = {python.get(name, name): body[name] for name in members if name in body}
    if op in ("lease", "release") and idempotency_key is not None:
        given["idempotency_key"] = idempotency_key
    return method, given


class Asker(Protocol):
    """One agent, and what it asks with."""

    def ask(self, op: Op, body: dict[str, Any], idempotency_key: str | None) -> Answer: ...
    def start(self, body: dict[str, Any], idempotency_key: str | None) -> "Future[Answer]": ...
    def engine(self) -> EmbeddedEngine | None: ...
    def close(self) -> None: ...


MakeAsker = Callable[[Settings, Clock], Asker]


class PlaneAsker:
    """An agent that asks through `Plane`."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.plane = Plane(settings=settings, clock=clock)

    def ask(self, op: Op, body: dict[str, Any], idempotency_key: str | None) -> Answer:
        method, given = arguments(op, body, idempotency_key)
        try:
            return answer_of(getattr(self.plane, method)(**given))
        except Refused as refused:
            return answer_of(refused)

    def start(self, body: dict[str, Any], idempotency_key: str | None) -> "Future[Answer]":
        return on_thread(lambda: self.ask("lease", body, idempotency_key))

    def engine(self) -> EmbeddedEngine | None:
        return engine_of(self.plane)

    def close(self) -> None:
        self.plane.close()


class AsyncAsker:
    """An agent that asks through `AsyncPlane`, on an event loop of its own."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.plane = AsyncPlane(settings=settings, clock=clock)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    async def asked(self, op: Op, body: dict[str, Any], idempotency_key: str | None) -> Answer:
        method, given = arguments(op, body, idempotency_key)
        try:
            return answer_of(await getattr(self.plane, method)(**given))
        except Refused as refused:
            return answer_of(refused)

    def ask(self, op: Op, body: dict[str, Any], idempotency_key: str | None) -> Answer:
        asked = asyncio.run_coroutine_threadsafe(self.asked(op, body, idempotency_key), self.loop)
        return asked.result(PATIENCE_S)

    def start(self, body: dict[str, Any], idempotency_key: str | None) -> "Future[Answer]":
        return asyncio.run_coroutine_threadsafe(self.asked("lease", body, idempotency_key), self.loop)

    def engine(self) -> EmbeddedEngine | None:
        return engine_of(self.plane)

    async def closed(self) -> None:
        await self.plane.aclose()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.closed(), self.loop).result(PATIENCE_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE_S)
        self.loop.close()


class CommandAsker:
    """An agent that asks with commands, each of which opens the plane anew and leaves it."""

    STATUS: ClassVar[dict[int, int]] = {200: 0, 400: 2, 413: 2, 503: 3, 504: 3}

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock

    def ask(self, op: Op, body: dict[str, Any], idempotency_key: str | None) -> Answer:
        said, complained = io.StringIO(), io.StringIO()
        terminal = Terminal(io.BytesIO(), said, complained, {}, self.settings, self.clock)
        status = perform(parsed([*self.words(op, body, idempotency_key)]), terminal)
        answer = msgspec.json.decode(said.getvalue())
        answer.pop("receipt", None)
        answered = Answer(200 if answer["ok"] else STATUS_OF[answer["error"]], answer)
        assert status == self.STATUS.get(answered.status, 1), (status, answer)
        assert bool(complained.getvalue()) == (status != 0), complained.getvalue()
        return answered

    @staticmethod
    def words(op: Op, body: Mapping[str, Any], idempotency_key: str | None) -> list[str]:
        command = {"lease": "acquire", "break": "break"}.get(op, op)
        names = {"note": "note", "leaseId": "lease-id", "instance": "instance", "access": "access"}
        options = {option: body[name] for name, option in names.items() if name in body}
        if "reason" in body:
            options["reason"] = body["reason"]
        if "maxWaitMs" in body:
            options["timeout"] = str(body["maxWaitMs"] / 1000)
        if idempotency_key is not None:
            options["idempotency-key"] = idempotency_key
        if op == "wait" and "actorDid" in body:
            options["actor"] = body["actorDid"]
        positional = body.get("actorDid") if op == "trust" else body.get("resource")
        return [
            command,
            "--json",
            *(f"--{option}={value}" for option, value in options.items()),
            *([] if positional is None else ["--", positional]),
        ]

    def start(self, body: dict[str, Any], idempotency_key: str | None) -> "Future[Answer]":
        return on_thread(lambda: self.ask("lease", body, idempotency_key))

    def engine(self) -> EmbeddedEngine | None:
        return None

    def close(self) -> None:
        """Nothing is left open."""


def on_thread(work: Callable[[], Answer]) -> "Future[Answer]":
    future: Future[Answer] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def engine_of(plane: Plane | AsyncPlane) -> EmbeddedEngine | None:
    channel = plane._caller.channel
    return channel._engine if isinstance(channel, LocalChannel) else None


class Started:
    """One request that may be parked, on its way."""

    def __init__(self, world: Any, future: "Future[Answer]") -> None:
        self.world = world
        self.future = future
        self.is_gone = False

    @property
    def is_open(self) -> bool:
        return not self.is_gone and not self.future.done()

    def receive(self) -> None:
        """What has arrived is there already; let the thread that waits for it have a turn."""
        time.sleep(0.001)

    def answer(self) -> Answer | None:
        if self.is_gone or not self.future.done() or self.future.cancelled():
            return None
        try:
            return self.future.result()
        except (AuthorityUnavailable, OutcomeUnknown):
            # Closed with its plane.
            return None

    def hang_up(self) -> None:
        if self.is_open:
            self.is_gone = True
            self.future.cancel()
            self.world.settle()

    def close(self) -> None:
        self.is_gone = True


def await_commands(world: Any, started: list[Any]) -> None:
    """Let the time pass after which no command that a history has left waiting does so any more."""
    if any(each.is_open for each in started):
        world.advance(PARK_MS_MAX)


class EmbeddedWorld:
    """A folder that each agent has open for itself, on a clock that the history sets."""

    make: ClassVar[MakeAsker]
    lacks: ClassVar[dict[Capability, str]]

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000, 1_790_000_000_000)
        self.folder = tempfile.TemporaryDirectory(prefix="plane-")
        self.settings = read_settings(
            {"LEASEPLANE_DATA": str(Path(self.folder.name) / "data"), "LEASEPLANE_LEASE_MS": str(TERM_MS)}
        )
        self.askers: dict[str, Asker] = {}
        self.started: list[Started] = []
        self.begin()

    def begin(self) -> None:
        """Somebody who has the folder open all the time, runs the alarm and knows what is stored."""
        self.looking = Plane(
            settings=msgspec.structs.replace(self.settings, agent=STRANGER), clock=self.clock
        )
        engine = engine_of(self.looking)
        assert engine is not None
        self.lookout = engine

    def asker(self, actor: str) -> Asker:
        if actor not in self.askers:
            settings = msgspec.structs.replace(self.settings, agent=actor)
            self.askers[actor] = type(self).make(settings, self.clock)
        return self.askers[actor]

    def engines(self) -> list[EmbeddedEngine]:
        return [self.lookout, *filter(None, (asker.engine() for asker in self.askers.values()))]

    def settle(self) -> None:
        """Return when everything that follows from what was asked has happened, and has arrived."""
        until = time.monotonic() + PATIENCE_S
        agreed = 0
        while agreed < 2:
            assert time.monotonic() < until, "it does not come to rest"
            for engine in self.engines():
                engine.run_alarm()
            open_now = sum(started.is_open for started in self.started)
            if self.kept() == open_now:
                agreed += 1
            else:
                agreed = 0
                time.sleep(0.001)

    def kept(self) -> int:
        """How many requests the authority knows to be parked."""
        state = self.lookout.do(lambda state: state.counts("local").parked)
        assert isinstance(state, int)
        return state

    # -- World ---------------------------------------------------------------------------------

    def ask(
        self, op: Op, body: dict[str, Any], *, key: str | None = None, idempotency_key: str | None = None
    ) -> Answer:
        answer = self.asker(body.get("actorDid", STRANGER)).ask(op, body, idempotency_key)
        self.settle()
        return answer

    def park(
        self, body: dict[str, Any], *, key: str | None = None, idempotency_key: str | None = None
    ) -> ParkedAsk:
        before = self.kept()
        started = Started(self, self.asker(body["actorDid"]).start(body, idempotency_key))
        until = time.monotonic() + PATIENCE_S
        while self.kept() == before and not started.future.done():
            assert time.monotonic() < until, "the request did not arrive"
            time.sleep(0.001)
        self.started.append(started)
        self.settle()
        return started

    def advance(self, ms: int) -> None:
        target = self.clock.now().boot_ms + ms
        while (now := self.clock.now().boot_ms) < target:
            alarm = self.lookout.do(lambda state: self.lookout._plane.store.next_alarm_boot_ms())
            step_to = target if alarm is None or alarm <= now else min(alarm, target)
            self.clock.advance(step_to - now)
            self.settle()

    def step_wall(self, ms: int) -> None:
        self.clock.step_wall(ms)

    def restart(self, down_ms: int) -> None:
        self.stop()
        self.clock.advance(down_ms)
        self.begin()

    def reboot(self) -> None:
        self.stop()
        self.clock.reboot(f"{self.clock.boot_id}+")
        self.begin()

    def freeze(self, *parked: ParkedAsk) -> None:
        raise NotImplementedError(self.lacks["freeze"])

    def kill_parker(self, *parked: ParkedAsk) -> None:
        raise NotImplementedError(self.lacks["kill_parker"])

    def stop(self) -> None:
        for started in self.started:
            started.close()
        self.started.clear()
        for asker in self.askers.values():
            asker.close()
        self.askers.clear()
        self.looking.close()

    def close(self) -> None:
        self.stop()
        self.folder.cleanup()


NO_OTHER_PROCESS: dict[Capability, str] = {
    "raw": RAW,
    "freeze": "all agents are in one process; see tests/client",
    "kill_parker": "all agents are in one process; see tests/client",
}
EMBEDDED: dict[Capability, str] = NO_OTHER_PROCESS | {
    "keys": "who has the folder open needs no key, and may name any agent"
}
UNINTERRUPTED: dict[Capability, str] = {
    "hang_up": "a thread that waits is interrupted by a signal alone; see tests/client"
}


class PlaneWorld(EmbeddedWorld):
    """`Plane`, embedded."""

    make = PlaneAsker
    lacks = EMBEDDED | UNINTERRUPTED


class AsyncPlaneWorld(EmbeddedWorld):
    """`AsyncPlane`, embedded."""

    make = AsyncAsker
    lacks = EMBEDDED


class CommandWorld(EmbeddedWorld):
    """The commands, embedded."""

    make = CommandAsker
    lacks = (
        EMBEDDED
        | UNINTERRUPTED
        | {
            "restart": "each command is a process of its own, which a restart ends",
            "reboot": "each command is a process of its own, which a restart ends",
        }
    )

    def close(self) -> None:
        await_commands(self, self.started)
        super().close()


class UrlWorld(RestWorld):
    """What asks at the server of `rest_world`, in place of plain HTTP."""

    make: ClassVar[MakeAsker]

    def __init__(self) -> None:
        super().__init__()
        self.askers: dict[tuple[str, str | None, str], Asker] = {}
        self.settings = read_settings(
            {"LEASEPLANE_DATA": "/nowhere", "LEASEPLANE_URL": f"http://127.0.0.1:{self.port}"}
        )

    def asker(self, actor: str, key: str | None, op: Op) -> Asker:
        name = (actor, key, op if op == "break" else "")
        if name not in self.askers:
            api_key = Secret(self.api_key(key, op))
            settings = msgspec.structs.replace(self.settings, agent=actor, api_key=api_key)
            self.askers[name] = type(self).make(settings, self.clock)
        return self.askers[name]

    def ask(
        self, op: Op, body: dict[str, Any], *, key: str | None = None, idempotency_key: str | None = None
    ) -> Answer:
        answer = self.asker(body.get("actorDid", STRANGER), key, op).ask(op, body, idempotency_key)
        self.settle()
        return answer

    def park(
        self, body: dict[str, Any], *, key: str | None = None, idempotency_key: str | None = None
    ) -> ParkedAsk:
        asker = self.asker(body["actorDid"], key, "lease")
        before = self.engine.stats()["asked"]
        started = Started(self, asker.start(body, idempotency_key))
        self.handles.append(started)  # type: ignore[arg-type]  # it has what is used of one
        until = time.monotonic() + PATIENCE_S
        while self.engine.stats()["asked"] == before and not started.future.done():
            assert time.monotonic() < until, "the request did not arrive"
            time.sleep(0.001)
        self.settle()
        return started

    def close(self) -> None:
        for asker in self.askers.values():
            asker.close()
        super().close()


class PlaneUrlWorld(UrlWorld):
    """`Plane`, at a URL."""

    make = PlaneAsker
    lacks = RestWorld.lacks | NO_OTHER_PROCESS | UNINTERRUPTED


class AsyncPlaneUrlWorld(UrlWorld):
    """`AsyncPlane`, at a URL."""

    make = AsyncAsker
    lacks = RestWorld.lacks | NO_OTHER_PROCESS


class CommandUrlWorld(UrlWorld):
    """The commands, at a URL."""

    make = CommandAsker
    lacks = RestWorld.lacks | NO_OTHER_PROCESS | UNINTERRUPTED

    def close(self) -> None:
        await_commands(self, self.handles)
        super().close()
