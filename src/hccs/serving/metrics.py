"""What a server counts, in the form that Prometheus reads."""

from __future__ import annotations

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.responses import Response

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Requests, texts, tokens, batches and times of one application, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("hccs_requests", "Requests.", ["path", "status"], registry=registry)
        self._seconds = Histogram(
            "hccs_request_seconds", "Time of requests.", ["path"], registry=registry, buckets=_SECONDS
        )
        self._texts = Counter("hccs_texts", "Texts that were answered.", registry=registry)
        self._tokens = Counter("hccs_tokens", "Tokens that were read.", registry=registry)
        self._cut = Counter("hccs_cut_texts", "Texts longer than the model reads.", registry=registry)
        self._batch = Histogram("hccs_batch_texts", "Texts of a batch.", registry=registry, buckets=_TEXTS)
        self._model = Counter("hccs_model_seconds", "Seconds in which the model ran.", registry=registry)
        self.waiting = Gauge("hccs_waiting_texts", "Texts in the queue.", registry=registry)

    def answered(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def read(self, texts: int, tokens: int, cut: int) -> None:
        self._texts.inc(texts)
        self._tokens.inc(tokens)
        self._cut.inc(cut)

    def ran(self, texts: int, seconds: float) -> None:
        self._batch.observe(texts)
        self._model.inc(seconds)

    def response(self) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)
