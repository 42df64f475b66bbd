"""The log: what the server tells its operator, one line per event, on stderr, and never a secret."""

import logging
import re
from typing import Final, TextIO

from leaseplane.answers import time_text
from leaseplane.identity.api_keys import API_KEY_PATTERN

_API_KEY: Final = re.compile(API_KEY_PATTERN)


class OneLine(logging.Formatter):
    """`2026-02-03T04:05:06.789Z info leaseplane.rest: message`, whatever the message is.

    An exception's traceback follows on the same line. What looks like an API key is blotted out,
    wherever it came from.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(level)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """Called by logging."""
        return time_text(int(record.created * 1000))

    def format(self, record: logging.LogRecord) -> str:
        record.level = record.levelname.lower()
        lines = (line.strip() for line in super().format(record).splitlines())
        return _API_KEY.sub("lpk_…", " | ".join(line for line in lines if line))


def start_log(stream: TextIO, level: str) -> None:
    """Send every log line of this process from `level` on to `stream`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    # uvicorn tells of each start and stop what the server tells itself, in other words.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
