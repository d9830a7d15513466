"""The comparison itself: every method calibrated on the same rows, measured on others, scored in the model.

A method's results are steps of its own record, `methods/LABEL.json`, written as each is done: an interrupted
comparison goes on where it stopped, more methods can be added later, and several processes can share one.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hccs import surrogates
from hccs._files import safetensors as _safetensors
from hccs._progress import track
from hccs.errors import HccsError, ModelError, ParameterError
from hccs.nn.attaching import detach, fill
from hccs.pipeline.compare.entries import FLOAT, Entry, declared_costs
from hccs.pipeline.compare.measures import FidelityCounter, row_measures
from hccs.pipeline.compare.sample import LogitSample, sample_files, sample_model
from hccs.pipeline.compare.speed import time_forms
from hccs.pipeline.convert.steps import RETRAINING
from hccs.pipeline.data import tasks
from hccs.pipeline.data.tokens import TokenisedSet, tokenise
from hccs.pipeline.models import Loaded, accuracy, best_device, load_classifier
from hccs.pipeline.reproduce.accuracy import Record
from hccs.pipeline.runs.converted import saved_task
from hccs.pipeline.runs.folder import RunFolder, read_json
from hccs.pipeline.runs.processes import in_processes
from hccs.pipeline.training import Recipe, taught, train
from hccs.surrogates.fitting import float_softmax
from hccs.surrogates.rows import distance

REFUSED = "refused"
"""The step of a method that cannot serve these logits: its reason."""


@dataclass(frozen=True)
class Settings:
    """What to compare on: a classifier and its task, or files of logits; how many rows; how to retrain."""

    model: str | None = None
    task: tasks.Task | None = None
    data: str | None = None
    vocabulary: str | None = None
    files: tuple[str, ...] = ()
    sentences: int = 512
    rows: int = 2048
    examples: int | None = None
    seed: int = 0
    retraining: Recipe = field(default=RETRAINING)

    def checked(self) -> Settings:
        """Itself, or the first thing that no comparison could do."""
        if (self.model is None) == (not self.files):
            raise ParameterError("a model or files of logits", "both or neither", "Name one source.")
        if self.sentences < 1:
            raise ParameterError(
                "at least one sentence to calibrate on", str(self.sentences), "512 are plenty."
            )
        return self


def from_run(folder: Path) -> Settings:
    """The float model, the task and the recipe of an `hccs convert` run."""
    saved = read_json(folder / "settings.json")
    return Settings(
        model=str(folder / "float"),
        task=saved_task(saved),
        data=saved["data"],
        retraining=Recipe(**saved["retraining"]),
    )


class Comparison:
    """One folder of results, and the model and data, or the files, that they are of."""

    def __init__(self, settings: Settings, out: str | Path, say: Callable[[str], None] = print) -> None:
        self.settings, self.say = settings.checked(), say
        # Read before anything is written: a run on bad input leaves nothing behind.
        self._source: Any = self._loaded() if settings.model else self._from_files()
        self.path = RunFolder(out, asdict(settings)).path
        (self.path / "methods").mkdir(exist_ok=True)

    # --- what the steps work on -----------------------------------------------------------------------------

    def _loaded(self) -> Loaded:
        assert self.settings.model is not None
        torch.manual_seed(self.settings.seed)
        loaded = load_classifier(self.settings.model, self.data.labels, self.settings.vocabulary)
        if not loaded.has_head:
            raise ModelError(
                f"a fine-tuned classifier at {self.settings.model}",
                "no classification head for this task",
                "Run hccs convert first and compare on its folder, or name a fine-tuned model.",
            )
        # A converted model comes with HCCS attached; here every method starts from its float softmax.
        return replace(loaded, model=detach(loaded.model.to(best_device()).eval()))

    def _from_files(self) -> tuple[LogitSample, LogitSample]:
        return sample_files(self.settings.files, rows=self.settings.rows, seed=self.settings.seed)

    @cached_property
    def data(self) -> tasks.TaskData:
        """The task's examples."""
        assert self.settings.task is not None
        return tasks.load(self.settings.task, self.settings.data)

    def _tokenised(self, examples: tasks.Examples) -> TokenisedSet:
        return tokenise(examples, self._source.tokenizer, self.data.task.n).to(best_device())

    @cached_property
    def train_set(self) -> TokenisedSet:
        """Training examples on the device."""
        return self._tokenised(self.data.train)

    @cached_property
    def taught_set(self) -> TokenisedSet:
        """Training examples with the float model's predictions."""
        return taught(self.train_set, self._source.model)

    @cached_property
    def dev(self) -> TokenisedSet:
        """Dev examples on the device: all of them, or the first draw of `examples`."""
        dev = self.data.dev
        most = self.settings.examples
        return self._tokenised(dev if most is None else dev.subset(most, self.settings.seed))

    @cached_property
    def samples(self) -> tuple[LogitSample, LogitSample]:
        """(rows to calibrate on, rows to measure on), collected once and kept in the folder.

        From a model: rows of training sentences, and rows of dev sentences at the same scales.
        """
        kept = [self.path / f"{name}.safetensors" for name in ("calibration", "logits")]
        if all(path.exists() for path in kept):
            calibration, measured = (LogitSample.load(path) for path in kept)
            return calibration, measured
        calibration, measured = self._sampled() if self.settings.model else self._source
        calibration.save(kept[0])
        measured.save(kept[1])
        return calibration, measured

    def _sampled(self) -> tuple[LogitSample, LogitSample]:
        settings = self.settings
        some = self._tokenised(self.data.train.subset(settings.sentences, settings.seed))
        others = self._tokenised(self.data.dev.subset(settings.sentences, settings.seed))
        draw = partial(
            sample_model, self._source.model, n=self.columns, rows=settings.rows, seed=settings.seed
        )
        calibration = draw(list(some.batches(64)))
        return calibration, draw(list(others.batches(64)), scale=calibration.scale)

    @property
    def columns(self) -> int:
        """The row length that costs are counted for: the task's n, or the files' longest row."""
        return self.settings.task.n if self.settings.task else self.samples[1].logits.shape[-1]

    # --- the steps ------------------------------------------------------------------------------------------

    def measure(self, entry: Entry, retrain: bool = False) -> None:
        """All steps of one method that are not recorded yet, but for its time.

        A method that refuses these logits or parameters is recorded with its reason; the others go on.
        """
        record = self.record(entry)
        if REFUSED in record.values:
            return
        try:
            self._measure(entry, record, retrain)
        except HccsError as error:
            if entry.method == FLOAT:
                raise
            reason = str(error)
            record.step(REFUSED, lambda: reason)
            self.say(f"{entry.label} refuses: {reason}")

    def _measure(self, entry: Entry, record: Record, retrain: bool) -> None:
        if entry.method == FLOAT:
            steps: dict[str, Callable[[], Any]] = {}
        else:
            steps = {
                "parameters": lambda: self._parameters(entry),
                "fidelity": lambda: self._fidelity(entry, record.values["parameters"]),
                "costs": lambda: self._costs(entry),
                "curves": lambda: self._curves(entry, record.values["parameters"]),
            }
        if self.settings.model:
            steps["accuracy"] = lambda: self._accuracy(entry, record.values.get("parameters"))
            if retrain:
                steps["retrained"] = lambda: self._retrained(entry, record.values.get("parameters"))
        for name, work in steps.items():
            if name not in record.values:
                self.say(f"{entry.label}: {name} …")
            record.step(name, work)

    def time(self, entry: Entry) -> None:
        """The time step, apart from the others: nothing else may run beside it."""
        record = self.record(entry)
        if entry.method == FLOAT or REFUSED in record.values:
            return
        method, parameters = surrogates.get(entry.method), record.values["parameters"]
        sample = self.samples[1]
        record.step("time", lambda: time_forms(method, sample, layer_parameters(parameters, 0)))

    def record(self, entry: Entry) -> Record:
        """The method's results so far."""
        return Record(self.path / "methods" / f"{entry.file_name}.json")

    def _parameters(self, entry: Entry) -> dict[str, Any]:
        """Fixed values, and for the rest what the method's own calibration finds on the common rows."""
        calibration = self.samples[0]
        method = surrogates.get(entry.method)
        found = method.calibrate(calibration.logits, calibration.scale, calibration.mask)
        if method.attends is not None and self.settings.model:
            # Its source learns a gain and a gate for every channel.
            found["width"] = head_size(self._source.model)
        return {
            name: _plain(value, calibration.shape) for name, value in {**found, **dict(entry.fixed)}.items()
        }

    def _outputs(
        self, entry: Entry, parameters: dict[str, Any], layers: Container[int]
    ) -> Iterator[tuple[int, NDArray[np.int8], NDArray[np.bool_], surrogates.Result]]:
        """(layer, logits, mask, result) of the measured rows of some layers, piece by piece."""
        sample, method = self.samples[1], surrogates.get(entry.method)
        for layer, rows in sample.pieces():
            if layer in layers:
                x, valid = sample.logits[layer][:, rows], sample.valid[layer][rows]
                own = layer_parameters(parameters, layer)
                yield layer, x, valid, method(x, sample.scale[layer], valid, **own)

    def _fidelity(self, entry: Entry, parameters: dict[str, Any]) -> dict[str, Any]:
        sample = self.samples[1]
        counter = FidelityCounter(sample.shape)
        for layer, x, valid, result in self._outputs(entry, parameters, range(sample.shape[0])):
            p = float_softmax(x, sample.scale[layer], valid)
            counter.add(layer, row_measures(p, result.probabilities, valid, result.unit))
        return counter.result().to_json()

    def _curves(self, entry: Entry, parameters: dict[str, Any]) -> dict[str, list[float | None]]:
        """Mean output at each distance 0..255, the row's largest being 1, of the heads that are drawn."""
        heads = drawn_heads(self.samples[1].scale)
        sums, counts = ({name: np.zeros(256) for name in heads} for _ in range(2))
        shown = {layer for layer, _ in heads.values()}
        for layer, x, valid, result in self._outputs(entry, parameters, shown):
            for name, (at, head) in heads.items():
                if at == layer:
                    steps, relative = _by_distance(x[head], result.probabilities[head], valid)
                    counts[name] += np.bincount(steps, minlength=256)
                    sums[name] += np.bincount(steps, relative, minlength=256)
        return {
            name: [
                round(total / count, 5) if count else None
                for total, count in zip(sums[name].tolist(), counts[name].tolist(), strict=True)
            ]
            for name in heads
        }

    def _costs(self, entry: Entry) -> dict[str, Any]:
        costs, k = declared_costs(entry), self.columns
        counts = {name: getattr(costs, name)(k) for name in ("operations", "divides", "exponentials")}
        told = ("input", "output", "bits_inside", "table_bytes", "integer_only", "trainable", "source")
        return {
            "k": k,
            **counts,
            **{name: getattr(costs, name) for name in told},
            "needs": sorted(costs.needs),
        }

    def _attached(self, entry: Entry, parameters: dict[str, Any] | None) -> Any:
        """A copy of the model with the method in every layer."""
        model = copy.deepcopy(self._source.model)
        if entry.method == FLOAT:
            return model
        assert parameters is not None
        calibration, method = self.samples[0], surrogates.get(entry.method)
        fill(
            {
                name: method.module(calibration.scale[layer], layer_parameters(parameters, layer))
                for layer, name in enumerate(calibration.layers)
            },
            model,
        )
        return model

    def _accuracy(self, entry: Entry, parameters: dict[str, Any] | None) -> float:
        return accuracy(self._attached(entry, parameters), self.dev)

    def _retrained(self, entry: Entry, parameters: dict[str, Any] | None) -> dict[str, Any]:
        """The accuracy after the common recipe, from the float weights, with the float model as teacher."""
        model = self._attached(entry, parameters)
        recipe = replace(self.settings.retraining, seed=self.settings.seed)
        folder = self.path / "checkpoints" / entry.file_name
        data = self.taught_set if recipe.distil else self.train_set
        outcome = train(model, data, self.dev, recipe, folder)
        return {"accuracy": outcome.accuracy, "history": list(outcome.history)}


