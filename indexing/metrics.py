"""The figures of a serving process, for Prometheus. One set per application, so that several can live in one process."""

from datetime import UTC, datetime
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from indexing.serving import Corpus
from indexing.workers import Workers

Refresh = Literal["swapped", "unchanged", "refused"]
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
# From a cached look-up to the longest that a question may take.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Requests by route and status, their seconds, the snapshot that answers, looks for a newer one, the process."""

    def __init__(self, corpus: Corpus, workers: Workers) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "situate_http_requests", "Requests answered.", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "situate_http_request_seconds",
            "Seconds to an answer.",
            ["route"],
            registry=self._registry,
            buckets=_BUCKETS,
        )
        self._refreshes = Counter(
            "situate_refreshes",
            "Looks for a newer snapshot, by what came of them.",
            ["result"],
            registry=self._registry,
        )
        for result in ("swapped", "unchanged", "refused"):
            self._refreshes.labels(result)  # a rate needs the zero before the first
        gauges = {
            "situate_snapshot_sequence": ("The snapshot that answers.", lambda: corpus.manifest.sequence),
            "situate_snapshot_age_seconds": ("Seconds since it was published.", lambda: _age_s(corpus)),
            "situate_requests_in_work": ("Requests that hold or await a thread.", lambda: workers.taken),
        }
        for name, (text, read) in gauges.items():
            Gauge(name, text, registry=self._registry).set_function(read)
        ProcessCollector(registry=self._registry)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count one answer; `route` is one of few."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def refreshed(self, result: Refresh) -> None:
        """Count one look for a newer snapshot."""
        self._refreshes.labels(result).inc()

    def text(self) -> bytes:
        """All of it in Prometheus's text format."""
        return generate_latest(self._registry)


def _age_s(corpus: Corpus) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(corpus.manifest.created_at)).total_seconds()
