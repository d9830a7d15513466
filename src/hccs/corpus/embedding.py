"""`embed`: texts to a folder of vectors, in one process. What is there already is checked and kept."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hccs._progress import Bar
from hccs.corpus.folder import FORMATS, CorpusSettings, Folder, Part
from hccs.corpus.reading import Columns, Source, groups, rows, sources
from hccs.errors import DataError, ParameterError
from hccs.ops.arguments import cores, require_threads
from hccs.text.adapters import DOCUMENT, prompt_for
from hccs.text.encoder import OUTS, Encoder, as_dtype
from hccs.text.text_model import Answers

CHUNK = 1024
"""Texts that one thread encodes at a time."""


@dataclass(frozen=True)
class CorpusJob:
    """A corpus to embed: its inputs, where its parts go, and what is put in front of every text."""

    settings: CorpusSettings
    inputs: tuple[tuple[Source, ...], ...]
    out: Path
    prefix: str

    @property
    def columns(self) -> Columns:
        return Columns(self.settings.column, self.settings.id)


def plan(
    inputs: Sequence[str],
    out: Path,
    *,
    model: str,
    device: str = "cpu",
    reads: str | None = None,
    dims: int | None = None,
    prompt: str | None = None,
    **others: Any,
) -> tuple[CorpusJob, Encoder]:
    """What is asked for, checked before anything is computed; `others` are fields of `CorpusSettings`.

    The device is none of them: a folder that one device began may be finished by another, byte for byte.
    """
    asked = CorpusSettings(model, **others)
    for name, given, known in (("dtype", asked.dtype, OUTS), ("format", asked.format, FORMATS)):
        if given not in known:
            raise ParameterError(f"{name} among {', '.join(known)}", repr(given), "Leave it out.")
    if asked.part_rows < 1:
        raise ParameterError("part_rows, at least 1", str(asked.part_rows), "Leave it out.")
    if asked.format == "parquet":
        from hccs._extras import require

        require("pyarrow.parquet", "corpus", "to write Parquet; --format npy needs none")
    encoder = Encoder.load(model, device)
    encoder.answers([], dims=dims)  # refuses dims that the model does not have
    if prompt is None:
        prompt = prompt_for(encoder, DOCUMENT) or encoder.settings.default_prompt or ""
    prefix = encoder.prefix(prompt)
    listed = sources(inputs, reads)
    for given in inputs:  # a second start would read what the first has written
        if os.path.isdir(given) and out.resolve().is_relative_to(Path(given).resolve()):
            raise ParameterError(f"--out outside of {given}, which is read", str(out), "Choose another.")
    digest = sha256(
        "\0".join(source.name for source in listed).encode("utf-8", "surrogateescape")
    ).hexdigest()
    settings = replace(
        asked,
        fingerprint=encoder.fingerprint,
        dims=encoder.dims if dims is None else dims,
        prompt=prompt,
        inputs=f"{len(listed)} named {digest[:16]}",
    )
    return CorpusJob(settings, tuple(map(tuple, groups(listed))), out, prefix), encoder


def parts_of(job: CorpusJob, group: int) -> Iterator[Part]:
    """The parts of a group of sources: full ones, then one with the rest."""
    every = chain.from_iterable(
        ((name, text, before + done) for name, text, done in rows(source, job.columns))
        for source, before in _with_bytes_before(job.inputs[group])
    )
    start = sum(source.size for earlier in job.inputs[:group] for source in earlier)
    ids: list[str] = []
    texts: list[str] = []
    number = done = 0
    for name, text, done in every:
        ids.append(name)
        texts.append(text)
        if len(ids) == job.settings.part_rows:
            yield Part(f"part-{group:05d}-{number:05d}", ids, texts, start + done)
            ids, texts, number = [], [], number + 1
    if ids:
        yield Part(f"part-{group:05d}-{number:05d}", ids, texts, start + done)


def _with_bytes_before(listed: Sequence[Source]) -> Iterator[tuple[Source, int]]:
    before = 0
    for source in listed:
        yield source, before
        before += source.size


def is_stored(folder: Folder, part: Part) -> bool:
    """Whether a part is on disk already; one that was made of other texts is refused."""
    facts = folder.facts(part.name)
    if facts is not None and facts.digest != part.digest():
        raise DataError(
            f"the texts that {part.name} in {folder.path} was made of",
            "others: the input has changed",
            "Put the old input back, or choose another --out.",
        )
    return facts is not None


def embed(job: CorpusJob, encoder: Encoder, *, threads: int | None = None) -> dict[str, Any]:
    """Embed what is not there yet, and return the summary, which is also in the folder."""
    if threads is not None:
        require_threads(threads)
    workers = threads or cores()
    total = sum(source.size for group in job.inputs for source in group)
    names, done_rows = [], 0
    pending: deque[tuple[Part, list[Future[Answers]]]] = deque()
    with (
        Folder.prepared(job.out, job.settings) as folder,
        Bar("texts", total or None) as bar,
        ThreadPoolExecutor(workers) as pool,
    ):
        try:
            for part in chain.from_iterable(parts_of(job, group) for group in range(len(job.inputs))):
                names.append(part.name)
                if not is_stored(folder, part):
                    pending.append((part, submitted(job, encoder, part, pool)))
                # While the oldest part is finished, the threads work on the next.
                while len(pending) > 1:
                    done_rows += write_part(job, folder, *pending.popleft())
                    bar.update(part.done, done_rows)
            while pending:
                done_rows += write_part(job, folder, *pending.popleft())
        finally:
            pool.shutdown(cancel_futures=True)
        if not names:
            raise DataError("at least one text", "none in the inputs", "Check the files.")
        return folder.finish(names)


def submitted(
    job: CorpusJob, encoder: Encoder, part: Part, pool: ThreadPoolExecutor
) -> list[Future[Answers]]:
    """The texts of a part, a chunk for a thread at a time."""
    texts = [job.prefix + text for text in part.texts] if job.prefix else part.texts
    chunks = [texts[i : i + CHUNK] for i in range(0, len(texts), CHUNK)]
    return [pool.submit(encoder.answers, chunk, dims=job.settings.dims, threads=1) for chunk in chunks]


def write_part(job: CorpusJob, folder: Folder, part: Part, futures: Sequence[Future[Answers]]) -> int:
    """Wait for the vectors of a part, and put it on disk."""
    found = [future.result() for future in futures]
    units = np.concatenate([answers.rows for answers in found])
    tokens, cut = (int(sum(getattr(answers, name).sum() for answers in found)) for name in ("tokens", "cut"))
    folder.write(part, as_dtype(units, job.settings.dtype), tokens, cut)
    return len(part.ids)
