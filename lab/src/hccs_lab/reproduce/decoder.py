"""`hccs reproduce decoder`: the perplexity of a decoder whose softmax is replaced, without any training.

A cell is one method at one context length: non-overlapping windows of the text, the mean loss of every
window. Parameters are calibrated at that length on another text. Recorded cells are not repeated.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hccs._files import atomic
from hccs.calibration import HeadStatistics
from hccs.conversion.runs.record import StageRecord
from hccs.errors import DataError, FileError
from hccs.nn.collecting import StatisticsObserver, observing, ranges
from hccs.nn.collecting import run as run_batches
from hccs.nn.slots import AttentionInputs, AttentionSlot, Observer
from hccs_lab.figures import decoder_figure
from hccs_lab.reproduce import sets
from hccs_lab.reproduce.run import note
from hccs_lab.reproduce.tables import markdown_table

AT_ONCE = 1024
"""Tokens of one forward pass."""

SOFTMAX = "softmax"
TABLES: dict[str, dict[str, Any]] = {
    "one line": {},
    "one line, wide sums": {"sum_bits": 24},
    "two lines, int16": {"lines": 2},
    "two lines, uint8": {"lines": 2, "scores": "uint8"},
}
"""Forms of HCCS, and the options of `hccs.calibration.search` that find them."""

SURROGATES = {"IndexSoftmax": "index_softmax", "I-BERT": "ibert"}
TWO = "two lines, int16"
LONG = f"{TWO}, fitted scale and outputs"
"""The form for decoders: the scale that reaches what matters to rows, the least error of outputs."""


@dataclass(frozen=True)
class Method:
    """A form of HCCS and how it is fitted and run."""

    form: str = TWO
    """Among `TABLES`."""
    fitted: bool = False
    """Whether the scale is fitted to what matters to rows."""
    objective: str = "kl_i16"
    backend: str = "float"
    mode: str | None = None


HCCS = {
    **{form: Method(form) for form in TABLES},
    f"{TWO}, fitted scale": Method(fitted=True),
    LONG: Method(fitted=True, objective="output"),
    f"{TWO}, u8_div": Method(mode="u8_div"),
    f"{LONG}, u8_lin": Method(fitted=True, objective="output", mode="u8_lin"),
    f"{TWO}, integer q, k, v": Method(backend="integer"),
    f"{LONG}, integer q, k, v": Method(fitted=True, objective="output", backend="integer"),
}
WHOLE = "all integers"
"""The program of `hccs.nn.lower`: no float from token ids to scores."""

METHODS = (SOFTMAX, *HCCS, *SURROGATES, WHOLE)


@dataclass(frozen=True)
class DecoderPlan:
    """What is measured, and where results go."""

    model: Path
    """A folder as `save_pretrained` writes it, or with one GGUF file."""
    text: Path
    calibration_text: Path
    out: Path
    contexts: tuple[int, ...] = (128, 256, 512, 1024)
    methods: tuple[str, ...] = METHODS
    tokens: int = 4096
    """Tokens of a cell, rounded down to full windows."""
    calibration_tokens: int = 4096


def run(plan: DecoderPlan, say: Callable[[str], None] = print) -> dict[str, Any]:
    """All cells that are not recorded yet; every finished one is said."""
    work = Work(plan)
    note(work.fingerprints(), plan.out, name="decoder_data.json")
    record = StageRecord(plan.out / "decoder.json")
    for context in plan.contexts:
        cells = [method for method in plan.methods if not record.done(_cell(context, method))]
        if not cells and record.done(_heads(context)):
            continue
        at = work.at(context)
        for method in cells:
            found = record.stage(_cell(context, method), partial(at.measured, method))
            say(f"context {context}, {method}: perplexity {found['perplexity']:.2f}")
        record.stage(_heads(context), at.heads)
    return record.stages


def _cell(context: int, method: str) -> str:
    return f"{context}/{method}"


def _heads(context: int) -> str:
    return f"{context}/heads"


class Work:
    """The model and the texts as tokens."""

    def __init__(self, plan: DecoderPlan) -> None:
        self.plan = plan
        self._tokens: dict[Path, list[int]] = {}

    @cached_property
    def model(self) -> Any:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(self.plan.model, dtype=torch.float32, **self._format)
        model.config.use_cache = False
        return model.eval()

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.plan.model, **self._format)

    def fingerprints(self) -> dict[str, str]:
        """What cells are measured on; a folder with cells of other models or texts is refused."""
        plan = self.plan
        if not plan.model.is_dir():
            raise FileError("a folder with a decoder", str(plan.model), "Give --model its folder.")
        try:
            return {
                "model": sets.digest(sorted(path for path in plan.model.iterdir() if path.is_file())),
                "text": sets.digest([plan.text]),
                "calibration text": sets.digest([plan.calibration_text]),
                "tokens": str(plan.tokens),
                "calibration tokens": str(plan.calibration_tokens),
            }
        except OSError as error:
            raise FileError(
                "a decoder and two texts that can be read", str(error), "Check --text and --calibration-text."
            ) from error

    @cached_property
    def _format(self) -> dict[str, str]:
        files = [path.name for path in self.plan.model.glob("*.gguf")]
        return {"gguf_file": files[0]} if len(files) == 1 else {}

    def windows(self, text: Path, context: int, tokens: int) -> list[dict[str, torch.Tensor]]:
        """The first tokens of a text in batches of whole windows."""
        if text not in self._tokens:
            self._tokens[text] = self._tokenizer(text.read_text(), verbose=False).input_ids
        ids = torch.tensor(self._tokens[text])
        count = min(tokens, len(ids)) // context
        if count < 1:
            raise DataError(
                f"a text of at least {context} tokens", f"{len(ids)} in {text}", "Give a longer one."
            )
        rows = ids[: count * context].reshape(count, context)
        return [{"input_ids": part} for part in torch.split(rows, max(AT_ONCE // context, 1))]

    def at(self, context: int) -> AtContext:
        return AtContext(self, context)


class AtContext:
    """One length: what calibration finds there, and what the model then loses."""

    def __init__(self, work: Work, context: int) -> None:
        self.work, self.context = work, context
        self.model = work.model
        self._tables: dict[tuple[str, bool, str], Any] = {}

    def measured(self, method: str) -> dict[str, Any]:
        """The perplexity with a method, and the mean loss of every window."""
        if method == WHOLE:
            losses = list(self._losses(self._whole()))
        else:
            with self.attached(method):
                losses = list(self._losses(lambda ids: self.model(ids).logits))
        return {
            "perplexity": math.exp(statistics.fmean(losses)),
            "losses": [round(loss, 5) for loss in losses],
            "tokens": len(losses) * self.context,
        }

    def _whole(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """The logits of token ids by a program for this context, calibrated as the tables are."""
        import hccs.nn

        plan = self.work.plan
        windows = self.work.windows(plan.calibration_text, self.context, plan.calibration_tokens)
        whole = hccs.nn.lower(self.model, self._search(HCCS[LONG]).table, windows)
        return lambda ids: torch.from_numpy(whole(ids.numpy()).logits)

    def _losses(self, answers: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[float]:
        from torch.nn.functional import cross_entropy

        plan = self.work.plan
        for batch in self.work.windows(plan.text, self.context, plan.tokens):
            ids = batch["input_ids"]
            with torch.no_grad():
                logits = answers(ids)[:, :-1]
            each = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
            yield from each.reshape(len(ids), -1).double().mean(1).tolist()

    @contextmanager
    def attached(self, method: str) -> Iterator[None]:
        import hccs.nn
        from hccs_lab import surrogates

        try:
            if method in SURROGATES:
                layers = list(hccs.nn.attention_layers(self.model))
                scale = self.statistics(False).scale
                made = surrogates.get(SURROGATES[method])
                hccs.nn.fill({name: made.module(scale[i]) for i, name in enumerate(layers)}, self.model)
            elif method != SOFTMAX:
                chosen = HCCS[method]
                table = self._search(chosen).table
                hccs.nn.attach(self.model, table, chosen.mode, backend=chosen.backend)
            yield
        finally:
            if method != SOFTMAX:
                hccs.nn.detach(self.model)

    def _search(self, method: Method) -> Any:
        from hccs.calibration import CalibrationWarning, search

        asked = method.form, method.fitted, method.objective
        if asked not in self._tables:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CalibrationWarning)
                self._tables[asked] = search(
                    self.statistics(method.fitted),
                    self.context,
                    objective=method.objective,
                    **TABLES[method.form],
                )
        return self._tables[asked]

    def statistics(self, fitted: bool) -> HeadStatistics:
        """Statistics of the calibration text: the scale reaches every logit, or every logit that matters."""
        return self.seen.fitted if fitted else self.seen.plain

    @cached_property
    def seen(self) -> Seen:
        plan = self.work.plan
        windows = self.work.windows(plan.calibration_text, self.context, plan.calibration_tokens)
        return look(self.model, windows, self.context)

    def heads(self) -> dict[str, Any]:
        """How well the measured forms serve each head, and what makes it hard."""
        forms = [form for form in (*TABLES, LONG) if form in self.work.plan.methods]
        found = {form: self._search(HCCS[form]).heads for form in forms}
        served = {
            f"KL, {form}": [round(record.kl, 5) for record in records] for form, records in found.items()
        }
        return {
            **served,
            "entropy": [round(record.entropy, 4) for record in next(iter(found.values()), ())],
            "scale": np.round(self.seen.plain.scale.ravel(), 5).tolist(),
            "fitted scale": np.round(self.seen.fitted.scale.ravel(), 5).tolist(),
            "weight of the first token": np.round(self.seen.first.ravel(), 4).tolist(),
        }


@dataclass(frozen=True, eq=False)
class Seen:
    """The logits of all heads in numbers."""

    plain: HeadStatistics
    """Statistics at the scale of the largest magnitude."""
    fitted: HeadStatistics
    """Statistics at the scale of what matters to rows."""
    first: np.ndarray[Any, Any]
    """The mean weight of the first token, [layers, heads]."""


class FirstTokenObserver(Observer):
    """Keeps the mean weight of the first token of every head."""

    def __init__(self, inner: AttentionSlot) -> None:
        super().__init__(inner)
        self.first: Any = 0.0
        self.rows = 0

    def observe(self, inputs: AttentionInputs) -> None:
        """Leaves out the first row of a window, which attends to itself alone."""
        z = inputs.logits.detach()
        if inputs.valid is not None:
            z = z.masked_fill(~inputs.valid, -torch.inf)
        z = z[:, :, 1:]
        first = z[..., 0].sub(z.logsumexp(-1)).exp().transpose(0, 1).flatten(1)
        self.first = self.first + first.sum(1).double()
        self.rows += first.shape[1]

    @property
    def weight(self) -> torch.Tensor:
        mean: torch.Tensor = self.first / self.rows
        return mean


def look(model: nn.Module, windows: Sequence[Any], n: int) -> Seen:
    """The statistics at both scales, in two passes over the windows."""
    seen = ranges(model, windows)
    layers, heads = seen.logit_scale.shape
    made = [
        HeadStatistics((layers, heads), n, scale, layers=seen.layers, qkv_scale=seen.qkv_scale)
        for scale in (seen.logit_scale, seen.row_scale)
    ]
    firsts: list[FirstTokenObserver] = []

    def observers(inner: AttentionSlot, layer: int) -> AttentionSlot:
        for stats in made:
            inner = StatisticsObserver(inner, stats, layer)
        firsts.append(FirstTokenObserver(inner))
        return firsts[-1]

    with observing(model, {name: partial(observers, layer=i) for i, name in enumerate(seen.layers)}):
        run_batches(model, windows, "collecting")
    return Seen(made[0], made[1], torch.stack([first.weight for first in firsts]).numpy())


def summary(stages: Mapping[str, Any], contexts: Sequence[int]) -> dict[str, dict[int, dict[str, float]]]:
    """Per method and context: perplexity, its ratio to softmax's, and that ratio's standard error."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for method in METHODS:
        for context in contexts:
            cell, plain = stages.get(_cell(context, method)), stages.get(_cell(context, SOFTMAX))
            if cell is None or plain is None:
                continue
            losses = [a - b for a, b in zip(cell["losses"], plain["losses"], strict=True)]
            ratio = math.exp(statistics.fmean(losses))
            error = statistics.stdev(losses) / len(losses) ** 0.5 if len(losses) > 1 else 0.0
            found.setdefault(method, {})[context] = {
                "perplexity": cell["perplexity"],
                "ratio": ratio,
                "error": ratio * error,
            }
    return found


def markdown(stages: Mapping[str, Any], contexts: Sequence[int]) -> str:
    """The perplexities as a table: a row per method, a column per context."""
    found = summary(stages, contexts)

    def shown(method: str, context: int) -> str:
        cell = found[method].get(context)
        if cell is None:
            return ""
        if method == SOFTMAX:
            return f"{cell['perplexity']:.2f}"
        return f"{cell['perplexity']:.2f} (x {cell['ratio']:.3f} ± {cell['error']:.3f})"

    rows = [[method, *(shown(method, context) for context in contexts)] for method in found]
    return markdown_table(["method", *(f"context {context}" for context in contexts)], iter(rows)) + "\n"


def write(plan: DecoderPlan, stages: Mapping[str, Any]) -> None:
    atomic.replace(plan.out / "decoder.md", markdown(stages, plan.contexts).encode())
    decoder_figure(summary(stages, plan.contexts), stages, plan.contexts, plan.out / "decoder.png")
