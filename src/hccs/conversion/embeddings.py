"""Encoders of sentences to integers without labels: the float model's vectors are all that is followed.

Held-back texts decide whether weights corrected by closed-form regression are kept; other held-back texts
certify what is delivered.
"""

from __future__ import annotations

import copy
import shlex
import warnings
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hccs.nn
from hccs.calibration import HeadStatistics, search
from hccs.calibration.two_lines import SCORES
from hccs.conversion import certificate as fidelity
from hccs.conversion.certificate import Certificate
from hccs.conversion.converted import FinishedRun, settings_of
from hccs.conversion.data.holdout import hold_out
from hccs.conversion.data.problems import EMBEDDINGS
from hccs.conversion.data.reading import read_texts
from hccs.conversion.data.tasks import Examples
from hccs.conversion.fingerprints import of_tensors, of_texts, of_weights, require_same
from hccs.conversion.results import Collected, CorrectedMatrix
from hccs.conversion.runs.folder import RunFolder
from hccs.conversion.runs.record import (
    REDO,
    finished,
    from_json,
    typed,
    write_json,
)
from hccs.conversion.sentence_transformers import SentenceEncoder, load_sentence_encoder
from hccs.conversion.stages import CALIBRATED, STATISTICS
from hccs.errors import DataError, HccsError, ParameterError
from hccs.nn.lowering import IntegerPlan, take_apart
from hccs.nn.lowering.ranges import ValueRanges, measured
from hccs.numbers.layers import INT16_LIMIT
from hccs.numbers.region import WIDE
from hccs.numbers.table import ParamTable
from hccs.program import IntegerModel
from hccs.program.files import IN_RUN
from hccs.program.program import TextSettings
from hccs.text import Encoder

FEWEST = 40
"""Texts that leave enough on either side of both splits."""

MOST_HELD_BACK = 1000
"""Texts that certify; half as many choose."""

BY_DISTANCE = "by-distance"
"""Scores that are looked up in a table of exponentials: what is made where no other form is asked for."""


@dataclass(frozen=True)
class EmbeddingSettings:
    """Which encoder, on which texts: `texts` is a file, `text` its column; `n` cuts texts earlier.

    `sentences` texts calibrate, `reconstruction_sentences` correct the weights. `scores` are those of two
    lines; None: they are looked up by distance. `pairs` and `retrieval` are data on which the certificate
    compares both models.
    """

    model: str
    texts: str
    text: str = "sentence"
    n: int | None = None
    pooling: str | None = None
    pairs: str | None = None
    retrieval: str | None = None
    scores: str | None = None
    sentences: int = 512
    reconstruct: bool = True
    reconstruction_sentences: int = 2048
    seed: int = 0
    problem: str = EMBEDDINGS

    def __post_init__(self) -> None:
        if self.scores not in (None, *SCORES):
            raise ParameterError(f"scores {' or '.join(SCORES)}", repr(self.scores), "Choose other --scores.")
        for name in ("sentences", "reconstruction_sentences"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} of at least 1", str(getattr(self, name)), "Leave it out.")


@dataclass(frozen=True)
class FloatVectors:
    texts: dict[str, int]
    """By use: "fitted", "chooses" and "certifies"."""
    cut: int
    dims: int
    max_length: int
    pooling: str
    fingerprints: dict[str, str]


@dataclass(frozen=True)
class CalibratedVectors:
    """The form of scores, and the mean cosine to float that it reaches before weights are corrected."""

    scores: str
    cosine: float
    kl: float


@dataclass(frozen=True)
class CorrectedVectors:
    """The mean cosine before and after weights were corrected, and whether they are delivered so."""

    kept: bool
    before: float
    after: float | None = None
    sentences: int = 0
    matrices: tuple[CorrectedMatrix, ...] = ()
    refused: str | None = None


@dataclass(frozen=True)
class CertifiedVectors:
    certificate: Certificate
    bytes: int
    float32_bytes: int


