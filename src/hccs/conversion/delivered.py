"""`Converted`: a finished run in Python, with what it found, what it made, and how it shows itself."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hccs._html.elements import table, tag
from hccs._html.notebook import TABLE, framed
from hccs.conversion.report.conversion import STEPS, Conversion, sentence
from hccs.conversion.report.page import signed
from hccs.conversion.report.write import NAME, write_report
from hccs.conversion.whole import load_whole
from hccs.errors import FileError
from hccs.numbers.table import CONVERTED, ParamTable
from hccs.program import IntegerModel
from hccs.program.files import IN_RUN

DELIVERED = ("model", IN_RUN, CONVERTED, "model.hccs.json", NAME)
"""What of a run is worth taking elsewhere, where it is there."""


@dataclass(frozen=True)
class Converted:
    """A finished run: what every stage found, and where the models are."""

    folder: Path
    results: dict[str, Any]

    @property
    def model(self) -> Path:
        """The converted transformers model and its tokenizer."""
        return self.folder / "model"

    @property
    def whole(self) -> IntegerModel:
        """The model all in integers; where it has no such form the refusal says why."""
        return load_whole(self.folder)

    @property
    def scores(self) -> dict[str, float]:
        """The dev score of every stage that has one, in the order of stages."""
        stages = self.results["stages"]
        metric = stages["float"]["metric"]
        return {name: stage[metric] for name, stage in stages.items() if metric in stage}

    @property
    def tables(self) -> dict[str, ParamTable]:
        """The parameters as "calibrated" and as "delivered"."""
        files = {"calibrated": "table.hccs.safetensors", "delivered": CONVERTED}
        return {name: ParamTable.load(self.folder / file) for name, file in files.items()}

    @property
    def figures(self) -> dict[str, Path]:
        """The pictures of the run by name; none where matplotlib is not installed."""
        return {path.stem: path for path in sorted(self.folder.glob("*.png"))}

    @property
    def report(self) -> Path:
        """The report: one HTML file, written anew where it is gone."""
        path = self.folder / NAME
        return path if path.exists() else write_report(self.folder)

    @property
    def summary(self) -> str:
        """The run in one sentence."""
        return sentence(Conversion(self.folder))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Copy what is delivered into a new folder: the models, the parameters and the report."""
        target = Path(folder)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise FileError(f"{target} to be a new folder", "one that holds files", "Choose another.")
        target.mkdir(parents=True, exist_ok=True)
        for path in (self.folder / name for name in DELIVERED):
            if path.is_dir():
                shutil.copytree(path, target / path.name)
            elif path.exists():
                shutil.copy2(path, target / path.name)
        return target

    def _repr_html_(self) -> str:
        run = Conversion(self.folder)
        base = run.score("float") or 0.0
        rows = []
        for stage, words in STEPS.items():
            score, ends = run.score(stage), run.ends(stage) if stage in run.stages else None
            if score is None:
                continue
            beside = "" if stage == "float" else signed(100 * (score - base))
            reach = "" if ends is None else f"{run.shown(ends[0])} to {run.shown(ends[1])}"
            rows.append([words, run.shown(score), reach, beside])
        return framed(
            "hccs.convert",
            tag("p", sentence(run)),
            table(["step", run.metric, "95 %", "points"], rows, style=TABLE),
            tag("p", "report: ", tag("code", self.folder / NAME)),
        )
