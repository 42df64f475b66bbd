"""The loop of a thread: does the steps of `asking` for a caller who may block."""

import threading
from collections.abc import Generator
from typing import TypeVar

from leaseplane.client.asking import (
    INTERRUPTED,
    OUTCOMES,
    Aside,
    Event,
    Failure,
    HangUp,
    Interruption,
    Join,
    Pause,
    Send,
    Step,
)
from leaseplane.client.channel import Answer, Channel, Sent
from leaseplane.clock import Clock
from leaseplane.model import AuthorityUnavailable, OutcomeUnknown

T = TypeVar("T")


def run(steps: Generator[Step, Event, T], channel: Channel, clock: Clock) -> T:
    """Do these steps until they come to an outcome, and return or raise it.

    What a signal handler raises meanwhile, a KeyboardInterrupt say, interrupts the steps, and is raised
    when they have cleaned up; a second one is raised at once.
    """
    interrupted: BaseException | None = None
    sent: Sent | None = None
    try:
        step = next(steps)
        while True:
            event: Answer | Failure | Interruption | None = None
            try:
                match step:
                    case Send():
                        sent = channel.send(step.request, timeout_ms=step.timeout_ms)
                        sent.wait()
                        event = came_of(sent)
                    case Pause():
                        # An event that nobody sets: unlike sleep, its time is the waiting thread's alone.
                        threading.Event().wait(step.ms / 1000)
                    case Aside():
                        aside = channel.send(step.request, timeout_ms=step.timeout_ms)
                        if aside.wait(step.timeout_ms / 1000):
                            event = came_of(aside)
                        else:
                            aside.hang_up()
                    case Join():
                        if sent is not None and sent.wait(step.ms / 1000):
                            event = came_of(sent)
                    case HangUp():
                        if sent is not None:
                            sent.hang_up()
            except BaseException as error:
                if interrupted is not None:
                    raise
                interrupted, event = error, INTERRUPTED
            step = steps.send((event, clock.now().boot_ms))
    except StopIteration as stop:
        if interrupted is not None:
            raise interrupted from None
        outcome: T = stop.value
        return outcome
    except OUTCOMES:
        if interrupted is not None:
            raise interrupted from None
        raise
    finally:
        steps.close()


def came_of(sent: Sent) -> Answer | Failure:
    """The answer, or the failure as a value."""
    try:
        return sent.result()
    except (AuthorityUnavailable, OutcomeUnknown) as failure:
        return failure
