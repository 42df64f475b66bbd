"""One command, one run, one table: `python -m bench [--quick] [--json]`."""

import argparse
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from bench import client, embedded, parking, parts, processes, size, startup, throughput
from bench.plan import FULL, QUICK, Plan
from bench.table import Row, print_json, print_table

NOTES = (
    "Each ratio is the median over the rounds of one run, in which ours and the peer were measured right "
    "after one another; the spread is the lowest and the highest round.",
    "An answer of ours includes the check of an API key, a commit that is synced to disk, and a signed "
    "receipt; every answer was checked to be of its kind. The peers store, sign and check nothing.",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything, within a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument(
        "--only", choices=tuple(_SECTIONS), action="append", help="only this section; may be repeated"
    )
    arguments = parser.parse_args()
    # An ordinary end also when asked to end: no server is left running, and no folder lying about.
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda *_: sys.exit(1))
    plan = QUICK if arguments.quick else FULL
    facts = {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), **_machine()}
    began = time.monotonic()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="leaseplane-bench-") as folder:
        for name, section in _SECTIONS.items():
            if arguments.only and name not in arguments.only:
                continue
            _say(f"measuring: {name}")
            place = Path(folder) / name
            place.mkdir()
            rows += section(plan, place)
    facts["took"] = f"{time.monotonic() - began:.0f} s"
    facts["load average after"] = f"{os.getloadavg()[0]:.1f}"
    if arguments.json:
        print_json(facts, rows)
    else:
        print_table(facts, rows, [*NOTES, size.note(plan)])
    return 1 if any(row.met is False for row in rows) else 0


_SECTIONS: dict[str, Callable[[Plan, Path], list[Row]]] = {
    "throughput": throughput.rows,
    "parking": parking.rows,
    "size": size.rows,
    "embedded": embedded.rows,
    "handover": processes.hand_over_rows,
    "idle": processes.idle_rows,
    "rounds": processes.contended_rows,
    "client": client.rows,
    "startup": startup.rows,
    "parts": parts.rows,
}


def _machine() -> dict[str, str]:
    return {
        "machine": f"{os.cpu_count()} cores, {_processor()}, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load average before": f"{os.getloadavg()[0]:.1f}",
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(": ")[2]
    except OSError:
        pass
    return platform.machine()


def _say(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{text} …\n")


if __name__ == "__main__":
    sys.exit(main())