@dataclass(frozen=True)
class EmbeddingResults:
    """The stages of a finished run in order."""

    float_model: FloatVectors
    collect: Collected
    calibrate: CalibratedVectors
    reconstruct: CorrectedVectors
    certify: CertifiedVectors
    seconds: dict[str, float]

    @classmethod
    def of(cls, folder: Path) -> EmbeddingResults:
        """The results of a finished run; an unfinished run and an altered file are refused."""
        record = finished(folder, ["certify"], "Finish it with hccs convert --problem embeddings first.")
        found: EmbeddingResults = typed(cls, {**record.stages, "seconds": record.seconds}, record.path, REDO)
        return found


@dataclass(frozen=True)
class ConvertedEncoder(FinishedRun):
    """The run of an encoder."""

    def __post_init__(self) -> None:
        _ = self.results

    @cached_property
    def results(self) -> EmbeddingResults:
        return EmbeddingResults.of(self.folder)

    @cached_property
    def settings(self) -> EmbeddingSettings:
        found: EmbeddingSettings = settings_of(self.folder, EmbeddingSettings)
        return found

    @property
    def certificate(self) -> Certificate:
        return self.results.certify.certificate

    @property
    def model(self) -> Path:
        return self.folder / IN_RUN

    @property
    def encoder(self) -> Encoder:
        """The converted encoder: texts in, vectors out."""
        return Encoder.load(self.model)

    @property
    def summary(self) -> str:
        """The run in one sentence."""
        held, found = self.certificate.held_back, self.results.certify
        assert held is not None
        return (
            f"{self.name} answers in integers with a mean cosine of {held.mean:.4f} (smallest "
            f"{held.min:.4f}) to its float vectors on {held.texts} held-back texts, in "
            f"{found.bytes / 2**20:.1f} MiB instead of {found.float32_bytes / 2**20:.1f}."
        )

    @property
    def command(self) -> str:
        """The command that makes the same run."""
        settings = self.settings
        line = ["hccs", "convert", settings.model, "--problem", EMBEDDINGS, "--unlabelled", settings.texts]
        line += ["--out", str(self.folder)]
        for field in fields(settings):
            value = getattr(settings, field.name)
            spelled = field.name in ("text", "n", "pooling", "pairs", "retrieval", "scores", "seed")
            if spelled and field.default is not MISSING and value != field.default:
                line += [f"--{field.name}", str(value)]
        return shlex.join(line if settings.reconstruct else [*line, "--no-reconstruct"])


def convert_embeddings(
    settings: EmbeddingSettings,
    out: str | Path,
    say: Callable[[str], None] = print,
    *,
    marker: str = "settings.json",
) -> ConvertedEncoder:
    """Convert an encoder of sentences, and certify it; an interrupted run is resumed.

    The folder holds `model.hccs`, which `hccs.Encoder` loads, the certificate, a card and a report.
    """
    from hccs.conversion.report.embeddings import write_card
    from hccs.conversion.report.write import write_report

    run = EmbeddingRun(settings, out, say, marker)
    run.run()
    write_card(run.path)
    write_report(run.path)
    return ConvertedEncoder(run.path)


