"""`hccs convert`: collect, calibrate, mend or retrain, evaluate, quantise, lower, save; stages resume."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hccs.conversion.calibration_stages import calibrate, collect, reconstruct, without_retraining
from hccs.conversion.conversion_run import ConversionRun
from hccs.conversion.delivery_stages import integer_attention, save, whole
from hccs.conversion.fingerprints import require_same
from hccs.conversion.metrics import Function
from hccs.conversion.notes import with_warnings
from hccs.conversion.settings import ConversionSettings
from hccs.conversion.training_stages import BEFORE, float_model, retrained, whole_without_training

Stage = Callable[[ConversionRun], dict[str, Any]]
"""Does its part of a run, reading what the stages before it have saved; returns what `results.json` keeps."""


class Conversion(ConversionRun):
    """A run with its stages in order."""

    @property
    def stages(self) -> dict[str, Stage]:
        """The stages of this run in order; each reads what those before it have saved."""
        in_integers, trained = self.settings.integer == "whole", self.settings.retraining is not None
        return {
            "float": float_model,
            "collect": collect,
            "calibrate": calibrate,
            **({"reconstruct": reconstruct} if self.settings.reconstructs else {}),
            "without retraining": without_retraining,
            **({BEFORE: whole_without_training} if in_integers and trained else {}),
            **({"retrain": retrained} if trained else {}),
            "integer": integer_attention,
            **({"whole": whole} if in_integers else {}),
            "save": save,
        }

    def run(self) -> dict[str, Any]:
        """All stages; returns the results."""
        with self.folder:
            require_same(self.results_of("float").get("fingerprints", {}), self.fingerprints, self.path)
            if self.settings.task.unlabelled and not self.folder.done("save"):
                self.ask_the_float_model()
            for name, stage in self.stages.items():
                if self.folder.done(name):
                    self.say(f"{name}: done before")
                    continue
                self.say(f"{name} …")
                result = self.folder.stage(name, partial(with_warnings, partial(stage, self)))
                reached = result.get(self.metric.name)
                shown = "" if reached is None else f"{self.metric.name} {reached:.4f}, "
                self.say(f"{name}: {shown}{result['seconds']:.1f} s")
        return self.folder.results


def convert(
    settings: ConversionSettings,
    out: str | Path,
    say: Callable[[str], None] = print,
    *,
    metric: Function | None = None,
) -> dict[str, Any]:
    """Convert a model as the settings say; returns the content of `results.json`.

    A `metric` takes the place of the one that the settings name.
    """
    return Conversion(settings, out, say, metric=metric).run()
