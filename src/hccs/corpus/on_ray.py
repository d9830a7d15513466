"""`hccs embed --ray`: the stages of `embed` as a pipeline of Ray Data, with one model per actor.

Reading tasks cut groups of files into parts; actors embed and write them. A part's bytes depend on its texts
and the settings alone, and it appears whole, so that a task that runs again changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hccs._extras import require
from hccs.corpus.embedding import CorpusJob, is_stored, parts_of, submitted, write_part
from hccs.corpus.folder import Folder, Part
from hccs.errors import DataError, HccsError, ParameterError
from hccs.text.encoder import Encoder

LOCAL = "local"


def embed_on_ray(
    job: CorpusJob, address: str, *, workers: int | None = None, device: str = "cpu"
) -> dict[str, Any]:
    """`embed` on a cluster: `address` as ray.init takes it, or "local" for one on this machine.

    All machines see the model's file and the folder under the same paths. `workers` are actors with a core
    each, or with a GPU each on the device "cuda"; by default as many as the cluster has of these.
    """
    if any(source.name == "-" for group in job.inputs for source in group):
        raise ParameterError("files that every machine reads, with --ray", "stdin", "Name a file.")
    ray = require("ray", "ray", "for --ray")
    require("ray.data", "ray", "for --ray")
    ours = not ray.is_initialized()
    try:
        if ours:
            ray.init(**({"num_cpus": workers} if address == LOCAL else {"address": address}))
        with Folder.prepared(job.out, job.settings) as folder:
            kind = "CPU" if device == "cpu" else "GPU"
            count = workers or max(1, int(ray.cluster_resources().get(kind, 1)))
            here, pool = os.getcwd(), ray.data.ActorPoolStrategy(min_size=1, max_size=count)
            parts = ray.data.from_items(list(range(len(job.inputs))), override_num_blocks=len(job.inputs))
            parts = parts.flat_map(_Reading(job, here), num_cpus=0.01)
            written = parts.map_batches(
                EmbeddingActor, fn_constructor_args=(job, here, device), batch_size=1, compute=pool,
                num_cpus=1, num_gpus=int(kind == "GPU"),
            )  # fmt: skip
            names = [row["name"] for row in written.iter_rows()]
            if not names:
                raise DataError("at least one text", "none in the inputs", "Check the files.")
            return folder.finish(sorted(names))
    except HccsError:
        raise
    except Exception as error:  # Ray wraps what its workers raise, and has bare exceptions of its own
        raise _refusal(error) or HccsError(
            f"the Ray cluster {address} to finish", str(error)[-300:], "The same command resumes."
        ) from error
    finally:
        if ours:
            ray.shutdown()


def _refusal(error: BaseException | None) -> HccsError | None:
    """The refusal that a worker raised."""
    while error is not None:
        for found in (error, getattr(error, "cause", None)):
            if isinstance(found, HccsError):
                return found
        error = error.__cause__
    return None


class _Reading:
    """The parts of a group of sources; of those that are there, the names alone."""

    def __init__(self, job: CorpusJob, here: str) -> None:
        self.job, self.here = job, here

    def __call__(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        os.chdir(self.here)
        folder = Folder(self.job.out, self.job.settings)
        for part in parts_of(self.job, int(row["item"])):
            stored = is_stored(folder, part)
            yield {
                "name": part.name,
                "ids": [] if stored else part.ids,
                "texts": [] if stored else part.texts,
            }


class EmbeddingActor:
    """An actor: it holds the model, and writes the parts that it is given."""

    def __init__(self, job: CorpusJob, here: str, device: str) -> None:
        os.chdir(here)  # paths may be relative
        encoder = Encoder.load(job.settings.model, device)
        if encoder.fingerprint != job.settings.fingerprint:
            raise DataError(f"the model {job.settings.fingerprint}", encoder.fingerprint, "Copy its file.")
        self.job, self.encoder = job, encoder
        self.folder = Folder(job.out, job.settings)
        self.pool = ThreadPoolExecutor(1)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        for name, ids, texts in zip(batch["name"], batch["ids"], batch["texts"], strict=True):
            if len(ids):
                part = Part(str(name), [str(i) for i in ids], [str(text) for text in texts], 0)
                write_part(self.job, self.folder, part, submitted(self.job, self.encoder, part, self.pool))
        return {"name": batch["name"]}
