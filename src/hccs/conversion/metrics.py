"""How well a model does on a task: named metrics, and functions of the user's own. Higher is better."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.conversion.data.problems import IGNORED, RERANK, VALUES
from hccs.errors import DataError, ParameterError

Function = Callable[["NDArray[Any]", "NDArray[Any]"], float]


@dataclass(frozen=True)
class Metric:
    """A name and a function of logits and labels.

    Logits are [examples, labels]; a regression's are [examples], those of tokens [labelled tokens, labels].
    """

    name: str
    function: Function

    def __call__(self, logits: Any, labels: Any) -> float:
        """The score of a model's logits, as it returned them, for a data set's labels."""
        outputs, wanted = _arrays(logits, labels)
        try:
            score = float(self.function(outputs, wanted))
        except Exception as error:  # whatever a function of the user's own raises
            raise ParameterError(
                f"metric {self.name} to return a number for logits {outputs.shape} and labels {wanted.shape}",
                f"{type(error).__name__}: {error}",
                "It is called with two NumPy arrays.",
            ) from error
        if not np.isfinite(score):
            raise DataError(
                f"a finite {self.name}", str(score), "Are all labels, or all the model's answers, the same?"
            )
        return score


def _arrays(logits: Any, labels: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    outputs, wanted = np.asarray(logits.cpu()), np.asarray(labels.cpu())
    if outputs.ndim == 3:
        counted = wanted != IGNORED
        return outputs[:, : wanted.shape[1]][counted], wanted[counted]
    return (outputs[:, 0] if outputs.shape[1] == 1 else outputs), wanted


def accuracy(logits: NDArray[Any], labels: NDArray[Any]) -> float:
    """The share of labels that have the largest logit."""
    return int((logits.argmax(-1) == labels).sum()) / len(labels)


def f1(logits: NDArray[Any], labels: NDArray[Any]) -> float:
    """F1 of the second of two labels; with more labels the mean over those that occur."""
    chosen, count = logits.argmax(-1), logits.shape[-1]
    scores = []
    for label in [1] if count == 2 else sorted({*labels.tolist(), *chosen.tolist()}):
        found = int(((chosen == label) & (labels == label)).sum())
        either = int((chosen == label).sum() + (labels == label).sum())
        scores.append(2 * found / either if either else 0.0)
    return float(np.mean(scores))


def matthews(logits: NDArray[Any], labels: NDArray[Any]) -> float:
    """Matthews' correlation of chosen and given labels; 0 where either is constant."""
    given, chosen = (np.eye(logits.shape[-1])[part] for part in (labels, logits.argmax(-1)))
    given, chosen = given - given.mean(0), chosen - chosen.mean(0)
    power = float((given**2).sum() * (chosen**2).sum())
    return float((given * chosen).sum()) / power**0.5 if power else 0.0


def pearson(values: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Pearson's correlation; 0 where the model always answers the same."""
    x, y = (part.astype(np.float64) - part.astype(np.float64).mean() for part in (values, wanted))
    power = float((x**2).sum() * (y**2).sum())
    return float((x * y).sum()) / power**0.5 if power else 0.0


def spearman(values: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Pearson's correlation of ranks; equal values share theirs."""
    return pearson(_ranks(values), _ranks(wanted))


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(count) - (count - 1) / 2)[group]
    return ranks


def kendall(values: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Kendall's tau-b: how much more often two examples are in the same order than in the other one.

    >>> round(kendall(np.array([1, 2, 4, 3]), np.array([1, 2, 3, 4])), 4)
    0.6667
    """
    total, powers = 0.0, [0.0, 0.0]
    for start in range(0, len(values), _ROWS):  # signs of all pairs at once would not fit in memory
        rows = slice(start, start + _ROWS)
        a, b = (np.sign(np.subtract.outer(part[rows], part)).astype(np.int8) for part in (values, wanted))
        total += float(np.einsum("ij,ij->", a, b, dtype=np.int64))
        powers = [power + float(np.count_nonzero(part)) for power, part in zip(powers, (a, b), strict=True)]
    return total / (powers[0] * powers[1]) ** 0.5 if all(powers) else 0.0


_ROWS = 512

_OF_LABELS: dict[str, Function] = {"accuracy": accuracy, "f1": f1, "matthews": matthews}
_OF_VALUES: dict[str, Function] = {"pearson": pearson, "spearman": spearman, "kendall": kendall}
_OF_ORDER: dict[str, Function] = {"kendall": kendall, "pearson": pearson, "spearman": spearman}

ACCURACY = Metric("accuracy", accuracy)


def metric_for(problem: str, wanted: str | Function | None = None) -> Metric:
    """The metric for a name, for `module:function`, or for a function; by default the problem's first.

    >>> metric_for("regression").name
    'pearson'
    """
    named = _OF_ORDER if problem == RERANK else _OF_VALUES if problem in VALUES else _OF_LABELS
    wanted = wanted or next(iter(named))
    if not isinstance(wanted, str):
        return Metric(getattr(wanted, "__name__", type(wanted).__name__), wanted)
    if wanted in named:
        return Metric(wanted, named[wanted])
    module, colon, function = wanted.partition(":")
    if not colon:
        raise ParameterError(
            f"a metric for {problem} among {', '.join(named)}",
            repr(wanted),
            "A function of your own is MODULE:FUNCTION.",
        )
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ParameterError(
            f"a function {function} in a module {module}",
            str(error),
            "Python must be able to import it; in Python pass the function itself as `metric`.",
        ) from error
    return Metric(function, found)


def agreement_for(problem: str) -> Metric:
    """The share of a model's answers that are the float model's, or the correlation of values with them."""
    return Metric("agreement", metric_for(problem).function)


def spelled(wanted: str | Function | None) -> str:
    """The name under which a run notes its metric."""
    if wanted is None or isinstance(wanted, str):
        return wanted or ""
    return f"{getattr(wanted, '__module__', '')}:{getattr(wanted, '__qualname__', type(wanted).__name__)}"
