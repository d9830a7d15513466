"""Published replacements of softmax behind one door; `registry` tells how each is used."""

from hccs.surrogates.costs import Costs, PerRow
from hccs.surrogates.registry import get, names
from hccs.surrogates.surrogate import Result, Surrogate

__all__ = ["Costs", "PerRow", "Result", "Surrogate", "get", "names"]
