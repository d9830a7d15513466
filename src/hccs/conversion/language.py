"""Causal language models: calibrated on a text, scored by perplexity; no training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import hccs.nn
from hccs._files.atomic import replacing_folder
from hccs._progress import track
from hccs.calibration import Calibration, HeadStatistics, search
from hccs.calibration.two_lines import fitting_for
from hccs.conversion.fingerprints import of_tensors, of_weights, require_same
from hccs.conversion.models import (
    best_device,
    load_tokenizer,
    require_ids,
    require_positions,
    require_weights,
    transformers,
    unreadable,
)
from hccs.conversion.results import HeadFit
from hccs.conversion.runs.folder import RunFolder
from hccs.conversion.runs.record import REDO, finished, from_json, typed
from hccs.errors import DataError, FileError, HccsError, ModelError, ParameterError
from hccs.numbers.modes import Mode
from hccs.numbers.region import Region
from hccs.numbers.table import CONVERTED
from hccs.program.files import IN_RUN

BATCH = 8
"""Blocks at once: logits over a vocabulary are wide."""
FEWEST = 4
"""The fewest blocks of a text to calibrate or to score on."""


@dataclass(frozen=True)
class LanguageSettings:
    """Which model, on which texts: files in UTF-8, cut into blocks of `n` tokens."""

    model: str
    train: str
    dev: str
    n: int = 64
    mode: str = "i16_div"
    blocks: int = 256
    """The most blocks to calibrate on, evenly spread over the text."""
    scored: int = 512
    """The most blocks to score on."""
    problem: str = "language"

    def __post_init__(self) -> None:
        Mode(self.mode)
        if self.n < 2:
            raise ParameterError(
                "blocks of at least 2 tokens, the second of which is scored", f"n = {self.n}", "Raise --n."
            )
        Region(self.n)


@dataclass(frozen=True)
class FloatPerplexity:
    perplexity: float
    blocks: int
    fingerprints: dict[str, str]


@dataclass(frozen=True)
class CollectedBlocks:
    blocks: int
    rows: int
    scale: str
    objective: str


@dataclass(frozen=True)
class ModePerplexity:
    perplexity: dict[str, dict[str, float]]
    """By form, "one line" or "two lines", and by mode."""


@dataclass(frozen=True)
class IntegerPerplexity:
    """The model all in integers, or why there is no such form."""

    perplexity: float | None = None
    refused: str | None = None


@dataclass(frozen=True)
class SavedLanguageModel:
    lines: str
    mode: str
    perplexity: float
    kl: float
    heads: tuple[HeadFit, ...]


@dataclass(frozen=True)
class LanguageResults:
    """The stages of a finished run in order."""

    float_model: FloatPerplexity
    collect: CollectedBlocks
    modes: ModePerplexity
    integer: IntegerPerplexity
    save: SavedLanguageModel
    seconds: dict[str, float]

    @classmethod
    def of(cls, folder: Path) -> LanguageResults:
        """The results of a finished run; an unfinished run and an altered file are refused."""
        record = finished(folder, ["save"], "Finish it with hccs perplexity first.")
        found: LanguageResults = typed(cls, {**record.stages, "seconds": record.seconds}, record.path, REDO)
        return found


def convert_language(
    settings: LanguageSettings, out: str | Path, say: Callable[[str], None] = print
) -> LanguageResults:
    """Fit one and two lines a head, score both, and save the model with those of the lower perplexity.

    `results.json` has the perplexity of the float model, of every mode with one and with two lines, and,
    where the family has such a form, of the model all in integers, `model.hccs`.
    """
    tokenizer = load_tokenizer(settings.model)
    texts = [blocks_of(path, tokenizer, settings.n) for path in (settings.train, settings.dev)]
    train, dev = (
        _spread(text, most) for text, most in zip(texts, (settings.blocks, settings.scored), strict=True)
    )
    model, missing = _loaded(settings.model)
    require_positions(model, settings.n)
    require_ids(model, torch.cat((train, dev)))
    _require_causal(model, dev[:1])
    require_weights(settings.model, missing)
    begun_on = {"weights": of_weights(model), "texts": of_tensors((train, dev))}
    run = RunFolder(out, asdict(settings))
    fitting = fitting_for(settings.n, lines=2, causal=True)

    @cache
    def calibrated() -> dict[str, Calibration]:
        stats = HeadStatistics.load(run.path / "statistics.safetensors")
        return {
            "one line": search(stats, settings.n, "head", settings.mode),
            "two lines": search(
                stats, settings.n, "head", settings.mode, lines=2, objective=fitting.objective
            ),
        }

    def collect() -> CollectedBlocks:
        stats = hccs.nn.collect(model, _batches(train), n=settings.n, scale=fitting.scale)
        stats.save(run.path / "statistics.safetensors")
        return CollectedBlocks(len(train), int(stats.rows.sum()), **fitting.record)

    def modes() -> ModePerplexity:
        found = {
            name: {
                mode.value: perplexity(hccs.nn.attach(model, calibration.table, mode), dev) for mode in Mode
            }
            for name, calibration in calibrated().items()
        }
        hccs.nn.detach(model)
        return ModePerplexity(found)

    def save() -> SavedLanguageModel:
        noted: ModePerplexity = from_json(ModePerplexity, run.record.stages["modes"])
        reached = {name: scores[settings.mode] for name, scores in noted.perplexity.items()}
        chosen = min(reached, key=reached.__getitem__)
        delivered = calibrated()[chosen]
        hccs.nn.attach(model, delivered.table)
        with replacing_folder(run.path / "model") as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        delivered.table.save(run.path / CONVERTED)
        heads = (HeadFit(h.layer, h.head, h.kl, h.kl_renormalised, h.entropy) for h in delivered.heads)
        return SavedLanguageModel(chosen, settings.mode, reached[chosen], delivered.kl, tuple(heads))

    def lower() -> IntegerPerplexity:
        table = calibrated()["one line"].table
        try:
            made = hccs.nn.lower(hccs.nn.attach(model, table), table, _batches(train), scales="least-error")
        except HccsError as error:
            say(f"  not all in integers: {error}")
            return IntegerPerplexity(refused=str(error))
        made.save(run.path / IN_RUN)
        return IntegerPerplexity(perplexity(lambda input_ids: made(input_ids.cpu().numpy()), dev))

    stages: dict[str, Callable[[], Any]] = {
        "float_model": lambda: FloatPerplexity(perplexity(model, dev), len(dev), begun_on),
        "collect": collect,
        "modes": modes,
        "integer": lower,
        "save": save,
    }
    with run:
        before = run.record.stages.get("float_model", {}).get("fingerprints", {})
        require_same(before, begun_on, run.path)
        for name, work in stages.items():
            say(f"{name} …")
            run.stage(name, work)
    return LanguageResults.of(run.path)


def blocks_of(path: str, tokenizer: Any, n: int) -> torch.Tensor:
    """A text as token ids [blocks, n]; what is left at its end is dropped."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"a text in UTF-8 at {path}", str(error), "Check --train and --dev.") from error
    ids = tokenizer(text, verbose=False)["input_ids"]
    count = len(ids) // n
    if count < FEWEST:
        raise DataError(
            f"at least {FEWEST} blocks of {n} tokens in {path}",
            f"{len(ids)} tokens",
            "Give more text, or a lower --n.",
        )
    return torch.tensor(ids[: count * n]).view(count, n)


