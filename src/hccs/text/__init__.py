"""Text in, answers out: one file, NumPy and `tokenizers` alone."""

from hccs.program.program import TextSettings
from hccs.text.answers import Classifier, Prediction, Ranked, Reranker, Tag, Tagger
from hccs.text.encoder import Encoder
from hccs.text.generator import Generated, Generator

__all__ = [
    "Classifier",
    "Encoder",
    "Generated",
    "Generator",
    "Prediction",
    "Ranked",
    "Reranker",
    "Tag",
    "Tagger",
    "TextSettings",
]
