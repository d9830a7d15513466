"""Does a server survive what happens to servers? Random faults for some minutes; every vector is compared.

    python benchmarks/serve_soak.py [--seconds 600] [--clients 8] [--kills 1000] [--program MODEL]
        [--json FILE]

Clients are processes that are killed at random moments and started again. Each sends, at random: texts alone
and in lists, floats and base64, several sizes; connections that it breaks before the answer or in the middle
of a body; bodies that are too large, no JSON, or of wrong types; noise. Answers with status 200 must have the
bits of `Encoder.encode`. The memory of the server is read every second; its growth is the mean of the last
tenth over the mean of the second tenth, because the first fills its pools.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

SIZES = (None, 8, 16)


def is_whole(answer: bytes) -> bool:
    """Whether an answer of HTTP has all bytes that its head announces."""
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    start = answer.index(b"content-length:") + 15
    return len(answer) >= end + 4 + int(answer[start : answer.index(b"\r", start)])


def ask(port: int, body: bytes, rng: random.Random) -> tuple[int, bytes] | None:
    """Status and body of an answer; None where this side broke the connection."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: m\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode())
        broken = rng.random()
        if broken < 0.05:
            connection.sendall(body[: rng.randrange(len(body) + 1)])
            return None
        connection.sendall(body)
        if broken < 0.1:
            return None
        answer = b""
        while not is_whole(answer):
            more = connection.recv(1 << 18)
            if not more:
                return None
            answer += more
        top, _, content = answer.partition(b"\r\n\r\n")
        return int(top.split()[1]), content


def client(port: int, expected: Path, seed: int) -> None:
    """Requests without end; prints a line for every answer: `ok`, `refused`, or what is wrong."""
    rng = random.Random(seed)
    known = json.loads(expected.read_text(encoding="utf-8"))
    texts, vectors = known["texts"], known["vectors"]
    bad = [b"", b"{", b"[]", b'{"input": 3}', b'{"input": ["a", null]}', b"\xff" * 99, b'{"input": []}']
    bad += [json.dumps({"input": "a", "dimensions": -1}).encode(), b" " * (5 << 20), b"[" * 9999]
    while True:
        kind, word = rng.random(), "ok"
        try:
            if kind < 0.2:
                found = ask(port, rng.choice(bad), rng)
                word = "refused" if found is None or 400 <= found[0] < 500 else f"WRONG status {found[0]}"
            elif kind < 0.22:
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    connection.sendall(rng.randbytes(200))
                word = "refused"
            else:
                chosen = [rng.randrange(len(texts)) for _ in range(rng.choice([1, 1, 1, 2, 5, 40]))]
                size, encoding = rng.choice(SIZES), rng.choice(["float", "base64"])
                given = {"input": [texts[i] for i in chosen], "encoding_format": encoding}
                if size is not None:
                    given["dimensions"] = size
                found = ask(port, json.dumps(given).encode(), rng)
                if found is not None and found[0] == 200:
                    rows = [entry["embedding"] for entry in json.loads(found[1])["data"]]
                    if encoding == "float":
                        rows = [base64.b64encode(array("f", row).tobytes()).decode() for row in rows]
                    right = [vectors[str(size)][i] for i in chosen]
                    word = "ok" if rows == right else "WRONG vectors"
                elif found is not None:
                    word = "refused" if found[0] == 429 else f"WRONG status {found[0]}"
        except OSError as error:  # the other side may close a connection that has sent noise
            word = "refused" if kind < 0.22 else f"WRONG {error!r}"
        print(word, flush=True)


def memory_of(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    from provenance import write_json  # clients start without these
    from serve_cpu import LAYOUTS, OURS, TEXTS, server_of

    import hccs

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--program", default="all-MiniLM-L6-v2")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    texts = [line.strip() for line in TEXTS.read_text(encoding="utf-8").splitlines() if line.strip()]
    encoder = hccs.Encoder.load(options.program)
    counts: dict[str, int] = {}
    memory, killed, rng = [], 0, random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoder.model.save(folder / "m.hccs")
        vectors = {
            str(size): [base64.b64encode(row.tobytes()).decode() for row in encoder.encode(texts, dims=size)]
            for size in SIZES
        }
        known = json.dumps({"texts": texts, "vectors": vectors})
        (folder / "expected.json").write_text(known, encoding="utf-8")
        with server_of(OURS, str(folder / "m.hccs"), "", LAYOUTS[0], 2) as port:
            pid = _pid_listening(port)

            def start(number: int) -> Any:
                seed = f"{number}{rng.random()}"
                given = [sys.executable, __file__, "--client", str(port), str(folder / "expected.json"), seed]
                return subprocess.Popen(given, stdout=(folder / f"{number}.log").open("ab"))

            running = [start(number) for number in range(options.clients)]
            began = time.monotonic()
            next_sample = began
            while (now := time.monotonic()) < began + options.seconds:
                if killed < options.kills * (now - began) / options.seconds:
                    number = rng.randrange(options.clients)
                    running[number].send_signal(signal.SIGKILL)
                    running[number].wait()
                    running[number] = start(number)
                    killed += 1
                if now >= next_sample:
                    memory.append(memory_of(pid))
                    next_sample += 1.0
                time.sleep(0.01)
            for process in running:
                process.kill()
                process.wait()
            memory_of(pid)  # it still runs
        for number in range(options.clients):
            for line in (folder / f"{number}.log").read_text(encoding="utf-8").splitlines():
                counts[line] = counts.get(line, 0) + 1
    tenth = max(1, len(memory) // 10)
    early = memory[tenth : 2 * tenth] or memory
    growth = statistics.fmean(memory[-tenth:]) / statistics.fmean(early) - 1
    wrong = {line: count for line, count in counts.items() if line not in ("ok", "refused")}
    right, refused = counts.get("ok", 0), counts.get("refused", 0)
    print(f"{right} right, {refused} refused or broken, wrong: {wrong or 'none'}")
    print(f"{killed} kills of clients; memory {memory[-1] / 1e6:.0f} MB, growth {100 * growth:+.1f} %")
    found: dict[str, Any] = {"right": right, "refused": refused, "wrong": wrong}
    found |= {"kills": killed, "seconds": options.seconds, "memory": memory[-1], "growth": growth}
    if options.json:
        write_json(options.json, found)


def _pid_listening(port: int) -> int:
    """The child process that listens at a port."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    (found,) = [int(pid) for pid in children if b"--serve" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client(int(sys.argv[2]), Path(sys.argv[3]), hash(sys.argv[4]))
    else:
        main()
