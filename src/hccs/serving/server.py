"""`serve`: a model, a socket and uvicorn; a signal to stop lets it finish what it has accepted."""

from __future__ import annotations

import gc
import ipaddress
import os
import socket
from collections.abc import Callable
from typing import Any

from hccs._extras import require
from hccs.errors import HccsError, ModelError, ParameterError
from hccs.program import IntegerModel
from hccs.program.files import find
from hccs.program.fingerprints import FACT
from hccs.program.program import CLASSIFY, EMBEDDINGS, RERANK
from hccs.serving.batching import Limits
from hccs.text import Classifier, Encoder, Reranker
from hccs.text.text_model import TextModel

SERVED: dict[str, type[TextModel]] = {EMBEDDINGS: Encoder, RERANK: Reranker, CLASSIFY: Classifier}

GRACE = 60
"""Seconds for the requests that a stopped server has accepted."""


def open_model(path: str | os.PathLike[str], device: str = "cpu") -> TextModel:
    """The model in a file by its own kind; one that does not answer as its file says is refused."""
    model = IntegerModel.load(find(path), device)
    settings = model.program.text
    if settings is None or settings.kind not in SERVED:
        raise ModelError(
            f"a model for {', '.join(SERVED)}",
            f"one for {getattr(settings, 'kind', 'token ids')}",
            "Use hccs.",
        )
    opened = SERVED[settings.kind](model)
    stored = model.program.facts.get(FACT, opened.fingerprint)
    if stored != opened.fingerprint:
        raise HccsError(
            f"the file's fingerprint, {stored}", opened.fingerprint, "Run hccs fingerprint --verify."
        )
    return opened


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address; one that is taken is refused before anything is loaded."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ParameterError(
            f"an address to listen at, {host} port {port}",
            str(error),
            "Choose another with --host or --port.",
        ) from error


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(
    path: str,
    *,
    host: str,
    port: int,
    name: str | None,
    api_key: str | None,
    device: str,
    limits: Limits,
    say: Callable[[str], None],
) -> None:
    """Answer requests until a signal comes; what was accepted by then is finished."""
    for package in ("uvicorn", "starlette", "orjson", "prometheus_client"):
        require(package, "serve", "for hccs serve")
    from hccs.serving.app import create_app

    listening = bound(host, port)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the batcher's threads read texts in parallel
    model = open_model(path, device)
    called = name or find(path).stem
    app = create_app(model, called, limits, api_key)
    if not is_loopback(host) and api_key is None:
        say("anyone who reaches this address may use it: set HCCS_API_KEY, or leave out --host")
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listening.getsockname()[1]}"
    run(app, listening, lambda: say(f"{called} at {url}, fingerprint {model.fingerprint}"))


def run(app: Any, listening: socket.socket, started: Callable[[], None]) -> None:
    """Run an application at a bound socket; `started` is called once it takes connections."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started()

    gc.collect()
    gc.freeze()  # the collector need not pass over the model again
    settings: dict[str, Any] = {"log_level": "error", "access_log": False, "server_header": False}
    config = uvicorn.Config(app, timeout_graceful_shutdown=GRACE, ws="none", **settings)
    try:
        Server(config).run(sockets=[listening])
    finally:
        gc.unfreeze()
