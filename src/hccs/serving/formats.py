"""What the routes read and write: OpenAI's embeddings, and ranks and labels of text-embeddings-inference."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from starlette.responses import Response

from hccs.errors import HccsError
from hccs.text.answers import Classifier, relevance
from hccs.text.encoder import as_dtype
from hccs.text.text_model import Answers

MOST_TEXTS = 2048
"""Texts of a request."""

MOST_CHARACTERS = 200_000
"""Characters of a text: a tokenizer reads all of it before it is cut."""

_KINDS = {400: "Validation", 401: "Unauthorized", 413: "Validation", 424: "Backend", 429: "Overloaded"}


class Refused(HccsError):
    """A request that is refused with a status of its own."""

    def __init__(self, status: int, expected: str, got: str, hint: str) -> None:
        super().__init__(expected, got, hint)
        self.status = status


@dataclass(frozen=True)
class Asked:
    """A request: its texts or pairs as the model reads them, and how the answer is to be written."""

    texts: list[Any]
    body: dict[str, Any]
    dims: int | None = None

    @property
    def truncate(self) -> Any:
        return self.body.get("truncate")


Format = tuple[Callable[[dict[str, Any]], Asked], Callable[[Asked, Answers], Any]]


def refusal(path: str, status: int, message: str) -> Response:
    """An error as the route's clients expect it: OpenAI's, or that of text-embeddings-inference."""
    if path.startswith("/v1/"):
        kind = "invalid_request_error" if status < 500 else "server_error"
        content: Any = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    else:
        content = {"error": message, "error_type": _KINDS.get(status, "Backend")}
    headers = {"Connection": "close"} if status in (408, 413) else None  # the rest of the body is not read
    return Response(orjson.dumps(content), status, headers, "application/json")


def embeddings(encoder: Any, name: str) -> Format:
    """`/v1/embeddings` of OpenAI: floats, or base64 of little-endian float32."""

    def read(body: dict[str, Any]) -> Asked:
        _known(body, "encoding_format", ("float", "base64"))
        if body.get("model", name) != name:
            raise Refused(404, f"the model served here, {name}", _shown(body["model"]), "Ask for that one.")
        dims = body.get("dimensions")
        if dims is not None and (type(dims) is not int or not 1 <= dims <= encoder.dims):
            raise Refused(400, f"dimensions from 1 to {encoder.dims}", _shown(dims), "Leave it out for all.")
        given = body.get("input")
        texts = _texts("input", [given] if isinstance(given, str) else given)
        prefix = encoder.prefix(None)
        return Asked([prefix + text for text in texts] if prefix else texts, body, dims)

    def write(asked: Asked, found: Answers) -> Any:
        rows = as_dtype(found.rows, "float32")
        if asked.body.get("encoding_format") == "base64":
            little = rows.astype("<f4", copy=False)
            listed: list[Any] = [base64.b64encode(row.tobytes()).decode() for row in little]
        else:
            listed = list(rows)
        tokens = int(found.tokens.sum())
        return {
            "object": "list",
            "data": [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(listed)],
            "model": name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    return read, write


def rerank(model: Any) -> Format:
    """`/rerank` of text-embeddings-inference: texts by their relevance to a query, best first."""

    def read(body: dict[str, Any]) -> Asked:
        for flag in ("raw_scores", "return_text", "truncate"):
            _known(body, flag, (False, True))
        if len(model.model.labels) > 2:
            raise Refused(
                424, "a model with one or two outputs", str(len(model.model.labels)), "Use /classify."
            )
        (query,) = _texts("query", [body.get("query")])
        return Asked([(query, text) for text in _texts("texts", body.get("texts"))], body)

    def write(asked: Asked, found: Answers) -> Any:
        scores = relevance(found.rows)
        values = np.float32(scores * model.model.program.score_scale).tolist()
        order = np.argsort(-scores, kind="stable").tolist()
        raw, with_text = asked.body.get("raw_scores"), asked.body.get("return_text")
        return [
            {"index": i, "score": values[i] if raw else _sigmoid(values[i])}
            | ({"text": asked.texts[i][1]} if with_text else {})
            for i in order
        ]

    return read, write


def classify(model: Any) -> Format:
    """Labels of one text, or of a list of texts and pairs: each a list of labels, best first."""

    def read(body: dict[str, Any]) -> Asked:
        for flag in ("raw_scores", "truncate"):
            _known(body, flag, (False, True))
        given = body.get("inputs")
        listed = [given] if isinstance(given, str) else given
        if isinstance(listed, list):
            listed = [entry[0] if isinstance(entry, list) and len(entry) == 1 else entry for entry in listed]
        return Asked(_texts("inputs", listed, pairs=True), body)

    def write(asked: Asked, found: Answers) -> Any:
        assert isinstance(model, Classifier)
        logits = found.rows * model.model.program.score_scale
        if asked.body.get("raw_scores"):
            every = [dict(zip(model.labels, row.tolist(), strict=True)) for row in logits]
        else:
            every = [dict(model.prediction(row).scores) for row in logits]
        answers = [
            [{"label": label, "score": score} for label, score in sorted(s.items(), key=lambda e: -e[1])]
            for s in every
        ]
        return answers[0] if isinstance(asked.body["inputs"], str) else answers

    return read, write


def _texts(name: str, given: Any, *, pairs: bool = False) -> list[Any]:
    wanted = f"{name}: a text or a list of texts" + " and pairs of texts" * pairs
    if not isinstance(given, list):
        raise Refused(400, wanted, _kind(given), "Send strings.")
    if not 1 <= len(given) <= MOST_TEXTS:
        status = 413 if given else 400
        raise Refused(status, f"1 to {MOST_TEXTS} texts in {name}", str(len(given)), "Send several requests.")
    found = []
    for number, text in enumerate(given):
        parts = text if pairs and isinstance(text, list) and len(text) == 2 else [text]
        if not all(isinstance(part, str) for part in parts):
            hint = "Send strings."
            if name == "input" and isinstance(text, int | list):
                hint = "Token ids are another tokenizer's (LangChain: check_embedding_ctx_length=False)."
            raise Refused(400, wanted, f"{_kind(text)} as number {number}", hint)
        if sum(map(len, parts)) > MOST_CHARACTERS:
            expected = f"texts of at most {MOST_CHARACTERS:,} characters"
            raise Refused(413, expected, f"more in number {number} of {name}", "Cut it into passages.")
        found.append(text if isinstance(text, str) else tuple(parts))
    return found


def _known(body: dict[str, Any], name: str, values: tuple[Any, ...]) -> None:
    given = body.get(name)
    if given is not None and (type(given) is not type(values[0]) or given not in values):
        shown = " or ".join(orjson.dumps(value).decode() for value in values)
        raise Refused(400, f"{name}: {shown}", _shown(given), "Leave it out for the first.")


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def _shown(value: Any) -> str:
    return repr(value)[:80]


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))
