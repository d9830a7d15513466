"""What a run notes beside its scores: answers on the dev set, how sure a score is, and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hccs.pipeline.intervals import against, interval
from hccs.pipeline.metrics import Metric, flat
from hccs.pipeline.runs.processes import state

FOLDER = "answers"
"""Of a run: the logits of every scored stage on the dev set, and its labels, as NumPy files."""


class Notes:
    """The notes of one run, taken while its stages work."""

    def __init__(self, run: Path, metric: Metric, labels: Any) -> None:
        self.folder, self.metric, self.labels = run / FOLDER, metric, labels

    def answers(self, stage: str, logits: Any) -> None:
        """Keep a stage's answers: logits [examples, labels], of values [examples], or of labelled tokens."""
        if not state().is_main_process:
            return
        outputs, wanted = flat(logits, self.labels)
        self.folder.mkdir(exist_ok=True)
        np.save(self._file("labels"), wanted)
        np.save(self._file(stage), outputs.astype(np.float32))

    def _file(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '_')}.npy"

    def around(self, stage: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A stage's result with the interval of its score, its difference from float, and its warnings."""
        heard: list[str] = []
        with warnings.catch_warnings():
            show = warnings.showwarning

            def listen(message: Warning | str, *where: Any, **options: Any) -> None:
                heard.append(" ".join(str(message).split()))
                show(message, *where, **options)

            warnings.showwarning = listen
            result = work()
        return {**result, **self.uncertainty(stage), **({"warnings": heard} if heard else {})}

    def uncertainty(self, stage: str) -> dict[str, Any]:
        """`interval`, and `against_float` with the answers that changed; nothing without answers."""
        if not self._file(stage).exists() or not self._file("float").exists():
            return {}
        logits, base, labels = (np.load(self._file(name)) for name in (stage, "float", "labels"))
        ends = interval(self.metric, logits, labels)
        found: dict[str, Any] = {} if ends is None else {"interval": list(ends)}
        if stage != "float" and (beside := against(self.metric, logits, base, labels)) is not None:
            found["against_float"] = asdict(beside)
        return found
