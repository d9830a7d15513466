"""An integer model as data: a straight list of operators with their constants, its plan, and its file."""

from hccs.program.fingerprints import fingerprint
from hccs.program.model import IntegerModel, Scores
from hccs.program.program import Program, TextSettings

__all__ = ["IntegerModel", "Program", "Scores", "TextSettings", "fingerprint"]
