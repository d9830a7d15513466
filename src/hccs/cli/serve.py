"""`hccs serve`: a model of texts over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from hccs.cli.output import Device, Output
from hccs.ops.arguments import cores


def serve(
    model: Annotated[str, typer.Argument(help="A .hccs file, its folder, or an installed model by name.")],
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 is every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    name: Annotated[str | None, typer.Option(help="The name for clients; by default the file's.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, max=256, help="By default one per core.")] = None,
    device: Device = "cpu",
    max_batch: Annotated[int, typer.Option(min=1, help="Texts that run together.")] = 32,
    max_wait_ms: Annotated[
        float, typer.Option(min=0, max=1000, help="How long a batch waits for more texts.")
    ] = 0.0,
    max_queue: Annotated[int, typer.Option(min=1, help="Texts that may wait; beyond: status 429.")] = 8192,
    api_key: Annotated[
        str | None, typer.Option(envvar="HCCS_API_KEY", help="What clients must send as a bearer token.")
    ] = None,
) -> None:
    """Serve embeddings, ranks or labels over HTTP: /v1/embeddings as OpenAI, /rerank, /classify, a page."""
    from hccs.serving.batching import Limits
    from hccs.serving.server import serve as run

    output = Output()
    run(
        model,
        host=host,
        port=port,
        name=name,
        api_key=api_key or None,
        device=device,
        limits=Limits(threads or cores(), max_batch, max_wait_ms / 1000, max_queue),
        say=lambda line: output.say(f"hccs: {line}"),
    )