def _require_causal(model: Any, block: torch.Tensor) -> None:
    """Refuse a model that sees what comes after a token: its perplexity would say nothing."""
    ids = block.to(best_device())
    other = ids.clone()
    other[:, -1] = (ids[:, -1] + 1) % model.config.get_text_config().vocab_size
    with torch.no_grad():
        before, after = (model(input_ids=x).logits[:, :-1].float() for x in (ids, other))
    if not torch.allclose(before, after, rtol=1e-3, atol=1e-3):
        raise ModelError(
            "a causal language model, whose answers depend on the tokens before alone",
            f"{type(model).__name__}, which looks at later ones",
            "Models that fill in blanks, such as BERT, have no perplexity.",
        )


def perplexity(model: Callable[..., Any], blocks: torch.Tensor) -> float:
    """exp of the mean negative log-likelihood of every token but the first of its block."""
    total = 0.0
    batches = _batches(blocks)
    for batch in track(batches, total=len(batches), description="perplexity"):
        ids = batch["input_ids"]
        with torch.no_grad():
            logits = torch.as_tensor(model(input_ids=ids).logits).cpu()
        wanted = ids[:, 1:].cpu().flatten()
        total += float(F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), wanted, reduction="sum"))
    return math.exp(total / (len(blocks) * (blocks.shape[1] - 1)))


def _batches(blocks: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    device = best_device()
    return [{"input_ids": part.to(device)} for part in blocks.split(BATCH)]


def _spread(blocks: torch.Tensor, most: int) -> torch.Tensor:
    """At most so many blocks, evenly spread over the text."""
    return blocks[torch.linspace(0, len(blocks) - 1, min(most, len(blocks))).long()]


def _loaded(name: str) -> tuple[Any, set[str]]:
    """The model, and the names of weights that its files do not hold."""
    try:
        model, info = transformers().AutoModelForCausalLM.from_pretrained(
            name, dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:  # whatever a damaged file or a foreign architecture brings up
        raise unreadable(f"a causal language model of transformers at {name}", error) from error
    return hccs.nn.detach(model.to(best_device()).eval()), info["missing_keys"]
