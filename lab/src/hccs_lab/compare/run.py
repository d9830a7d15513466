"""The comparison itself: every method calibrated on the same rows, measured on others, scored in the model.

A method's results are stages of its own record, `methods/LABEL.json`, written as each is done: an interrupted
comparison goes on where it stopped, more methods can be added later, and its processes (`jobs`) share it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from hccs._progress import track
from hccs.conversion.fingerprints import require_same
from hccs.conversion.models import score
from hccs.conversion.runs.folder import RunFolder
from hccs.conversion.runs.record import StageRecord, read_json, write_json
from hccs.errors import FileError, HccsError, MissingExtraError
from hccs_lab import surrogates
from hccs_lab.compare import steps
from hccs_lab.compare.entries import FLOAT, Entry
from hccs_lab.compare.source import ComparisonSettings, LogitSample, ModelSource, head_size
from hccs_lab.compare.steps import time_forms
from hccs_lab.processes import in_processes

REFUSED = "refused"
"""The stage of a method that cannot serve these logits: its reason."""


class Comparison:
    """One folder of results, and the model and data that they are of."""

    def __init__(
        self, settings: ComparisonSettings, out: str | Path, say: Callable[[str], None] = print
    ) -> None:
        self.settings, self.path, self.say = settings, Path(out), say
        # Read before anything is written: a run on bad input leaves no files.
        self.source = ModelSource(settings)

    @cached_property
    def samples(self) -> tuple[LogitSample, LogitSample]:
        """(rows to calibrate on, rows to measure on), drawn once and kept in the folder."""
        kept = [self.path / f"{name}.safetensors" for name in ("calibration", "logits")]
        if all(path.exists() for path in kept):
            calibration, measured = (LogitSample.load(path) for path in kept)
            return calibration, measured
        calibration, measured = self.source.samples()
        calibration.save(kept[0])
        measured.save(kept[1])
        return calibration, measured

    def require_same_source(self) -> None:
        """Refuse to add to what was measured on another model or other rows of the same names."""
        noted, now = self.path / "source.json", self.source.fingerprints
        if noted.exists():
            require_same(read_json(noted, "Delete the folder to start over."), now, self.path)
        else:
            write_json(noted, now)

    def record(self, entry: Entry) -> StageRecord:
        return StageRecord(self.path / "methods" / f"{entry.file_name}.json")

    def measure(self, entry: Entry) -> None:
        """All stages of one method that are not recorded yet, but for its time.

        A method that refuses these logits or parameters is recorded with its reason; the others go on.
        """
        record = self.record(entry)
        if record.done(REFUSED):
            return
        try:
            for name, work in self._stages(entry, record).items():
                if not record.done(name):
                    self.say(f"{entry.label}: {name} …")
                record.stage(name, work)
        except (FileError, MissingExtraError):
            raise  # a disk or a missing package, which no method is to blame for
        except HccsError as error:
            if entry.method == FLOAT:
                raise
            reason = str(error)
            record.stage(REFUSED, lambda: reason)
            self.say(f"{entry.label} refuses: {reason}")

    def _stages(self, entry: Entry, record: StageRecord) -> dict[str, Callable[[], Any]]:
        found, origin = record.stages, self.source

        def parameters() -> Any:
            own = steps.fitted(entry.method, self.samples[0], head_size(origin.model))
            return steps.completed(entry, own, self.samples[0])

        def accuracy() -> float:
            parameters = found.get("parameters")
            return score(steps.attached(entry, parameters, origin.model, self.samples[0]), origin.dev)

        if entry.method == FLOAT:
            return {"accuracy": accuracy}
        return {
            "parameters": parameters,
            "fidelity": lambda: steps.fidelity(entry, found["parameters"], self.samples[1]),
            "costs": lambda: steps.costs(entry, origin.columns),
            "accuracy": accuracy,
        }

    def time(self, entry: Entry) -> None:
        """The stage of time, apart from the others: nothing else may run beside it."""
        record = self.record(entry)
        if entry.method == FLOAT or record.done(REFUSED):
            return
        own = steps.of_layer(record.stages["parameters"], 0)
        record.stage("time", lambda: time_forms(surrogates.get(entry.method), self.samples[1], own))


def compare(
    settings: ComparisonSettings,
    entries: Sequence[Entry],
    out: str | Path,
    *,
    jobs: int = 1,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure every entry; returns, and writes as `comparison.json`, the records of all of them."""
    comparison = Comparison(settings, out, say)
    with RunFolder(out, asdict(settings)):
        comparison.require_same_source()
        (comparison.path / "methods").mkdir(exist_ok=True)
        rows = comparison.samples[1].rows
        say(f"{rows} rows of every head to measure on, as many others to calibrate on")
        _measure_all(comparison, entries, jobs)
        for entry in track(entries, total=len(entries), description="timing"):
            comparison.time(entry)
        found = {
            "settings": asdict(settings),
            "rows": rows,
            "scale": comparison.samples[1].scale.tolist(),
            "methods": {entry.label: comparison.record(entry).stages for entry in entries},
        }
        write_json(comparison.path / "comparison.json", found)
    return found


def _measure_all(comparison: Comparison, chosen: Sequence[Entry], jobs: int) -> None:
    if min(jobs, len(chosen)) > 1:
        work = partial(_measure_one, comparison.settings, comparison.path)
        in_processes(work, chosen, jobs, "methods")
        return
    for entry in track(chosen, total=len(chosen), description="methods"):
        comparison.measure(entry)


@lru_cache(maxsize=1)
def _of_this_process(settings: ComparisonSettings, out: Path) -> Comparison:
    return Comparison(settings, out, lambda _: None)


def _measure_one(settings: ComparisonSettings, out: Path, entry: Entry) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*longer than n.*")
        _of_this_process(settings, out).measure(entry)
