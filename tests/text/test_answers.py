"""`Reranker`, `Classifier` and `Tagger`, each beside the model's integers for the same tokens."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from tokenizers import Tokenizer

import hccs
from hccs.errors import DtypeError, ModelError, ParameterError
from hccs.text import Prediction, Ranked, Tag
from hccs.text.answers import spans
from tests.text.models import random_texts, scorer, tokenizer, with_texts

READ = Tokenizer.from_str(tokenizer())
PASSAGES = random_texts(5, 40, most=7)


def scores_of(model, *texts: str):
    """The reference's scores of a text or a pair."""
    encoding = READ.encode(*texts)
    return model([encoding.ids], None, [encoding.type_ids], reference=True).scores[0].astype(np.int64)


@pytest.mark.parametrize("labels", [("relevant",), ("no", "yes")])
@pytest.mark.parametrize("kind", ["rerank", "classify"])
def test_passages_are_ranked_by_the_models_scores(labels, kind) -> None:
    model = with_texts(scorer(labels), kind)
    ranker = hccs.Reranker(model)
    both = [scores_of(model, "the cat", passage) for passage in PASSAGES]
    relevance = [int(s[-1] - s[0]) if len(labels) == 2 else int(s[0]) for s in both]
    order = sorted(range(len(PASSAGES)), key=lambda i: (-relevance[i], i))
    ranked = ranker.rank("the cat", PASSAGES)
    assert [found.index for found in ranked] == order
    assert [found.text for found in ranked] == [PASSAGES[i] for i in order]
    expected = np.array(relevance) * model.program.score_scale
    assert np.array_equal(ranker.scores("the cat", PASSAGES), expected.astype(np.float32))
    assert [found.score for found in ranked] == expected[order].astype(np.float32).tolist()
    assert ranker.rank("the cat", PASSAGES, top_k=3) == ranked[:3] and isinstance(ranked[0], Ranked)
    assert len({relevance[i] for i in order}) > 20


def test_equal_passages_keep_their_order() -> None:
    ranker = hccs.Reranker(with_texts(scorer(("relevant",)), "rerank"))
    assert [found.index for found in ranker.rank("a", ["b c"] * 5)] == [0, 1, 2, 3, 4]
    assert ranker.rank("a", []) == [] and ranker.scores("a", []).shape == (0,)


def test_what_cannot_be_ranked_is_refused() -> None:
    with pytest.raises(ModelError, match=r"3 labels.*hccs\.Classifier"):
        hccs.Reranker(with_texts(scorer(("a", "b", "c")), "classify"))
    ranker = hccs.Reranker(with_texts(scorer(("relevant",)), "rerank"))
    for query, passages in ((None, ["a"]), (["a"], ["a"]), ("a", "a"), ("a", [("a", "b")])):
        with pytest.raises(DtypeError):
            ranker.rank(query, passages)
    for top_k in (0, 1.5, True):
        with pytest.raises(ParameterError, match="top_k"):
            ranker.rank("a", ["b"], top_k=top_k)


def test_labels_come_with_probabilities(tmp_path: Path) -> None:
    model = with_texts(scorer(("x", "y", "z"), seed=20), "classify")
    model.save(tmp_path / "c.hccs")
    classifier = hccs.Classifier.load(tmp_path)
    assert classifier.labels == ("x", "y", "z")
    for text, found in zip(PASSAGES, classifier.predict(PASSAGES, None), strict=True):
        logits = scores_of(model, text) * model.program.score_scale
        shares = dict(zip("xyz", np.exp(logits) / np.exp(logits).sum(), strict=True))
        assert found.label == max(shares, key=shares.__getitem__)
        assert [*found.scores.values()] == sorted(found.scores.values(), reverse=True)
        assert found.scores == pytest.approx(shares) and found.score == found.scores[found.label]
    best = classifier.predict(PASSAGES[0])
    assert isinstance(best, Prediction) and best.scores == {best.label: best.score}
    assert len(classifier.predict(PASSAGES[:1], top_k=2)[0].scores) == 2
    assert classifier.predict([]) == []
    assert pickle.loads(pickle.dumps(classifier)).predict(PASSAGES) == classifier.predict(PASSAGES)
    assert {found.label for found in classifier.predict(PASSAGES)} == {"x", "y", "z"}


def test_pairs_are_classified_with_their_types() -> None:
    model = with_texts(scorer(("x", "y", "z")), "classify")
    pair = hccs.Classifier(model).predict([("the cat", "a b"), "the cat"], None)[0]
    logits = scores_of(model, "the cat", "a b") * model.program.score_scale
    assert [pair.scores[label] for label in "xyz"] == pytest.approx(np.exp(logits) / np.exp(logits).sum())
    with pytest.raises(DtypeError, match="pairs"):
        hccs.Classifier(model).predict([("a", "b", "c")])


def test_one_label_is_a_value() -> None:
    model = with_texts(scorer(("similarity",)), "classify")
    found = hccs.Classifier(model).predict("the cat")
    value = float(scores_of(model, "the cat")[0] * model.program.score_scale)
    assert found == Prediction("similarity", value, {"similarity": value})


LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def test_a_tagger_gives_spans_of_the_models_labels() -> None:
    model = with_texts(scorer(LABELS, per_token=True), "tag")
    tagger = hccs.Tagger(model)
    together = tagger.tag(PASSAGES)
    for text, found in zip(PASSAGES, together, strict=True):
        encoding = READ.encode(text)
        best = model([encoding.ids], reference=True).scores[0].argmax(-1)
        assert found == spans(text, encoding, [LABELS[i] for i in best]) == tagger.tag(text)
        assert all(text[tag.start : tag.end] == tag.text != "" for tag in found)
    assert sum(map(len, together)) > 20 and tagger.tag([]) == []


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("O O O O O", []),
        ("B-PER I-PER O O O", [("The Abc", "PER")]),
        ("B-PER B-PER O O O", [("The", "PER"), ("Abc", "PER")]),
        ("I-PER I-PER O I-PER O", [("The Abc", "PER"), ("cat", "PER")]),
        ("B-PER I-LOC I-LOC O O", [("The", "PER"), ("Abc sat", "LOC")]),
        ("O O O O B-LOC", [(".", "LOC")]),
        ("DET NOUN NOUN O B", [("The", "DET"), ("Abc", "NOUN"), ("sat", "NOUN"), (".", "B")]),
    ],
)
def test_words_merge_into_spans(labels: str, expected: list[tuple[str, str]]) -> None:
    """A word of three pieces takes the label of its first."""
    text = "The Abc sat  cat."
    encoding = READ.encode(text)
    assert encoding.tokens == ["[CLS]", "the", "a", "##b", "##c", "sat", "cat", ".", "[SEP]"]
    the, abc, sat, cat, dot = labels.split()
    found = spans(text, encoding, ["B-LOC", the, abc, "B-LOC", "O", sat, cat, dot, "B-LOC"])
    assert [(tag.text, tag.label) for tag in found] == expected
    assert all(text[tag.start : tag.end] == tag.text for tag in found)


def test_spans_count_characters_and_not_bytes() -> None:
    text = "\u00e9\U0001f600 cat"
    encoding = READ.encode(text)
    found = spans(text, encoding, ["B-X" if token == "cat" else "O" for token in encoding.tokens])
    assert found == [Tag("cat", "X", 3, 6)]
