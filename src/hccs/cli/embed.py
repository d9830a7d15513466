"""`hccs embed` and `hccs search`: a corpus to vectors in a folder, and exact search over them."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hccs._progress import duration
from hccs.cli.output import Device, Json, Output

DEFAULT = "all-MiniLM-L6-v2"


def embed(
    files: Annotated[
        list[str], typer.Argument(help="CSV, TSV, JSONL, Parquet, text files, folders, URIs; - is stdin.")
    ],
    out: Annotated[Path, typer.Option(help="The folder for the vectors, new or of an earlier start.")],
    model: Annotated[str, typer.Option(help="A .hccs file, or the name of an installed model.")] = DEFAULT,
    column: Annotated[str | None, typer.Option(help="The column or field of the texts.")] = None,
    id: Annotated[str | None, typer.Option("--id", help="The column of ids; by default FILE:LINE.")] = None,
    reads: Annotated[
        str | None, typer.Option(help="csv, tsv, jsonl, parquet or text: what all files are.")
    ] = None,
    format: Annotated[str, typer.Option(help="parquet, or npy: vectors in .npy, ids in .json.")] = "parquet",
    dims: Annotated[int | None, typer.Option(help="So many first channels, of length 1.")] = None,
    dtype: Annotated[str, typer.Option(help="int8, int16 or float32.")] = "int8",
    prompt: Annotated[str | None, typer.Option(help="One of the model's prompts; '' is none.")] = None,
    part_rows: Annotated[int, typer.Option(help="Texts of a part.")] = 16384,
    threads: Annotated[
        int | None, typer.Option(help="By default one per core; of --ray: actors, one per core or GPU.")
    ] = None,
    device: Device = "cpu",
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on a Ray cluster: local, auto, or its address.")
    ] = None,
    json: Json = False,
) -> None:
    """Embed a corpus into a folder, part by part; the same command resumes after any interruption."""
    from hccs.corpus.embedding import embed as run
    from hccs.corpus.embedding import plan

    output, began = Output(json), time.perf_counter()
    stored = {"format": format, "dtype": dtype, "part_rows": part_rows, "column": column, "id": id}
    # With --ray the model runs on the cluster, and is only described here.
    here = device if ray is None else "cpu"
    job, encoder = plan(files, out, model=model, device=here, reads=reads, dims=dims, prompt=prompt, **stored)
    if ray is None:
        found = run(job, encoder, threads=threads)
    else:
        from hccs.corpus.on_ray import embed_on_ray

        found = embed_on_ray(job, ray, workers=threads, device=device)
    output.results(found)
    cut = f"{found['cut']:,} texts were longer than {encoder.max_length} tokens: only these were read"
    lines = [
        f"{found['rows']:,} texts, {found['tokens']:,} tokens in {len(found['parts'])} parts",
        *([cut] if found["cut"] else []),
        f"{found['dims']} channels in {found['dtype']}, {duration(time.perf_counter() - began)}",
        f"fingerprint {found['fingerprint']}",
    ]
    output.end(f"Vectors in {out}", lines, {"search": f'hccs search {out} "a query"'})


def search(
    folder: Annotated[Path, typer.Argument(help="What hccs embed wrote.")],
    queries: Annotated[list[str], typer.Argument(help="Texts to search for.")],
    k: Annotated[int, typer.Option("-k", min=1, help="How many to find.")] = 10,
    model: Annotated[str | None, typer.Option(help="The model's file, if it has moved.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="By default one per core.")] = None,
    json: Json = False,
) -> None:
    """Find the texts of an embedded corpus that are closest to queries, exactly."""
    from hccs.corpus.folder import Folder
    from hccs.corpus.search import search as run

    output = Output(json)
    found = run(folder, queries, k, model=model, threads=threads)
    if not Folder.load(folder).complete:
        typer.echo(f"hccs: {folder} is not complete: hccs embed has not finished", err=True)
    output.results(
        [{"query": q, "hits": list(map(asdict, hits))} for q, hits in zip(queries, found, strict=True)]
    )
    if json:
        return
    for query, hits in zip(queries, found, strict=True):
        if len(queries) > 1:
            output.say(query)
        for hit in hits:
            output.say("  ".join([f"{hit.score:7.4f}", hit.id, *([] if hit.text is None else [hit.text])]))
