"""The end of a run: its pictures, the card of its model, where its accuracy goes, and its report."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from hccs.conversion.card import write_card
from hccs.conversion.report import figures
from hccs.conversion.report.conversion import Conversion
from hccs.conversion.report.where import NUMBERS, where
from hccs.conversion.report.write import write_report
from hccs.conversion.runs.processes import state
from hccs.errors import HccsError

EXAMPLES = 64
"""Dev examples that each operator is accounted for on; `hccs where` takes more."""


def finish(folder: str | Path, say: Callable[[str], None] = print) -> Path:
    """Write what people look at into a finished run's folder; returns the report's path.

    Where accuracy goes is measured after a training, beside which it takes no time.
    """
    place = Path(folder)
    path = place / "report.html"
    if state().is_main_process:
        run = Conversion(place)
        trained = run.settings.get("retraining") is not None
        if run.score("whole") is not None and trained and not (place / NUMBERS).exists():
            say("where accuracy goes …")
            try:
                where(place, examples=EXAMPLES)
            except HccsError as error:  # a family without such an account has its report all the same
                say(f"  not known: {error}")
        if importlib.util.find_spec("matplotlib") is not None:
            figures.accuracy_figure(run.stages, place / "accuracy.png")
            figures.heads_figure(run.heads, place / "heads.png")
        write_card(run)
        path = write_report(place)
    state().wait_for_everyone()
    return path
