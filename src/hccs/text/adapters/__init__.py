"""`hccs.Encoder` with the faces of other libraries: one module each, which needs that library alone."""

from __future__ import annotations

import os
from typing import TypeAlias

from hccs.text.encoder import Encoder

Source: TypeAlias = Encoder | str | os.PathLike[str]
"""An encoder, or where its file lies."""

QUERY = ("query",)
DOCUMENT = ("document", "passage", "corpus")
"""Names of prompts for queries and for what is searched, the first that a model has."""


def encoder_of(source: Source) -> Encoder:
    """The encoder itself, or the one in a file."""
    return source if isinstance(source, Encoder) else Encoder.load(source)


def prompt_for(encoder: Encoder, names: tuple[str, ...]) -> str | None:
    """The first of these prompts that the model has; None, its default, where it has none."""
    return next((name for name in names if name in encoder.settings.prompts), None)