class EmbeddingRun:
    """The texts and models of one conversion; stages read what earlier ones have saved."""

    def __init__(
        self,
        settings: EmbeddingSettings,
        out: str | Path,
        say: Callable[[str], None] = print,
        marker: str = "settings.json",
    ) -> None:
        self.settings, self.say = settings, say
        # Read before anything is written: a run on bad data leaves nothing behind.
        texts = read_texts(Path(settings.texts), (settings.text,))
        if len(texts) < FEWEST:
            raise DataError(f"at least {FEWEST} texts", str(len(texts)), "512 calibrate, 2048 are plenty.")
        if settings.pairs is not None:
            fidelity.read_pairs(settings.pairs)
        if settings.retrieval is not None:
            fidelity.Retrieval.of(settings.retrieval)
        self.float_encoder = load_sentence_encoder(settings.model, settings.pooling, settings.n, say)
        every = Examples([*texts], [0] * len(texts), labelled=False)
        rest, certifies = hold_out(every, MOST_HELD_BACK, settings.seed)
        fitted, chooses = hold_out(rest, MOST_HELD_BACK // 2, settings.seed)
        self.texts = {
            name: [text for (text,) in part.texts]
            for name, part in (("fitted", fitted), ("chooses", chooses), ("certifies", certifies))
        }
        self.fitted = fitted
        head = self.float_encoder.head
        self.fingerprints = {
            "weights": of_weights(self.float_encoder.model),
            "head": repr(
                (
                    head.pooling,
                    [(str(act), of_tensors(layer.state_dict().values())) for layer, act in head.dense],
                )
            ),
            "texts": of_texts([every]),
        }
        self.folder = RunFolder(out, asdict(settings), marker)

    @property
    def path(self) -> Path:
        return self.folder.path

    def run(self) -> None:
        stages: dict[str, Callable[[], Any]] = {
            "float_model": self._float_model,
            "collect": self._collect,
            "calibrate": self._calibrate,
            "reconstruct": self._reconstruct,
            "certify": self._certify,
        }
        with self.folder:
            before = self.folder.record.stages.get("float_model", {}).get("fingerprints", {})
            require_same(before, self.fingerprints, self.path)
            for name, work in stages.items():
                if self.folder.done(name):
                    self.say(f"{name}: done before")
                    continue
                self.say(f"{name} …")
                self.folder.stage(name, work)
                self.say(f"{name}: {self.folder.record.seconds[name]:.1f} s")

    # --- stages -------------------------------------------------------------------------------------------

    def _float_model(self) -> FloatVectors:
        encoder = self.float_encoder
        cut = sum(encoder.count_cut(texts) for texts in self.texts.values())
        return FloatVectors(
            texts={name: len(texts) for name, texts in self.texts.items()},
            cut=cut,
            dims=encoder.dims,
            max_length=encoder.max_length,
            pooling=encoder.head.pooling,
            fingerprints=self.fingerprints,
        )

    def _collect(self) -> Collected:
        """Statistics of logits."""
        encoder, batches = self.float_encoder, self._batches(self.settings.sentences)
        stats = hccs.nn.collect(encoder.model, batches, n=encoder.max_length)
        stats.save(self.path / STATISTICS)
        sentences = sum(len(batch["input_ids"]) for batch in batches)
        return Collected(sentences=sentences, rows=int(stats.rows.sum()), scale="largest")

    def _calibrate(self) -> CalibratedVectors:
        """The logit scale of every head; scores by distance, or those of two lines that were asked for."""
        stats, n = HeadStatistics.load(self.path / STATISTICS), self.float_encoder.max_length
        form = self.settings.scores
        if form is None:
            found = search(stats, n, lines=1, sum_bits=WIDE)
        else:
            found = search(stats, n, lines=2, scores=form, objective="output")
        found.table.save(self.path / CALIBRATED)
        cosine = self._cosine(self._plan(self.float_encoder.model, found.table).lower())
        self.say(f"  {form or BY_DISTANCE} scores: mean cosine {cosine:.4f}")
        return CalibratedVectors(form or BY_DISTANCE, cosine, found.kl)

    def _reconstruct(self) -> CorrectedVectors:
        """Correct the weights for their integers, keep that where it wins, and write the program."""
        before = from_json(CalibratedVectors, self.folder.record.stages["calibrate"]).cosine
        table, teacher = ParamTable.load(self.path / CALIBRATED), self.float_encoder.model
        model = copy.deepcopy(teacher)
        plan = self._plan(model, table)
        plain = plan.lower()
        best, result = plain, CorrectedVectors(False, before)
        if self.settings.reconstruct:
            batches = self._batches(self.settings.reconstruction_sentences)
            try:
                with plan.training():
                    matrices = hccs.nn.reconstruct(model, batches, teacher=teacher, compensate=True)
            except HccsError as error:
                self.say(f"  weights stay as they are: {error}")
                result = replace(result, refused=str(error))
            else:
                corrected = plan.lower()
                after = self._cosine(corrected)
                self.say(f"  corrected weights: mean cosine {before:.4f} -> {after:.4f}")
                best = corrected if after > before else plain
                result = CorrectedVectors(
                    kept=best is corrected,
                    before=before,
                    after=after,
                    sentences=sum(len(batch["input_ids"]) for batch in batches),
                    matrices=tuple(CorrectedMatrix(**asdict(matrix)) for matrix in matrices),
                )
        self._write(best)
        return result

    def _certify(self) -> CertifiedVectors:
        """Compare both models on texts that decided nothing, and on the user's own collections."""
        file, ours, theirs = self.path / IN_RUN, Encoder.load(self.path / IN_RUN), self.float_encoder
        texts, settings = self.texts["certifies"], self.settings
        both = (theirs.encode, partial(_encode, ours))
        found = Certificate(
            model=Path(settings.model).name,
            problem=EMBEDDINGS,
            fingerprint=ours.fingerprint,
            held_back=fidelity.compare_vectors(texts, theirs.encode(texts), _encode(ours, texts)),
            pairs=None if settings.pairs is None else fidelity.score_pairs(settings.pairs, *both),
            retrieval=None
            if settings.retrieval is None
            else fidelity.score_retrieval(settings.retrieval, *both),
            versions=fidelity.versions(),
        )
        write_json(self.path / fidelity.FILE, asdict(found))
        weights = [
            *theirs.model.parameters(),
            *(p for layer, _ in theirs.head.dense for p in layer.parameters()),
        ]
        return CertifiedVectors(found, file.stat().st_size, 4 * sum(p.numel() for p in weights))

    # --- what stages share --------------------------------------------------------------------------------

    def _batches(self, count: int) -> list[dict[str, Any]]:
        """Batches of at most so many texts to fit on, the same for the same count."""
        texts = [text for (text,) in self.fitted.subset(count, self.settings.seed).texts]
        return [batch for _, batch in self.float_encoder.batches(texts, 32)]

    @cached_property
    def _ranges(self) -> ValueRanges:
        """How far all values but logits reach in the float model."""
        encoder, batches = self.float_encoder, self._batches(self.settings.sentences)
        return measured(encoder.model, take_apart(encoder.model, None, encoder.head), batches, counted=False)

    def _plan(self, model: Any, table: ParamTable) -> IntegerPlan:
        return IntegerPlan.measured(
            model,
            table,
            [],
            ranges=self._ranges,
            vector=self.float_encoder.head,
            by_distance=self.settings.scores is None,
        )

    @cached_property
    def _wanted(self) -> NDArray[np.float32]:
        return self.float_encoder.encode(self.texts["chooses"])

    def _cosine(self, model: IntegerModel) -> float:
        found = integer_vectors(model, self.float_encoder, self.texts["chooses"])
        return fidelity.mean_cosine(self._wanted, found)

    def _write(self, model: IntegerModel) -> None:
        encoder = self.float_encoder
        text = TextSettings(
            EMBEDDINGS, encoder.max_length, prompts=encoder.prompts, default_prompt=encoder.default_prompt
        )
        facts = {**model.program.facts, "text": text.as_json()}
        program = replace(model.program, tokenizer=encoder.tokenizer_text, facts=facts)
        IntegerModel(program).save(self.path / IN_RUN)


def _encode(encoder: Encoder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Vectors without the warning of cut texts: the results tell how many there are."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*the rest was not read")
        found: NDArray[np.float32] = encoder.encode(texts)
    return found


def integer_vectors(
    model: IntegerModel, encoder: SentenceEncoder, texts: Sequence[str]
) -> NDArray[np.float32]:
    """Vectors of an integer model for the tokens of a float encoder."""
    found = np.empty((len(texts), encoder.dims), np.float32)
    for places, batch in encoder.batches(texts):
        given = {name: value.cpu().numpy() for name, value in batch.items()}
        found[places] = model(**given).scores / np.float32(INT16_LIMIT)
    return found
