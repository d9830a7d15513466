"""An encoder with the faces of other libraries, each tried by that library where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")

import hccs
from hccs.errors import FileError, ParameterError
from hccs.text.adapters.fastembed import TextEmbedding
from hccs.text.adapters.sentence_transformers import SentenceTransformer
from tests.text.models import embedder, random_texts, wide_embedder

TEXTS = random_texts(11, 30)
OUTSIDE_WARNINGS = pytest.mark.filterwarnings("ignore")
"""Other libraries' warnings about their own dependencies are no failures of ours."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapters") / "small.hccs"
    wide_embedder().save(path)
    return path


@pytest.fixture(scope="module")
def encoder(path: Path) -> hccs.Encoder:
    return hccs.Encoder.load(path)


def test_sentence_transformers_arrays(path: Path, encoder: hccs.Encoder) -> None:
    model = SentenceTransformer(path)
    assert np.array_equal(model.encode(TEXTS), encoder.encode(TEXTS))
    assert np.array_equal(model.encode(TEXTS[3]), encoder.encode(TEXTS[3]))
    assert np.array_equal(model.encode(TEXTS, precision="int8"), encoder.encode(TEXTS, out="int8"))
    named = encoder.encode(TEXTS, prompt="query")
    assert np.array_equal(model.encode(TEXTS, prompt_name="query", batch_size=2), named)
    assert np.array_equal(model.encode(TEXTS, prompt="query : "), named)
    assert np.array_equal(model.encode(TEXTS[0], prompt="query : "), named[0])
    assert np.array_equal(model.encode_query(TEXTS), named)
    assert np.array_equal(model.encode_document(TEXTS), encoder.encode(TEXTS, prompt="passage"))
    short = SentenceTransformer(encoder, truncate_dim=5)
    assert np.array_equal(short.encode(TEXTS), encoder.encode(TEXTS, dims=5))
    assert (short.get_sentence_embedding_dimension(), short.get_max_seq_length()) == (5, encoder.max_length)
    assert (model.get_embedding_dimension(), model.max_seq_length) == (encoder.dims, encoder.max_length)
    assert [*model.prompts] == ["query", "passage"] and model.similarity_fn_name == "cosine"
    for options in ({"output_value": "token_embeddings"}, {"precision": "ubinary"}):
        with pytest.raises(ParameterError, match="sentence embeddings in"):
            model.encode(TEXTS, **options)


def test_sentence_transformers_tensors(encoder: hccs.Encoder) -> None:
    torch = pytest.importorskip("torch")
    model, expected = SentenceTransformer(encoder), torch.from_numpy(encoder.encode(TEXTS))
    assert torch.equal(model.encode(TEXTS, convert_to_tensor=True, device="cpu"), expected)
    assert torch.equal(torch.stack(model.encode(TEXTS, convert_to_numpy=False)), expected)
    assert torch.equal(model.encode(TEXTS[2], convert_to_numpy=False), expected[2])
    cosines = model.similarity(expected, model.encode(TEXTS))
    assert torch.allclose(cosines, torch.from_numpy(encoder.similarity(expected, expected)))


@OUTSIDE_WARNINGS
def test_sentence_transformers_search_and_evaluate(encoder: hccs.Encoder) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = SentenceTransformer(encoder)
    corpus = model.encode(TEXTS, convert_to_tensor=True)
    hits = library.util.semantic_search(model.encode(TEXTS[4:6], convert_to_tensor=True), corpus, top_k=2)
    assert [hit[0]["score"] for hit in hits] == pytest.approx([1, 1])
    assert [TEXTS[hit[0]["corpus_id"]] for hit in hits] == TEXTS[4:6]
    evaluation = pytest.importorskip("sentence_transformers.evaluation")
    first, second = TEXTS[:15], TEXTS[15:]
    cosines = encoder.similarity(encoder.encode(first), encoder.encode(second)).diagonal()
    evaluator = evaluation.EmbeddingSimilarityEvaluator(first, second, cosines.tolist(), name="own")
    found = evaluator(model)
    assert found["own_pearson_cosine"] == pytest.approx(1) and found["own_spearman_cosine"] > 0.999
    assert model.model_card_data.metrics == {"own": found}


@OUTSIDE_WARNINGS
def test_langchain(path: Path, encoder: hccs.Encoder) -> None:
    pytest.importorskip("langchain_core.embeddings")
    from langchain_core.embeddings import Embeddings

    from hccs.text.adapters.langchain import HccsEmbeddings

    model = HccsEmbeddings(path)
    assert isinstance(model, Embeddings)
    documents, query = encoder.encode(TEXTS, prompt="passage"), encoder.encode("the cat", prompt="query")
    assert model.embed_documents(TEXTS) == documents.tolist()
    assert model.embed_query("the cat") == query.tolist()
    assert asyncio.run(model.aembed_documents(TEXTS)) == documents.tolist()
    assert asyncio.run(model.aembed_query("the cat")) == query.tolist()
    assert len(HccsEmbeddings(encoder, dims=4).embed_query("a")) == 4
    plain = hccs.Encoder(embedder(0))
    assert HccsEmbeddings(plain).embed_query("a") == plain.encode("a").tolist()


