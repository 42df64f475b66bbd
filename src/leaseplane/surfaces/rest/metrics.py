"""Metrics: what the surface has answered, in the text format of Prometheus.

`python -m leaseplane.surfaces.rest.metrics` prints the table of them that is in `docs/operating.md`.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

_ERROR_AT = b'"error":"'

ANSWERS: Final = "leaseplane_rest_answers_total"
PARKED: Final = "leaseplane_rest_parked"

MEANINGS: Final[dict[str, str]] = {
    ANSWERS: "Answers given, by operation and result: `ok`, or the code of the error.",
    PARKED: "Requests that are kept open now.",
    "leaseplane_asked_total": "Commands that were asked, on every surface.",
    "leaseplane_transactions_total": "Transactions that stand.",
    "leaseplane_works_total": "What was done in them: one for each ask, mark or withdrawal. Divided by the "
    "transactions: how many share one sync of the disk.",
    "leaseplane_busy_retries_total": "How often another process was writing just then.",
    "leaseplane_handed_over_total": "Parked requests that were answered with a lease.",
    "leaseplane_undone_or_late_total": "Hand-overs whose caller had gone, or whose lease was over by then.",
    "leaseplane_failures_total": "Transactions that failed.",
    "leaseplane_parked_now": "Parked requests that the engine keeps.",
    "leaseplane_open_now": "Requests that are not answered yet, parked ones among them.",
    "leaseplane_waiting_for_a_transaction_now": "What has not found its transaction yet.",
}
"""Every metric and what it counts: its help text, and its row in `docs/operating.md`."""


def metrics_table() -> str:
    """The metrics as a table in Markdown."""
    rows = [f"| `{name}` | {meaning} |\n" for name, meaning in MEANINGS.items()]
    return "".join(["| metric | what it counts |\n| --- | --- |\n", *rows])


class Metrics:
    """Counts answers by operation and result, and shows the engine's own numbers beside them.

    A count is one addition to a dictionary; everything else happens when someone looks. The registry
    is its own, so that a program which embeds the plane keeps its metrics to itself.
    """

    def __init__(
        self, engine_stats: Callable[[], Mapping[str, int | float]], parked: Callable[[], int]
    ) -> None:
        self._engine_stats = engine_stats
        self._parked = parked
        self._answers: dict[tuple[str, str], int] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def count(self, operation: str, status: int, body: bytes) -> None:
        """Count one answer. Its result is `ok`, or the code of its error."""
        if status < 400:
            result = "ok"
        else:
            # The quotes of a member's name are never inside a JSON string, where they are escaped, so
            # what is found is the member `error`, whatever callers put into names and notes.
            start = body.find(_ERROR_AT) + len(_ERROR_AT)
            result = body[start : body.find(b'"', start)].decode()
        key = (operation, result)
        self._answers[key] = self._answers.get(key, 0) + 1

    def exposition(self, accept: str) -> tuple[bytes, bytes]:
        """The metrics as (content type, body), in the version of the format that `accept` prefers."""
        try:
            encoder, content_type = choose_encoder(accept)
            return content_type.encode(), encoder(self._registry)
        except (TypeError, ValueError):
            # It compares the version that is asked for as numbers, and this one is not made of them.
            encoder, content_type = choose_encoder("")
            return content_type.encode(), encoder(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry when someone looks."""
        answers = CounterMetricFamily(
            ANSWERS.removesuffix("_total"),
            MEANINGS[ANSWERS],
            labels=("operation", "result"),
        )
        for (operation, result), number in sorted(self._answers.items()):
            answers.add_metric((operation, result), number)
        yield answers
        yield GaugeMetricFamily(PARKED, MEANINGS[PARKED], self._parked())
        for name, value in sorted(self._engine_stats().items()):
            # What is counted since the start only grows; what holds now says so in its name.
            if name.endswith("_now"):
                yield GaugeMetricFamily(f"leaseplane_{name}", MEANINGS[f"leaseplane_{name}"], value)
            else:
                meaning = MEANINGS[f"leaseplane_{name}_total"]
                yield CounterMetricFamily(f"leaseplane_{name}", meaning, value)


if __name__ == "__main__":
    sys.stdout.write(metrics_table())
