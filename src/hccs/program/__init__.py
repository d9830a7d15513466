"""An integer model as data: a straight list of operators with their constants, its file, and what runs it."""

from hccs.program.model import IntegerModel, Scores
from hccs.program.operators import Program

__all__ = ["IntegerModel", "Program", "Scores"]
