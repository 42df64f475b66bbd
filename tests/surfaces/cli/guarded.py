"""A wrapper, as a program: a command behind a guard, told what to do line by line.

    python -m tests.surfaces.cli.guarded --orders FD [--orphan-kill-after MS] [--kill-after MS] -- COMMAND…

Each line is one of `hold TERM KILL` (milliseconds from now), `begin`, `begin-late`, `signal N`, `end MS`,
`put-down`, `close`. What the guard tells is printed, one event a line, and `closed` in the end.
"""

import os
import select
import sys
import time

from leaseplane.surfaces.cli.guard import Ended, Ending, Gone, GuardLost, GuardMissing, Stopped, start_guard


def boot_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main() -> None:
    options, command = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
    chosen = dict(zip(options[::2], options[1::2], strict=True))
    orders_fd = int(chosen["--orders"])
    os.set_inheritable(orders_fd, False)
    guard = start_guard(
        command,
        dict(os.environ),
        boot_ms,
        kill_after_ms=int(chosen.get("--kill-after", "2000")),
        orphan_kill_after_ms=int(chosen.get("--orphan-kill-after", "300")),
    )
    say(f"group {guard.group} guard {guard._pid}")
    poll = select.poll()
    poll.register(orders_fd, select.POLLIN)
    poll.register(guard._events_fd, select.POLLIN)
    unread = ""
    while True:
        ready = dict(poll.poll())
        if orders_fd in ready:
            unread += os.read(orders_fd, 4096).decode()
            while "\n" in unread:
                line, unread = unread.split("\n", 1)
                word, *numbers = line.split()
                told = [int(number) for number in numbers]
                try:
                    match word:
                        case "hold":
                            guard.hold_until(*(boot_ms() + ms for ms in told))
                        case "begin":
                            guard.begin({"ADDED": "yes", "REMOVED": None}, boot_ms() + 60_000)
                        case "begin-late":
                            guard.begin({}, boot_ms() - 1)
                        case "signal":
                            guard.signal(*told)
                        case "end":
                            guard.end(*told)
                        case "put-down":
                            guard.put_down()
                            say("put down")
                        case "close":
                            guard.close()
                            say("closed")
                            return
                except GuardMissing as missing:
                    say(f"missing {missing}")
        if guard._events_fd in ready:
            for event in guard.events(0):
                match event:
                    case Stopped(number):
                        say(f"stopped {number}")
                    case Ending():
                        say("ending")
                    case Ended():
                        say(f"ended {event.exit_status}")
                    case Gone():
                        say("gone")
                        poll.unregister(guard._events_fd)
                    case GuardLost():
                        say("guard lost")
                        poll.unregister(guard._events_fd)


if __name__ == "__main__":
    main()
