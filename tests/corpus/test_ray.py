"""A corpus on a local Ray cluster of two workers, one of which is killed: the bytes of a single process."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]

from hccs.corpus.embedding import embed, plan
from hccs.corpus.on_ray import embed_on_ray
from hccs.errors import HccsError
from tests.corpus.test_embedding import content
from tests.text.models import random_texts, wide_embedder


def own_actors() -> list[int]:
    """Processes of actors that hold a model, of the cluster that this process has started."""

    def parent(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            pid = int(place.parent.name)
            title = place.read_bytes()
            if title.startswith(b"ray::") and b"Embedding" in title and parent(parent(pid)) == os.getpid():
                found.append(pid)
    return found


def kill_an_actor(out: Path, killed: list[int]) -> None:
    """Once a part is there, end the process of an actor."""
    while not list(out.glob("part-*")):
        time.sleep(0.01)
    while not killed:
        for pid in own_actors()[:1]:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)


def test_a_killed_worker_changes_no_byte(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'hccs[ray]'")
    import ray

    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "300")
    monkeypatch.setattr("hccs.corpus.reading.GROUP_BYTES", 20_000)
    wide_embedder().save(tmp_path / "small.hccs")
    texts = [text for text in random_texts(1, 3000) if text.strip()]
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text("\n".join(texts[number::6]), encoding="utf-8")
    inputs = [str(tmp_path / f"{number}.txt") for number in range(6)]
    given = {"model": str(tmp_path / "small.hccs"), "part_rows": 40}
    embed(*plan(inputs, tmp_path / "alone", **given))
    ray.init(num_cpus=2)
    try:
        killed: list[int] = []
        killer = threading.Thread(target=kill_an_actor, args=(tmp_path / "many", killed), daemon=True)
        killer.start()
        job, _ = plan(inputs, tmp_path / "many", **given)
        assert len(job.inputs) > 1
        found = embed_on_ray(job, "local", workers=2)
        killer.join()
        assert killed and found["rows"] == len(texts)
        assert content(tmp_path / "many") == content(tmp_path / "alone")
        lost = tmp_path / "many" / "part-00000-00001.parquet"
        lost.unlink()
        embed_on_ray(job, "local", workers=2)
        assert content(tmp_path / "many") == content(tmp_path / "alone")
        (tmp_path / "5.txt").write_text("changed\n")
        with pytest.raises(HccsError, match="the input has changed"):
            embed_on_ray(plan(inputs, tmp_path / "many", **given)[0], "local", workers=2)
    finally:
        ray.shutdown()
    with pytest.raises(HccsError, match="every machine"):
        embed_on_ray(plan(["-"], tmp_path / "no", **given)[0], "local")
