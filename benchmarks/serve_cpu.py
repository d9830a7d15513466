"""How many requests per second does `hccs serve` answer on this machine, and how evenly?

    python benchmarks/serve_cpu.py [--model FOLDER] [--texts FILE] [--clients 32] [--seconds 4] [--turns 3]
        [--threads 2] [--parts rate,half,overhead] [--peers all] [--json FILE]

- rate: clients that each send one sentence, wait for its vector and send the next: requests per second
  against the same Starlette application, batcher included, around ONNX Runtime dynamic int8 and OpenVINO
  static int8. Peers get the weights in FOLDER, a folder of sentence-transformers such as all-MiniLM-L6-v2,
  and run in their best of several layouts: one thread per batch or all, padded batches of 1, 8 or 32 texts.
- half: half of that rate: the 50th and 99th percentile of the time of a request, at an even pace and at
  random times (exponential gaps), and with half of the clients. Medians of turns of half a second; each
  follows a control, as many requests of /health, whose ratio is the unrest of the machine. Turns after a
  control with a 99th percentile of at most twice the 50th are calm.
- overhead: one client, 32 sentences a request, floats and base64, against `Encoder.encode` in this process.

Servers are processes of their own, and so are the clients, which share the machine's cores with them. Every
vector of hccs is compared with `Encoder.encode`. Servers take turns, and the median of the turns counts.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
from provenance import write_json
from serve_soak import is_whole

import hccs
from hccs.text.text_model import Answers

TEXTS = Path(__file__).with_name("embedding_texts.txt")
PARTS = ("rate", "half", "overhead")
OURS = "hccs"
LAYOUTS = [(own, size) for own in ("one thread a batch", "all threads a batch") for size in (1, 8, 32)]
BATCH = 32
TURN = 0.5
"""Seconds of a turn of half the load."""

HEALTH = b"GET /health HTTP/1.1\r\nHost: m\r\n\r\n"


# --- servers ------------------------------------------------------------------------------------------------


class Peer:
    """A runtime with the face of `hccs.Encoder` that the application asks for."""

    settings = SimpleNamespace(kind="embeddings")
    fingerprint, max_length, dims = "none", 256, 384

    def __init__(self, model: Path, size: int, vectors: Callable[[Any], Any]) -> None:
        from embedding_peers import tokenizer

        self._reader, self._size, self._vectors = tokenizer(model), size, vectors

    def prefix(self, prompt: str | None) -> str:
        return ""

    def answers(self, texts: Sequence[str], *, dims: int | None, threads: int | None) -> Answers:
        from embedding_peers import by_length, padded

        ids = [found.ids for found in self._reader.encode_batch_fast(texts)]
        found = by_length(ids, self._size, lambda rows: self._vectors(padded(rows)))
        tokens = np.array([len(row) for row in ids])
        return Answers(np.rint(found * 32767).astype(np.int16), tokens, tokens > self.max_length)


def open_peer(name: str, path: str, model: Path, workers: int, threads: int, size: int) -> Peer:
    """`workers` batches run at once, each on its share of the threads."""
    if name.startswith("ONNX"):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads // workers, 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = {given.name for given in session.get_inputs()}
        return Peer(model, size, lambda x: session.run(None, {n: x[n] for n in x if n in names})[0])
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": workers, "ENABLE_CPU_PINNING": False}
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    names, own = {given.any_name for given in compiled.inputs}, threading.local()

    def vectors(x: dict[str, Any]) -> Any:
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        return own.request.infer({n: x[n] for n in x if n in names}, share_inputs=True)[0]

    return Peer(model, size, vectors)


def serve(name: str, path: str, model: str, own: str, size: str, threads: str) -> None:
    """The server of one process; prints its port once it takes connections."""
    from hccs.serving import server
    from hccs.serving.app import create_app
    from hccs.serving.batching import Limits

    count = int(threads)
    workers = count if own.startswith("one") or name == OURS else 1
    opened: Any
    if name == OURS:
        opened = server.open_model(path)
    else:
        opened = open_peer(name, path, Path(model), workers, count, int(size))
    opened.answers(["a sentence to begin with"] * 4, dims=None, threads=1)
    listening = server.bound("127.0.0.1", 0)
    port = listening.getsockname()[1]
    server.run(create_app(opened, "m", Limits(workers)), listening, lambda: print(port, flush=True))


@contextmanager
def server_of(name: str, path: str, model: str, layout: tuple[str, int], threads: int) -> Iterator[int]:
    """The port of a server of its own process."""
    command = [
        sys.executable,
        __file__,
        "--serve",
        name,
        path,
        model,
        layout[0],
        str(layout[1]),
        str(threads),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server around {name} did not start")
        yield int(line)
    finally:
        process.terminate()
        process.wait()


# --- clients ------------------------------------------------------------------------------------------------


def request(texts: Sequence[str], encoding: str = "base64") -> bytes:
    body = json.dumps({"input": list(texts), "model": "m", "encoding_format": encoding}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: m\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Client:
    """A connection that sends requests and notes when their answers are whole, and whether they are right."""

    def __init__(self, port: int, requests: Sequence[bytes], expected: Sequence[bytes] | None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.requests, self.expected = requests, expected
        self.number = self.wrong = 0
        self.due, self.answer, self.busy = 0.0, b"", False
        self.times: list[float] = []

    def send(self, due: float) -> None:
        self.due, self.answer, self.busy = due, b"", True
        self.socket.sendall(self.requests[self.number])

    def receive(self) -> bool:
        """Whether the answer is whole."""
        self.answer += self.socket.recv(1 << 18)
        if not is_whole(self.answer):
            return False
        self.times.append(time.perf_counter() - self.due)
        expected = b" 200 " if self.expected is None else self.expected[self.number]
        self.wrong += expected not in self.answer
        self.number = (self.number + 1) % len(self.requests)
        self.busy = False
        return True


def load(port: int, texts: list[str], expected: Any, clients: int, seconds: float, gaps: list[float]) -> Any:
    """Answers, wrong ones and sorted seconds of each.

    Without texts, requests are of /health. With `gaps`, the seconds between two requests, requests are sent
    at those times by whichever client is free, and the time counts from when each was due; without, every
    client sends its next one at once.
    """
    rng = random.Random(0)
    many = []
    for _ in range(clients):
        order = rng.sample(range(len(texts)), len(texts))
        right = None if expected is None else [expected[i] for i in order]
        many.append(Client(port, [request([texts[i]]) for i in order] or [HEALTH], right))
    began = time.perf_counter()
    dues, free = deque((began + np.cumsum(gaps)).tolist()), deque(many)
    with selectors.SelectSelector() as ready:  # unlike epoll, it waits for less than a millisecond
        for client in many:
            ready.register(client.socket, selectors.EVENT_READ, client)
        while (now := time.perf_counter()) < began + seconds:
            while free and (not gaps or (dues and dues[0] <= now)):
                free.popleft().send(dues.popleft() if gaps else now)
            wait = min(dues[0] - now, 0.1) if free and dues else 0.1
            for key, _ in ready.select(max(0.0, wait)):
                if key.data.receive():
                    free.append(key.data)
    for client in many:
        client.socket.close()
    times = sorted(value for client in many for value in client.times)
    return {"answers": len(times), "wrong": sum(client.wrong for client in many), "times": times}


def loaded(port: int, texts: list[str], expected: Any, clients: int, seconds: float, gaps: Any) -> Any:
    """`load` in a process of its own."""
    given = json.dumps([port, texts, expected, clients, seconds, list(gaps)])
    command = [sys.executable, __file__, "--load"]
    found = json.loads(
        subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout
    )
    if found["wrong"]:
        raise RuntimeError(f"{found['wrong']} of {found['answers']} answers were wrong")
    return found


# --- parts --------------------------------------------------------------------------------------------------


def overhead(port: int, encoder: Any, texts: list[str], turns: int) -> dict[str, float]:
    """Seconds of 32 sentences in one request, by encoding, and by `Encoder.encode`, in turns."""
    batches = [texts[i : i + BATCH] for i in range(0, len(texts) - BATCH + 1, BATCH)]
    client = Client(port, [b""], None)
    seconds: dict[str, list[float]] = {"encode": [], "base64": [], "float": []}
    for _ in range(turns):
        for batch in batches:
            began = time.perf_counter()
            encoder.encode(batch)
            seconds["encode"].append(time.perf_counter() - began)
            for encoding in ("base64", "float"):
                client.requests = [request(batch, encoding)]
                client.send(time.perf_counter())
                while not client.receive():
                    pass
                seconds[encoding].append(client.times[-1])
    if client.wrong:
        raise RuntimeError("an answer was an error")
    return {name: statistics.median(values) for name, values in seconds.items()}


def half_load(
    port: int, texts: list[str], right: Any, clients: int, rate: float, pace: str, turns: int
) -> dict[str, float]:
    """Milliseconds of requests at half load, and what a control says of the machine, as medians of turns."""
    rng, count = np.random.default_rng(0), int(rate * TURN * 0.95)
    even = [1 / rate] * count
    rows = []
    for _ in range(turns):
        control = load(port, [], None, clients, TURN, even)["times"]
        gaps = {"even": even, "random": rng.exponential(1 / rate, count).tolist()}.get(pace, [])
        times = load(port, texts, right, clients if gaps else clients // 2, TURN, gaps)
        if times["wrong"]:
            raise RuntimeError(f"{times['wrong']} answers were wrong")
        p50, p99, c50, c99 = (
            1e3 * listed[int(len(listed) * share)]
            for listed in (times["times"], control)
            for share in (0.5, 0.99)
        )
        rows.append((p50, p99, p99 / p50, c99 / c50))
    p50, p99, ratio, unrest = (statistics.median(column) for column in zip(*rows, strict=True))
    calm = [row[2] for row in rows if row[3] <= 2]
    found = {"p50": p50, "p99": p99, "ratio": ratio, "control": unrest, "turns": turns, "calm": len(calm)}
    return {**found, "calm_ratio": statistics.median(calm)} if calm else found


def peers_of(model: Path, texts: list[str], folder: Path, wanted: str) -> dict[str, str]:
    """Files of the peers that are installed, by name."""
    if wanted == "none" or not model.is_dir():
        return {}
    from embedding_peers import Material, make_onnx_int8, make_openvino

    material, found = Material(model, texts[:64], folder, None), {}
    if all(map(find_spec, ("onnxruntime", "onnx", "onnxscript"))):
        found["ONNX Runtime dynamic int8, per channel"] = str(make_onnx_int8(material, True))
    if all(map(find_spec, ("openvino", "nncf"))):
        found["OpenVINO static int8"] = str(make_openvino(material, "static"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=Path("all-MiniLM-L6-v2"), help="the peers' weights")
    parser.add_argument("--program", default="all-MiniLM-L6-v2", help="the integer model")
    parser.add_argument("--texts", type=Path, default=TEXTS)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--peers", choices=["all", "none"], default="all")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    parts = options.parts.split(",")
    texts = [line.strip() for line in options.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    encoder = hccs.Encoder.load(options.program)
    expected = [base64.b64encode(row.tobytes()).decode() for row in encoder.encode(texts)]
    found: dict[str, Any] = {
        "clients": options.clients,
        "threads": options.threads,
        "texts": len(texts),
        "tokens": float(encoder.answers(texts).tokens.mean()),
    }
    with tempfile.TemporaryDirectory() as folder:
        ours = Path(folder) / "m.hccs"
        encoder.model.save(ours)

        def rate_of(name: str, path: str, layout: tuple[str, int], seconds: float) -> float:
            right = expected if name == OURS else None
            with server_of(name, path, str(options.model), layout, options.threads) as port:
                loaded(port, texts, right, options.clients, min(1.0, seconds), [])
                answers = loaded(port, texts, right, options.clients, seconds, [])["answers"]
            return answers / seconds

        if {"rate", "half"} & {*parts}:
            peers = peers_of(options.model, texts, Path(folder), options.peers) if "rate" in parts else {}
            layouts = {OURS: LAYOUTS[0]}
            for name, path in peers.items():
                tried = {layout: rate_of(name, path, layout, options.seconds / 2) for layout in LAYOUTS}
                layouts[name] = max(tried, key=lambda layout: tried[layout])
                print(f"{name}: best with {layouts[name][0]}, {layouts[name][1]} texts at most")
            files = {OURS: str(ours), **peers}
            turns: dict[str, list[float]] = {name: [] for name in files}
            for _ in range(options.turns):
                for name, path in files.items():
                    turns[name].append(rate_of(name, path, layouts[name], options.seconds))
            rates = {name: statistics.median(values) for name, values in turns.items()}
            for name, rate in rates.items():
                print(f"{name:40s} {rate:8.0f} requests/s")
            found |= {"rates": rates, "layouts": {name: list(layout) for name, layout in layouts.items()}}
            if peers:
                found["over"] = rates[OURS] / max(rates[name] for name in peers)
                print(f"hccs over the best peer: {found['over']:.2f}")
        with server_of(OURS, str(ours), "", LAYOUTS[0], options.threads) as port:
            if "half" in parts:
                rate, right = found["rates"][OURS] / 2, [one.encode() for one in expected]
                turns_of_half = int(4 * options.seconds)
                for pace in ("even", "random", "half of the clients"):
                    half = half_load(port, texts, right, options.clients, rate, pace, turns_of_half)
                    found.setdefault("half", {})[pace] = half
                    print(f"half load, {pace}: {', '.join(f'{name} {x:.2f}' for name, x in half.items())}")
            if "overhead" in parts:
                medians = overhead(port, encoder, texts, 3 * options.turns)
                over = {name: medians[name] / medians["encode"] - 1 for name in ("base64", "float")}
                found["overhead"] = {"seconds": medians, **over}
                print("over encode at 32 texts:", ", ".join(f"{n} {100 * v:+.0f} %" for n, v in over.items()))
    if options.json:
        write_json(options.json, found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    elif sys.argv[1:2] == ["--load"]:
        port, texts, expected, clients, seconds, gaps = json.load(sys.stdin)
        right = None if expected is None else [one.encode() for one in expected]
        print(json.dumps(load(port, texts, right, clients, seconds, gaps)))
    else:
        main()
