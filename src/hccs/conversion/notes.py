"""What a run notes beside its scores: the warnings that a stage gave, for whoever reads the report later."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any


def with_warnings(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A stage's result, with the warnings that it gave as `warnings`; they are shown as ever."""
    heard: list[str] = []
    with warnings.catch_warnings():
        show = warnings.showwarning

        def listen(message: Warning | str, *where: Any, **options: Any) -> None:
            heard.append(" ".join(str(message).split()))
            show(message, *where, **options)

        warnings.showwarning = listen
        result = work()
    return {**result, **({"warnings": heard} if heard else {})}
