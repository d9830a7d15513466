"""How faithful an integer model is to the float model it was made from: measures, and the certificate."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import hccs
from hccs.conversion.data.reading import read_table, read_text
from hccs.conversion.metrics import kendall, spearman
from hccs.conversion.models import predictions
from hccs.conversion.runs.record import read_json, typed, write_json
from hccs.errors import DataError

if TYPE_CHECKING:
    from hccs.conversion.converted import Converted

    Vectors = NDArray[np.float32]
    Encode = Callable[[Sequence[str]], Vectors]

FILE = "certificate.json"
"""The file's name in the folder of a run."""

NEAREST = 10
"""Neighbours of a text, and results of a query, that are compared."""

BINS = 24

PACKAGES = ("numpy", "torch", "transformers", "tokenizers")


@dataclass(frozen=True)
class WorstText:
    text: str
    cosine: float


@dataclass(frozen=True)
class Cosines:
    """Cosines of float and integer vectors of the same texts."""

    texts: int
    mean: float
    min: float
    percentiles: dict[str, float]
    """The 1st, 5th and 50th: so many per cent of the texts lie below."""
    overlap: float
    """The share of every text's 10 nearest neighbours among the others that both models agree on."""
    histogram: tuple[tuple[float, int], ...]
    """The lower end of every bin, and the texts in it; bins are equally wide and end at 1."""
    worst: tuple[WorstText, ...]


@dataclass(frozen=True)
class PairScores:
    """Spearman's correlation of cosines with scores that people gave to pairs, times 100."""

    pairs: int
    float_model: float
    integer_model: float


@dataclass(frozen=True)
class RetrievalScores:
    """nDCG@10 times 100 over queries with relevant documents, and the share of equal results."""

    documents: int
    queries: int
    float_model: float
    integer_model: float
    overlap: float


@dataclass(frozen=True)
class OrderScores:
    """How far a reranker orders pairs as its float model does."""

    pairs: int
    kendall: float
    """Kendall's tau-b over all pairs of pairs."""
    queries: int
    """First texts with several second ones."""
    top1: float | None
    """The share of them with the same best second text; None where there are none."""


@dataclass(frozen=True)
class Certificate:
    """What a converted model promises, and where that was measured."""

    model: str
    problem: str
    fingerprint: str
    held_back: Cosines | None = None
    pairs: PairScores | None = None
    retrieval: RetrievalScores | None = None
    order: OrderScores | None = None
    versions: dict[str, str] | None = None

    def rows(self) -> list[tuple[str, str, str]]:
        """What was measured, of the float model and of the integer model."""
        found: list[tuple[str, str, str]] = []
        if self.held_back is not None:
            held = self.held_back
            found.append((f"cosine to float, mean of {held.texts} held-back texts", "1", f"{held.mean:.4f}"))
            found.append(("smallest cosine", "1", f"{held.min:.4f}"))
            for name, value in held.percentiles.items():
                found.append((f"cosine, percentile {name}", "1", f"{value:.4f}"))
            found.append((f"equal among {NEAREST} nearest neighbours", "", f"{100 * held.overlap:.1f} %"))
        if self.pairs is not None:
            pairs = self.pairs
            found.append((f"Spearman x 100, {pairs.pairs} pairs", *_two(pairs)))
        if self.retrieval is not None:
            queries = self.retrieval
            found.append((f"nDCG@{NEAREST} x 100, {queries.queries} queries", *_two(queries)))
            found.append((f"equal among {NEAREST} results", "", f"{100 * queries.overlap:.1f} %"))
        if self.order is not None:
            order = self.order
            found.append((f"Kendall's tau to float, {order.pairs} pairs", "1", f"{order.kendall:.4f}"))
            if order.top1 is not None:
                found.append((f"same best text, {order.queries} queries", "", f"{100 * order.top1:.1f} %"))
        return found


def _two(scores: PairScores | RetrievalScores) -> tuple[str, str]:
    return f"{scores.float_model:.2f}", f"{scores.integer_model:.2f}"


