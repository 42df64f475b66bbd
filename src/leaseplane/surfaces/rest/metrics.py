"""Metrics: what the surface has answered, in the text format of Prometheus."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

_ERROR_AT = b'"error":"'


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
            "leaseplane_rest_answers",
            "Answers given, by operation and result.",
            labels=("operation", "result"),
        )
        for (operation, result), number in sorted(self._answers.items()):
            answers.add_metric((operation, result), number)
        yield answers
        yield GaugeMetricFamily(
            "leaseplane_rest_parked", "Requests kept open until they can be answered.", self._parked()
        )
        for name, value in sorted(self._engine_stats().items()):
            meaning = f"The engine's {name.replace('_', ' ')}."
            # What is counted since the start only grows; what holds now says so in its name.
            family = GaugeMetricFamily if name.endswith("_now") else CounterMetricFamily
            yield family(f"leaseplane_{name}", meaning, value)