def drawn_heads(scale: NDArray[np.float64]) -> dict[str, tuple[int, int]]:
    """(layer, head) of the heads whose logits have the widest and the narrowest range."""
    ends = {"widest logits": int(scale.argmax()), "narrowest logits": int(scale.argmin())}
    return {name: divmod(flat, scale.shape[1]) for name, flat in ends.items()}


def _by_distance(
    x: NDArray[np.int8], q: NDArray[np.float64], valid: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Distance from the row's maximum, and output over the row's largest, of the valid positions."""
    top = q.max(-1, keepdims=True)
    taken = valid & (top > 0)
    return distance(x, valid)[taken], (q / np.where(top > 0, top, 1.0))[taken]


def layer_parameters(parameters: dict[str, Any], layer: int) -> dict[str, Any]:
    """The parameters of one layer's heads; words serve all."""
    return {
        name: value if isinstance(value, str) else np.asarray(value[layer])
        for name, value in parameters.items()
    }


def head_size(model: Any) -> int:
    """Channels of one attention head, as the model's configuration tells."""
    config = model.config
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _plain(value: Any, shape: tuple[int, int]) -> Any:
    """One number per head as lists JSON can hold; words as they are."""
    return value if isinstance(value, str) else np.broadcast_to(np.asarray(value), shape).tolist()


def compare(
    settings: Settings,
    entries: Sequence[Entry],
    out: str | Path,
    *,
    retrain: bool = False,
    jobs: int = 1,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure every entry; returns, and writes as `comparison.json`, the records of all of them."""
    comparison = Comparison(settings, out, say)
    chosen = [e for e in entries if e.method != FLOAT or settings.model]
    say(f"{comparison.samples[1].rows} rows of every head to measure on, as many others to calibrate on")
    if jobs == 1:
        for entry in track(chosen, total=len(chosen), description="methods"):
            comparison.measure(entry, retrain)
    else:
        work = partial(_measure_one, settings, comparison.path, retrain)
        in_processes(work, chosen, jobs, "methods")
    for entry in track(chosen, total=len(chosen), description="timing"):
        comparison.time(entry)
    found = {
        "settings": asdict(settings),
        "rows": comparison.samples[1].rows,
        "scale": comparison.samples[1].scale.tolist(),
        "methods": {entry.label: comparison.record(entry).values for entry in chosen},
    }
    _safetensors.replace(comparison.path / "comparison.json", json.dumps(found, indent=1).encode())
    return found


@lru_cache(maxsize=1)
def _of_this_process(settings: Settings, out: Path) -> Comparison:
    return Comparison(settings, out, lambda _: None)


def _measure_one(settings: Settings, out: Path, retrain: bool, entry: Entry) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*longer than n.*")
        _of_this_process(settings, out).measure(entry, retrain)
