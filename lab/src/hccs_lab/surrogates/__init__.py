"""Published replacements of softmax behind one interface; `registry` tells how each is used."""

from hccs_lab.surrogates.costs import Costs, PerRow
from hccs_lab.surrogates.registry import get, names
from hccs_lab.surrogates.surrogate import Result, Surrogate

__all__ = ["Costs", "PerRow", "Result", "Surrogate", "get", "names"]