def versions() -> dict[str, str]:
    """Versions of what a conversion was made with."""
    found = {"hccs": hccs.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def mean_cosine(these: Vectors, those: Vectors) -> float:
    return float((these.astype(np.float64) * those).sum(1).mean())


def compare_vectors(texts: Sequence[str], wanted: Vectors, found: Vectors, worst: int = 20) -> Cosines:
    """How close the unit vectors of texts are to the float model's."""
    cosines = (wanted.astype(np.float64) * found).sum(1) / np.linalg.norm(found.astype(np.float64), axis=1)
    cosines = np.minimum(cosines, 1.0)
    low = float(cosines.min())
    counts, ends = np.histogram(cosines, BINS, (low, 1.0) if low < 1 else (0.0, 1.0))
    order = np.argsort(cosines, kind="stable")[:worst]
    return Cosines(
        texts=len(texts),
        mean=float(cosines.mean()),
        min=low,
        percentiles={str(p): float(np.percentile(cosines, p)) for p in (1, 5, 50)},
        overlap=_overlap(_neighbours(wanted), _neighbours(found)),
        histogram=tuple((float(end), int(count)) for end, count in zip(ends, counts, strict=False)),
        worst=tuple(WorstText(" ".join(texts[i].split())[:160], float(cosines[i])) for i in order),
    )


def _neighbours(vectors: Vectors) -> NDArray[np.int64]:
    """The nearest other texts of every text."""
    similar = vectors @ vectors.T
    np.fill_diagonal(similar, -np.inf)
    return _best(similar, min(NEAREST, max(len(vectors) - 1, 1)))


def _best(similar: NDArray[Any], count: int) -> NDArray[np.int64]:
    """The places of the largest in every row, the first of equal ones first."""
    return np.argsort(-similar, axis=1, kind="stable")[:, :count]


def _overlap(these: NDArray[np.int64], those: NDArray[np.int64]) -> float:
    return float(np.mean([len({*a} & {*b}) / len(a) for a, b in zip(these, those, strict=True)]))


def read_pairs(path: str) -> tuple[list[str], list[str], NDArray[np.float64]]:
    """The columns sentence1, sentence2 and score of a table."""
    columns = ("sentence1", "sentence2", "score")
    table = read_table(
        Path(path), columns, if_missing="Check --pairs.", if_other_columns=f"Name them {', '.join(columns)}."
    )
    first, second, scores = (table.cells(column) for column in columns)
    try:
        return first, second, np.array([float(score) for score in scores])
    except ValueError as error:
        raise DataError(f"numbers in column score of {path}", str(error), "Correct the row.") from error


def score_pairs(path: str, float_model: Encode, integer_model: Encode) -> PairScores:
    """Spearman's correlation of both models with the scores of a file of pairs."""
    first, second, scores = read_pairs(path)

    def correlation(encode: Encode) -> float:
        vectors = encode([*first, *second]).astype(np.float64)
        cosines = (vectors[: len(first)] * vectors[len(first) :]).sum(1)
        return 100 * spearman(cosines, scores)

    return PairScores(len(first), correlation(float_model), correlation(integer_model))


@dataclass(frozen=True)
class Retrieval:
    """Documents, queries, and by query the grades of relevant documents, all by place."""

    documents: list[str]
    queries: list[str]
    grades: list[dict[int, float]]

    @classmethod
    def of(cls, folder: str) -> Retrieval:
        """documents.tsv (id, title, text), queries.tsv (id, text) and relevance.txt in TREC's form."""
        place = Path(folder)

        def rows(name: str, *columns: str) -> list[list[str]]:
            table = read_table(
                place / name, columns, if_missing="Check --retrieval.", if_other_columns="Name them so."
            )
            return [list(row) for row in zip(*(table.cells(column) for column in columns), strict=True)]

        documents, queries = rows("documents.tsv", "id", "title", "text"), rows("queries.tsv", "id", "text")
        numbers = {row[0]: number for number, row in enumerate(documents)}
        grades: dict[str, dict[int, float]] = {row[0]: {} for row in queries}
        path = place / "relevance.txt"
        for number, line in enumerate(read_text(path, "Check --retrieval.").splitlines(), 1):
            words = line.split()
            if not words:
                continue
            try:
                query, _, document, grade = words
                grades[query][numbers[document]] = float(grade)
            except (ValueError, KeyError) as error:
                raise DataError(
                    f"query, 0, document and grade in every line of {path}, by ids of the tables",
                    f"{line!r} in line {number}",
                    "Correct the line.",
                ) from error
        # A text that begins with its title says it once.
        texts = [text if text.startswith(title) else f"{title} {text}" for _, title, text in documents]
        asked = [(text, grades[name]) for name, text in queries if any(g > 0 for g in grades[name].values())]
        if not asked:
            raise DataError(f"queries with relevant documents in {folder}", "none", "Check --retrieval.")
        return cls(texts, [text for text, _ in asked], [grade for _, grade in asked])

    def results(self, encode: Encode) -> NDArray[np.int64]:
        return _best(encode(self.queries) @ encode(self.documents).T, NEAREST)

    def ndcg(self, results: NDArray[np.int64]) -> float:
        """The mean nDCG@10, times 100; gains are the grades."""
        discounts = 1 / np.log2(np.arange(NEAREST) + 2)
        found = []
        for row, grades in zip(results.tolist(), self.grades, strict=True):
            best = sorted((g for g in grades.values() if g > 0), reverse=True)[:NEAREST]
            gain = sum(max(grades.get(d, 0.0), 0.0) * w for d, w in zip(row, discounts, strict=False))
            found.append(gain / sum(g * w for g, w in zip(best, discounts, strict=False)))
        return 100 * float(np.mean(found))


def score_retrieval(folder: str, float_model: Encode, integer_model: Encode) -> RetrievalScores:
    """nDCG@10 of both models on a collection, and how many of their results are equal."""
    collection = Retrieval.of(folder)
    theirs, ours = (collection.results(encode) for encode in (float_model, integer_model))
    return RetrievalScores(
        len(collection.documents),
        len(collection.queries),
        collection.ndcg(theirs),
        collection.ndcg(ours),
        _overlap(theirs, ours),
    )


def compare_order(firsts: Sequence[str], wanted: NDArray[Any], found: NDArray[Any]) -> OrderScores:
    """How far a reranker's scores of pairs order them as the float model's do."""
    groups: dict[str, list[int]] = {}
    for place, first in enumerate(firsts):
        groups.setdefault(first, []).append(place)
    several = [places for places in groups.values() if len(places) > 1]
    same = [int(wanted[places].argmax() == found[places].argmax()) for places in several]
    return OrderScores(
        len(firsts), kendall(found, wanted), len(several), float(np.mean(same)) if same else None
    )


def certify_reranker(run: Converted) -> Certificate:
    """Compare a converted reranker with its float model on its dev pairs, and write that into its folder."""
    from hccs.conversion.data import tasks
    from hccs.conversion.evaluate import integer_logits

    model, dev = run.integer_model, run.examples()
    wanted = predictions(run.float_model(), dev)[:, 0].cpu().numpy()
    texts = tasks.load(run.settings.task, run.settings.data).dev.texts
    found = Certificate(
        model=run.name,
        problem=run.settings.task.problem,
        fingerprint=model.fingerprint(),
        order=compare_order([pair[0] for pair in texts], wanted, integer_logits(model, dev)[:, 0].numpy()),
        versions=versions(),
    )
    write_json(run.folder / FILE, asdict(found))
    return found


def read_certificate(folder: Path) -> Certificate | None:
    """The certificate in a run's folder, where it has one."""
    path, hint = folder / FILE, "Delete that file and finish the run with hccs convert."
    return typed(Certificate, read_json(path, hint), path, hint) if path.exists() else None
