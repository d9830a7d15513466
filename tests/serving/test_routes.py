"""What a server answers: the bits of the library, in the protocols of others; what it refuses, and how."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

import hccs
from hccs.serving.app import MOST_BYTES
from hccs.serving.formats import MOST_CHARACTERS, MOST_TEXTS
from tests.serving.servers import Served, httpx, serving  # skips where packages are missing
from tests.text.models import random_texts, scorer, wide_embedder, with_texts

TEXTS = ["the cat sat.", "", "a b c", "the the the", "Zz"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(wide_embedder(), tmp_path_factory.mktemp("embed"), "--max-batch", "8") as found:
        yield found


@pytest.fixture(scope="module")
def encoder(server: Served) -> hccs.Encoder:
    return hccs.Encoder.load(server.file)


def vectors_of(answer: httpx.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [entry["index"] for entry in data] == list(range(len(data)))
    rows = [entry["embedding"] for entry in data]
    if isinstance(rows[0], str):
        return np.stack([np.frombuffer(base64.b64decode(row), "<f4") for row in rows])
    return np.array(rows, np.float32)


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
@pytest.mark.parametrize("dims", [None, 1, 7])
def test_vectors_have_the_bits_of_the_encoder(server, encoder, encoding, dims):
    asked = {"input": TEXTS, "model": "small", "encoding_format": encoding, "dimensions": dims, "user": "me"}
    answer = server.post(
        "/v1/embeddings", {name: given for name, given in asked.items() if given is not None}
    )
    np.testing.assert_array_equal(vectors_of(answer), encoder.encode(TEXTS, dims=dims))
    tokens = int(encoder.answers(TEXTS).tokens.sum())
    assert answer.json()["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answer.json()["model"] == "small" and "model;dur=" in answer.headers["server-timing"]


def test_one_text_and_more_than_a_batch(server, encoder):
    np.testing.assert_array_equal(
        vectors_of(server.post("/v1/embeddings", {"input": "a b"}))[0], encoder.encode("a b")
    )
    many = random_texts(5, 100)
    np.testing.assert_array_equal(
        vectors_of(server.post("/v1/embeddings", {"input": many})), encoder.encode(many)
    )


def test_requests_at_once_get_their_own_vectors(server, encoder):
    texts = random_texts(6, 120)
    sizes = [None, 3, 5]

    def ask(i: int) -> np.ndarray:
        asked = {"input": texts[i : i + 3], "encoding_format": "base64"}
        return vectors_of(server.post("/v1/embeddings", asked | {"dimensions": sizes[i % 3] or encoder.dims}))

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, range(100)))
    for i, rows in enumerate(found):
        np.testing.assert_array_equal(rows, encoder.encode(texts[i : i + 3], dims=sizes[i % 3]))


@pytest.mark.parametrize(
    ("body", "status", "what"),
    [
        (b"", 400, "JSON"),
        (b'{"input": "a"', 400, "JSON"),
        (b"\xff\xfe", 400, "JSON"),
        (b"[" * 100_000, 400, "JSON"),
        (b'{"input": "\\ud800"}', 400, "JSON"),
        (b"[1, 2]", 400, "object"),
        (b"null", 400, "object"),
        ({}, 400, "input"),
        ({"input": []}, 400, "1 to"),
        ({"input": None}, 400, "nothing"),
        ({"input": {"a": 1}}, 400, "dict"),
        ({"input": ["a", 3]}, 400, "int as number 1"),
        ({"input": [1, 2, 3]}, 400, "check_embedding_ctx_length"),
        ({"input": [[1, 2], [3]]}, 400, "check_embedding_ctx_length"),
        ({"input": ["a"], "dimensions": 0}, 400, "dimensions from 1"),
        ({"input": ["a"], "dimensions": 10**6}, 400, "dimensions from 1"),
        ({"input": ["a"], "dimensions": True}, 400, "dimensions from 1"),
        ({"input": ["a"], "dimensions": 2.0}, 400, "dimensions from 1"),
        ({"input": ["a"], "encoding_format": "hex"}, 400, "base64"),
        ({"input": ["a"], "encoding_format": 3}, 400, "base64"),
        ({"input": ["a"], "model": "another"}, 404, "served here, small"),
        ({"input": ["a"] * (MOST_TEXTS + 1)}, 413, str(MOST_TEXTS)),
        ({"input": "a" * (MOST_CHARACTERS + 1)}, 413, "characters"),
        (b"{" + b" " * MOST_BYTES + b"}", 413, "MiB"),
        ({"input": "a " * 500, "truncate": False}, 413, "tokens"),
    ],
)
def test_refusals_are_errors_of_openai(server, body, status, what):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = httpx.post(server.url + "/v1/embeddings", content=content, timeout=60)
    assert answer.status_code == status and what in answer.json()["error"]["message"]


def test_a_body_without_an_end_is_cut_off(server):
    """A chunked body announces no length."""

    def chunks() -> Iterator[bytes]:
        for _ in range(2 * (MOST_BYTES >> 16)):
            yield b" " * (1 << 16)

    with suppress(httpx.TransportError):  # it may close the connection while the body is still being sent
        assert httpx.post(server.url + "/v1/embeddings", content=chunks(), timeout=60).status_code == 413
    assert server.post("/v1/embeddings", {"input": "a"}).status_code == 200


def test_long_texts_are_cut_and_counted(server, encoder):
    answer = server.post("/v1/embeddings", {"input": ["a " * 500, "b"]})
    assert answer.headers["x-cut-texts"] == "1"
    with pytest.warns(UserWarning, match="1 of 2 texts"):
        np.testing.assert_array_equal(vectors_of(answer), encoder.encode(["a " * 500, "b"]))


def test_health_models_and_metrics(server, encoder):
    facts = httpx.get(server.url + "/health").json()
    assert facts["fingerprint"] == encoder.fingerprint and facts["dims"] == encoder.dims
    assert httpx.get(server.url + "/v1/models").json()["data"][0]["id"] == "small"
    before = httpx.get(server.url + "/metrics").text
    server.post("/v1/embeddings", {"input": ["a b", "c"]})
    after = httpx.get(server.url + "/metrics").text

    def value(text: str, name: str) -> float:
        return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(name + " ")))

    assert value(after, "hccs_texts_total") == value(before, "hccs_texts_total") + 2
    assert value(after, "hccs_waiting_texts") == 0
    assert 'hccs_requests_total{path="/v1/embeddings",status="200"}' in after


def test_the_wrong_kind_of_model_and_unknown_paths(server):
    answer = server.post("/rerank", {"query": "a", "texts": ["b"]})
    assert answer.status_code == 424 and answer.json()["error_type"] == "Backend"
    assert server.post("/classify", {"inputs": "a"}).status_code == 424
    assert server.post("/v1/chat/completions", {}).status_code == 404
    assert httpx.get(server.url + "/v1/embeddings").status_code == 405


def test_half_a_request_and_noise_leave_the_server_alive(server):
    host, port = server.url.removeprefix("http://").split(":")
    for noise in (
        b"\x16\x03\x01\x02\x00\x01",
        b"POST /v1/embeddings HTTP/1.1\r\nContent-Length: 100\r\n\r\n{",
        b"POST /v1/embeddings HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(noise)
    assert server.post("/v1/embeddings", {"input": "a"}).status_code == 200


@pytest.mark.parametrize("labels", [("good",), ("no", "yes")])
def test_ranks_are_those_of_text_embeddings_inference(tmp_path, labels):
    model = with_texts(scorer(labels), "rerank")
    reranker, texts = hccs.Reranker(model), ["the cat", "a b c", "sat.", ""]
    with serving(model, tmp_path) as server:
        for raw in (False, True):
            asked = {"query": "cat", "texts": texts, "raw_scores": raw, "return_text": True}
            found = server.post("/rerank", asked).json()
            ranked = reranker.rank("cat", texts)
            assert [(one["index"], one["text"]) for one in found] == [(one.index, one.text) for one in ranked]
            scores = [one.score if raw else 1 / (1 + np.exp(-one.score)) for one in ranked]
            np.testing.assert_allclose([one["score"] for one in found], scores, rtol=1e-12)
        assert "text" not in server.post("/rerank", {"query": "a", "texts": ["b"]}).json()[0]
        for bad in ({}, {"query": "a"}, {"query": 3, "texts": ["b"]}, {"query": "a", "texts": "b"}):
            answer = server.post("/rerank", bad)
            assert answer.status_code == 400 and answer.json()["error_type"] == "Validation"
        assert server.post("/rerank", {"query": "a", "texts": ["b"], "raw_scores": 1}).status_code == 400
        assert server.post("/v1/embeddings", {"input": "a"}).status_code == 424
        assert server.post("/classify", {"inputs": "a"}).status_code == 424


def test_labels(tmp_path):
    model = with_texts(scorer(("bad", "fair", "good")), "classify")
    classifier, texts = hccs.Classifier(model), ["the cat", ("a b", "c"), "sat."]
    with serving(model, tmp_path) as server:
        asked = ["the cat", ["a b", "c"], ["sat."]]
        found = server.post("/classify", {"inputs": asked}).json()
        for row, prediction in zip(found, classifier.predict(texts, top_k=None), strict=True):
            assert {one["label"]: one["score"] for one in row} == prediction.scores
            assert row[0]["label"] == prediction.label
        single = server.post("/classify", {"inputs": "the cat", "raw_scores": True}).json()
        logits = classifier.model.program.score_scale * classifier.answers(["the cat"]).rows[0]
        assert sorted(one["score"] for one in single) == sorted(logits.tolist())
        assert server.post("/rerank", {"query": "a", "texts": ["b"]}).status_code == 424  # three outputs
        assert server.post("/classify", {"inputs": [["a", "b", "c"]]}).status_code == 400


def test_a_key_guards_everything_but_health_and_the_page(tmp_path):
    with serving(wide_embedder(), tmp_path, "--api-key", "schlüssel", "--name", "mine") as server:
        for given in ("", "Bearer wrong", "Basic schlüssel", "schlüssel", "Bearer", "Bearer schlüsse"):
            headers = {"Authorization": given.encode()}
            answer = server.post("/v1/embeddings", {"input": "a"}, headers=headers)
            assert answer.status_code == 401 and "Bearer" in answer.json()["error"]["message"]
        allowed = {"Authorization": "bearer schlüssel".encode()}
        assert (
            server.post("/v1/embeddings", {"input": "a", "model": "mine"}, headers=allowed).status_code == 200
        )
        assert httpx.get(server.url + "/metrics").status_code == 401
        assert httpx.get(server.url + "/health").status_code == httpx.get(server.url + "/").status_code == 200


def test_the_openai_client(server, encoder):
    openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="any")
    found = client.embeddings.create(model="small", input=TEXTS)
    np.testing.assert_array_equal(
        np.array([entry.embedding for entry in found.data], np.float32), encoder.encode(TEXTS)
    )
    short = client.embeddings.create(model="small", input="a b", dimensions=5, encoding_format="float")
    np.testing.assert_array_equal(
        np.array(short.data[0].embedding, np.float32), encoder.encode("a b", dims=5)
    )
    with pytest.raises(openai.NotFoundError, match="small"):
        client.embeddings.create(model="text-embedding-3-small", input="a")
    assert [model.id for model in client.models.list()] == ["small"]


def test_the_langchain_client(server, encoder):
    langchain = pytest.importorskip("langchain_openai", reason="not installed: pip install langchain-openai")
    given = {"base_url": server.url + "/v1", "api_key": "any", "model": "small"}
    client = langchain.OpenAIEmbeddings(**given, check_embedding_ctx_length=False)
    np.testing.assert_array_equal(np.array(client.embed_documents(TEXTS), np.float32), encoder.encode(TEXTS))
    np.testing.assert_array_equal(np.array(client.embed_query("a b"), np.float32), encoder.encode("a b"))


def test_the_chroma_client(server, encoder, tmp_path):
    chromadb = pytest.importorskip("chromadb", reason="not installed: pip install chromadb openai")
    from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction

    function = OpenAIEmbeddingFunction(api_key="any", api_base=server.url + "/v1", model_name="small")
    client = chromadb.PersistentClient(str(tmp_path))
    collection = client.create_collection(
        "texts", embedding_function=function, metadata={"hnsw:space": "cosine"}
    )
    texts = list(dict.fromkeys(text for text in random_texts(9, 20) if text))
    collection.add(ids=[str(i) for i in range(len(texts))], documents=texts)
    found = collection.query(query_texts=[texts[3]], n_results=1)
    assert found["documents"] == [[texts[3]]]
