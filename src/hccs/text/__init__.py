"""Text in, answers out: one file, NumPy and `tokenizers` alone."""

from hccs.program.program import TextSettings
from hccs.text.answers import Classifier, Prediction, Ranked, Reranker, Tag, Tagger
from hccs.text.encoder import Encoder

__all__ = [
    "Classifier",
    "Encoder",
    "Prediction",
    "Ranked",
    "Reranker",
    "Tag",
    "Tagger",
    "TextSettings",
]