@OUTSIDE_WARNINGS
def test_langchain_vector_stores(encoder: hccs.Encoder) -> None:
    pytest.importorskip("langsmith", exc_type=ImportError)  # what the stores need, and embeddings do not
    stores = pytest.importorskip("langchain_core.vectorstores", exc_type=ImportError)
    from hccs.text.adapters.langchain import HccsEmbeddings

    store = stores.InMemoryVectorStore(HccsEmbeddings(encoder))
    store.add_texts(TEXTS)
    found = [document.page_content for document in store.similarity_search("the cat", k=3)]
    cosines = encoder.similarity(
        encoder.encode("the cat", prompt="query"), encoder.encode(TEXTS, prompt="passage")
    )
    assert found == [TEXTS[i] for i in np.argsort(-cosines[0], kind="stable")[:3]]


@OUTSIDE_WARNINGS
def test_llama_index(path: Path, encoder: hccs.Encoder) -> None:
    pytest.importorskip("llama_index.core.base.embeddings.base", exc_type=ImportError)
    from llama_index.core.base.embeddings.base import BaseEmbedding

    from hccs.text.adapters.llama_index import HccsEmbedding

    model = HccsEmbedding(path)
    assert isinstance(model, BaseEmbedding) and model.class_name() == "HccsEmbedding"
    documents, query = encoder.encode(TEXTS, prompt="passage"), encoder.encode("the cat", prompt="query")
    assert model.get_text_embedding_batch(TEXTS) == documents.tolist()
    assert model.get_text_embedding(TEXTS[0]) == documents[0].tolist()
    assert model.get_query_embedding("the cat") == query.tolist()
    assert asyncio.run(model.aget_query_embedding("the cat")) == query.tolist()
    assert asyncio.run(model.aget_text_embedding(TEXTS[0])) == documents[0].tolist()
    assert asyncio.run(model.aget_text_embedding_batch(TEXTS)) == documents.tolist()
    assert model.model_name == f"hccs-{encoder.fingerprint[:16]}"
    assert len(HccsEmbedding(encoder, dims=4, embed_batch_size=3).get_query_embedding("a")) == 4


@OUTSIDE_WARNINGS
def test_chroma(path: Path, encoder: hccs.Encoder) -> None:
    pytest.importorskip("chromadb.api.types", exc_type=ImportError)
    from chromadb.utils.embedding_functions import known_embedding_functions

    from hccs.text.adapters.chroma import HccsEmbeddingFunction

    model = HccsEmbeddingFunction(path)
    assert known_embedding_functions["hccs"] is HccsEmbeddingFunction
    assert np.array_equal(model(TEXTS), encoder.encode(TEXTS, prompt="passage"))
    assert np.array_equal(model.embed_query(["the cat"])[0], encoder.encode("the cat", prompt="query"))
    config = model.get_config()
    assert np.array_equal(HccsEmbeddingFunction.build_from_config(config)(TEXTS), model(TEXTS))
    assert (model.name(), model.default_space()) == ("hccs", "cosine")
    with pytest.raises(FileError, match="fingerprint 0123"):
        HccsEmbeddingFunction.build_from_config({**config, "fingerprint": "0123"})
    model.validate_config_update(config, {**config, "model": "elsewhere"})
    with pytest.raises(hccs.HccsError, match="own model"):
        model.validate_config_update(config, {**config, "dims": 3})


@OUTSIDE_WARNINGS
def test_a_chroma_collection_finds_what_was_added(path: Path, encoder: hccs.Encoder) -> None:
    chromadb = pytest.importorskip("chromadb", exc_type=ImportError)
    from hccs.text.adapters.chroma import HccsEmbeddingFunction

    texts = [*dict.fromkeys(TEXTS)]
    collection = chromadb.EphemeralClient().create_collection(
        "texts", embedding_function=HccsEmbeddingFunction(path)
    )
    collection.add(ids=[str(i) for i in range(len(texts))], documents=texts)
    found = collection.query(query_texts=["the cat"], n_results=1)
    cosines = encoder.similarity(
        encoder.encode("the cat", prompt="query"), encoder.encode(texts, prompt="passage")
    )
    assert found["documents"] == [[texts[int(cosines.argmax())]]]


def test_fastembed(path: Path, encoder: hccs.Encoder) -> None:
    model = TextEmbedding(path)
    found = model.embed(text for text in TEXTS)
    assert isinstance(found, Iterator) and np.array_equal(list(found), encoder.encode(TEXTS))
    assert np.array_equal(list(model.embed("a")), encoder.encode(["a"]))
    assert np.array_equal(list(model.query_embed("a")), encoder.encode(["a"], prompt="query"))
    assert np.array_equal(list(model.passage_embed(TEXTS)), encoder.encode(TEXTS, prompt="passage"))
    assert TextEmbedding(encoder, dims=3).embedding_size == 3
    read: list[str] = []
    first = next(
        iter(TextEmbedding(encoder, dims=3).embed((read.append(t) or t for t in TEXTS), batch_size=4))
    )
    assert np.array_equal(first, encoder.encode(TEXTS[0], dims=3)) and read == TEXTS[:4]
