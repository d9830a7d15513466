"""What happens to servers: full queues, signals, taken ports, faults; and what they keep to themselves."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hccs
from hccs.errors import HccsError
from hccs.serving.batching import Batcher, Limits, Overloaded
from hccs.serving.server import bound, open_model
from hccs.text.text_model import Answers
from tests.serving.servers import address, httpx, serving, started  # skips where packages are missing
from tests.text.models import embedder, random_texts, scorer, wide_embedder, with_texts


class Gate:
    """A model that answers once it is let: each text's length. Texts with an x are refused."""

    def __init__(self) -> None:
        self.open, self.batches = threading.Event(), []

    def answers(self, texts: Any, *, dims: int | None, threads: int | None) -> Answers:
        assert self.open.wait(60)
        self.batches.append((list(texts), dims))
        if any("x" in text for text in texts):
            raise HccsError("no x", "x", "Leave it out.")
        lengths = np.array([len(text) for text in texts])
        return Answers(lengths[:, None], lengths, lengths < 0)


def batcher(gate: Gate, **limits: Any) -> Batcher:
    return Batcher(gate, Limits(**{"threads": 1, "max_batch": 4, "max_queue": 6, **limits}))


def test_a_full_queue_is_refused_and_the_rest_is_answered_in_batches():
    gate = Gate()
    queue = batcher(gate)

    async def ask() -> list[Any]:
        first = asyncio.create_task(queue.answers(["a"]))
        while queue.waiting or not queue._busy:
            await asyncio.sleep(0.001)
        held = [asyncio.create_task(queue.answers(["a" * n])) for n in range(1, 7)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="at most 6 waiting texts"):
            await queue.answers(["b"])
        gate.open.set()
        return [(await task)[0].rows[0, 0] for task in (first, *held)]

    assert asyncio.run(ask()) == [1, 1, 2, 3, 4, 5, 6]
    queue.close()
    assert [len(texts) for texts, _ in gate.batches] == [1, 4, 2] and queue.waiting == 0


def test_one_faulty_request_does_not_spoil_those_in_its_batch():
    gate = Gate()
    queue = batcher(gate, threads=2)

    async def ask() -> list[Any]:
        tasks = [asyncio.create_task(queue.answers(texts)) for texts in (["a"], ["b", "x"], ["cc"], ["x"])]
        await asyncio.sleep(0)
        gate.open.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second, third, fourth = asyncio.run(ask())
    assert first[0].rows.tolist() == [[1]] and third[0].rows.tolist() == [[2]]
    assert isinstance(second, HccsError) and isinstance(fourth, HccsError)
    queue.close()


def test_sizes_are_not_mixed_large_requests_are_cut_and_a_wait_gathers_more():
    gate = Gate()
    gate.open.set()
    queue = batcher(gate, max_wait=0.2, max_queue=99)

    async def ask() -> Any:
        both = [queue.answers(["a"], 3), queue.answers(["b"], 5), queue.answers(["c"] * 9)]
        return await asyncio.gather(*both)

    *_, (found, waited, ran) = asyncio.run(ask())
    assert len(found.rows) == 9 and waited >= 0 and ran >= 0
    assert all(len(texts) <= 4 for texts, _ in gate.batches)
    assert sorted(gate.batches, key=str)[0][1] == 3 and {dims for _, dims in gate.batches} == {3, 5, None}

    async def one_by_one() -> Any:
        tasks = []
        for text in ("d", "e"):
            tasks.append(asyncio.create_task(queue.answers([text])))
            await asyncio.sleep(0.01)
        return await asyncio.gather(*tasks)

    asyncio.run(one_by_one())
    assert gate.batches[-1] == (["d", "e"], None)
    queue.close()


def test_a_stopped_server_finishes_what_it_accepted(tmp_path):
    model = wide_embedder()
    texts = random_texts(3, 400)
    right = hccs.Encoder(model).encode(texts)
    with serving(model, tmp_path, "--threads", "1", "--max-batch", "4") as server:

        def ask(_: int) -> np.ndarray | None:
            try:
                answer = server.post("/v1/embeddings", {"input": texts})
            except httpx.ConnectError:  # it had stopped listening before this one came
                return None
            return np.array([entry["embedding"] for entry in answer.json()["data"]], np.float32)

        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(ask, i) for i in range(8)]
            while 'path="/v1/embeddings"' not in httpx.get(server.url + "/metrics").text:
                pass  # until one is answered: others are in the queue
            server.process.send_signal(signal.SIGTERM)
            found = [work.result() for work in waiting]
        assert server.process.wait(60) == -signal.SIGTERM
        assert server.process.stderr.read() == ""
    answered = [rows for rows in found if rows is not None]
    assert answered
    for rows in answered:
        np.testing.assert_array_equal(rows, right)


def test_ctrl_c_ends_a_server_with_one_line(tmp_path):
    with serving(wide_embedder(), tmp_path) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 130
        assert server.process.stderr.read().strip() == "hccs: stopped"


def test_a_taken_port_and_models_that_are_not_served_are_refused(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HccsError, match="Address already in use"):
            bound("127.0.0.1", port)
        embedder().save(tmp_path / "m.hccs")
        process = started(tmp_path / "m.hccs", "--port", str(port))
        _, said = process.communicate(timeout=60)
        assert (
            process.returncode == 1 and said.startswith("hccs: expected an address") and "\n" not in said[:-1]
        )
    with pytest.raises(HccsError, match="an address"):
        bound("no.such.host.invalid", 80)
    with_texts(scorer(("O", "B-X"), per_token=True), "tag").save(tmp_path / "tag.hccs")
    with pytest.raises(HccsError, match="one for tag"):
        open_model(tmp_path / "tag.hccs")


def test_texts_are_in_no_log_and_open_addresses_are_told(tmp_path):
    model = embedder(prompts={"q": "the "}, default_prompt="q")
    model.save(tmp_path / "m.hccs")
    process = started(tmp_path / "m.hccs", "--host", "0.0.0.0")
    url = address(process).replace("0.0.0.0", "127.0.0.1")
    for body in (
        '{"input": "secretword"}',
        '{"input": "secretword',
        '{"input": ["secretword ' + "a " * 999 + '"]}',
    ):
        httpx.post(url + "/v1/embeddings", content=body)
    answer = httpx.post(url + "/v1/embeddings", json={"input": "a b"}).json()
    found = np.array(answer["data"][0]["embedding"], np.float32)
    np.testing.assert_array_equal(found, hccs.Encoder(model).encode("a b"))  # with the model's prompt
    process.terminate()
    out, said = process.communicate(timeout=60)
    assert "secretword" not in out + said and "1 of 1 texts" in said


def test_the_open_address_is_told(tmp_path):
    embedder().save(tmp_path / "m.hccs")
    process = started(tmp_path / "m.hccs", "--host", "0.0.0.0")
    assert process.stdout is not None and "anyone who reaches" in process.stdout.readline()
    process.kill()
    process.communicate()


def test_a_model_that_does_not_exist(tmp_path):
    process: subprocess.Popen[str] = started(tmp_path / "none.hccs")
    assert "none.hccs" in process.communicate(timeout=60)[1] and process.returncode == 1
