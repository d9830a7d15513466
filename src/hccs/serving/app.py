"""The routes of a server: requests are read and refused here, models answer in the batcher's threads."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import orjson
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

import hccs
from hccs.errors import HccsError
from hccs.program.program import CLASSIFY, EMBEDDINGS, RERANK
from hccs.serving import formats
from hccs.serving.batching import Batcher, Limits, Overloaded
from hccs.serving.formats import Asked, Refused
from hccs.serving.metrics import Metrics

Read: TypeAlias = Callable[[dict[str, Any]], Asked]
Write: TypeAlias = Callable[[Asked, Any], Any]

MOST_BYTES = 4 << 20
"""Bytes of a request's body."""

BODY_SECONDS = 30.0
"""How long a client may take to send its body."""

PAGE = Path(__file__).with_name("page.html")
_POLICY = "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

_log = logging.getLogger("hccs.serving")


def create_app(model: Any, name: str, limits: Limits, api_key: str | None = None) -> Starlette:
    """An ASGI application around an Encoder, a Reranker or a Classifier."""
    metrics = Metrics()
    batcher = Batcher(model, limits, on_batch=metrics.ran)
    metrics.waiting.set_function(lambda: batcher.waiting)
    kind = model.settings.kind
    facts = {
        "status": "ok",
        "model": name,
        "kind": kind,
        "fingerprint": model.fingerprint,
        "max_tokens": model.max_length,
        "version": hccs.__version__,
    }
    if kind == EMBEDDINGS:
        facts["dims"] = model.dims

    def guarded(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Any]:
        """With the key where one is set; refusals and faults become responses, and are counted."""

        async def respond(request: Request) -> Response:
            began, path = time.perf_counter(), request.scope["path"]
            try:
                if api_key is not None and not _has_key(request, api_key):
                    raise Refused(
                        401, "an API key: Authorization: Bearer KEY", "none, or another", "Send it."
                    )
                response = await endpoint(request)
            except ClientDisconnect:
                response = Response(status_code=400)
            except Refused as error:
                response = formats.refusal(path, error.status, str(error))
            except Overloaded as error:
                response = formats.refusal(path, 429, str(error))
                response.headers["Retry-After"] = "1"
            except HccsError as error:
                response = formats.refusal(path, 400, str(error))
            except Exception as error:  # neither texts nor messages that may quote them go to the log
                _log.error(
                    "%s in %s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__))
                )
                response = formats.refusal(
                    path, 500, "The server failed on this request; its log says where."
                )
            metrics.answered(path, response.status_code, time.perf_counter() - began)
            return response

        return respond

    def answering(kinds: tuple[str, ...], read: Read, write: Write) -> Callable[[Request], Any]:
        """A route: a body is read to texts, the model answers them, and the answers are written."""

        async def endpoint(request: Request) -> Response:
            if kind not in kinds:
                raise Refused(424, f"a model for {' or '.join(kinds)}", f"one for {kind}", "Serve another.")
            asked = read(_object_of(await _body(request)))
            found, waited, ran = await batcher.answers(asked.texts, asked.dims)
            if asked.truncate is False and found.cut.any():
                raise Refused(
                    413,
                    f"texts of at most {model.max_length} tokens",
                    f"more in text {int(found.cut.argmax())}",
                    "Leave out truncate to read their beginnings.",
                )
            metrics.read(len(asked.texts), int(found.tokens.sum()), int(found.cut.sum()))
            timing = f"queue;dur={1e3 * waited:.2f}, model;dur={1e3 * ran:.2f}"
            headers = {"Server-Timing": timing, "X-Cut-Texts": str(int(found.cut.sum()))}
            content = orjson.dumps(write(asked, found), option=orjson.OPT_SERIALIZE_NUMPY)
            return Response(content, headers=headers, media_type="application/json")

        return guarded(endpoint)

    async def page(request: Request) -> Response:
        return HTMLResponse(PAGE.read_bytes(), headers={"Content-Security-Policy": _POLICY})

    async def health(request: Request) -> Response:
        return Response(orjson.dumps(facts), media_type="application/json")

    async def models(request: Request) -> Response:
        listed = [{"id": name, "object": "model", "created": 0, "owned_by": "hccs"}]
        return Response(orjson.dumps({"object": "list", "data": listed}), media_type="application/json")

    async def show_metrics(request: Request) -> Response:
        return metrics.response()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(batcher.close)

    routes = [
        Route("/", page),
        Route("/health", health),
        Route("/metrics", guarded(show_metrics)),
        Route("/v1/models", guarded(models)),
    ]
    for path, kinds, (read, write) in (
        ("/v1/embeddings", (EMBEDDINGS,), formats.embeddings(model, name)),
        ("/rerank", (RERANK, CLASSIFY), formats.rerank(model)),
        ("/classify", (CLASSIFY,), formats.classify(model)),
    ):
        routes.append(Route(path, answering(kinds, read, write), methods=["POST"]))
    return Starlette(routes=routes, lifespan=lifespan)


def _has_key(request: Request, key: str) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    # Starlette reads the bytes of a header as Latin-1.
    return scheme.lower() == "bearer" and hmac.compare_digest(given.encode("latin-1"), key.encode())


async def _body(request: Request) -> bytes:
    """The body, as long as it is not too large; a client that sends it too slowly is refused."""
    too_large = Refused(
        413, f"a body of at most {MOST_BYTES >> 20} MiB", "a larger one", "Send fewer texts at a time."
    )
    announced = request.headers.get("Content-Length", "0")
    if not announced.isdecimal() or int(announced) > MOST_BYTES:
        raise too_large
    chunks, size = [], 0
    try:
        with anyio.fail_after(BODY_SECONDS):
            async for chunk in request.stream():
                chunks.append(chunk)
                size += len(chunk)
                if size > MOST_BYTES:
                    raise too_large
    except TimeoutError:
        raise Refused(408, f"the body within {BODY_SECONDS:.0f} s", "less", "Send it faster.") from None
    return b"".join(chunks)


def _object_of(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(400, "a body of JSON", f"none: {error}", "Send an object.") from None
    if not isinstance(found, dict):
        raise Refused(400, "a JSON object", type(found).__name__, 'Send {"input": ...}.')
    return found
