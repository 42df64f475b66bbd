"""How long a command takes to start: as processes, against the interpreter that does nothing."""

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from bench.plan import Plan
from bench.table import Row, bounded, compared

IMPORT_MS_MAX = 60.0
ACQUIRE_MOST = 6.0
SECTION = "start-up: a whole process, against `python -c pass`"


def rows(plan: Plan, folder: Path) -> list[Row]:
    """Medians, taken in turn, so that what disturbs one disturbs the others too."""
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            # With PYTHONPATH it is another tree than the installed one that is to be measured.
            if name == "PYTHONPATH" or not name.startswith(("LEASEPLANE_", "PYTHON"))
        },
        "LEASEPLANE_DATA": str(folder / "data"),
    }
    leaseplane = str(Path(sys.executable).with_name("leaseplane"))
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import leaseplane": [sys.executable, "-c", "import leaseplane"],
        "leaseplane --version": [leaseplane, "--version"],
        "leaseplane acquire, embedded": [leaseplane, "acquire", "lock:bench"],
    }
    took_ms: dict[str, list[float]] = {name: [] for name in commands}
    # The first start compiles what has not been compiled yet, and makes the folder.
    for number in range(plan.starts + 1):
        for name, words in commands.items():
            began = time.perf_counter()
            subprocess.run(words, env=environment, stdout=subprocess.DEVNULL, check=True)
            if number:
                took_ms[name].append((time.perf_counter() - began) * 1000)
    nothing_ms = took_ms["python -c pass"]
    imported, acquired = took_ms["import leaseplane"], took_ms["leaseplane acquire, embedded"]
    return [
        bounded(SECTION, "import leaseplane, as a process", "ms", median(imported), IMPORT_MS_MAX),
        compared(SECTION, "leaseplane --version", "ms", took_ms["leaseplane --version"], nothing_ms),
        compared(SECTION, "leaseplane acquire, embedded", "ms", acquired, nothing_ms, at_most=ACQUIRE_MOST),
    ]
