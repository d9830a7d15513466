"""The report and the card of a converted encoder: how close its vectors are, and for which texts least."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import hccs
from hccs._files import atomic
from hccs._html.charts import bar
from hccs._html.elements import Markup
from hccs.conversion.card import CERTIFIED, escaped, fenced, markdown_table
from hccs.conversion.certificate import Certificate
from hccs.conversion.embeddings import ConvertedEncoder
from hccs.conversion.report.conversion import time_section
from hccs.conversion.report.page import Fact, Report, Section, boxed, command, paragraph, words

FAR = 0.95
"""A text whose cosine is below is worth a warning."""

USE = """```python
import hccs

model = hccs.Encoder.load("{file}")
vectors = model.encode(["a query", "a passage"])  # unit vectors; the same bits on every machine
```"""


def embeddings_report(folder: Path) -> Report:
    """The report of a finished run."""
    run = ConvertedEncoder(folder)
    held, results = run.certificate.held_back, run.results
    assert held is not None
    size = f"{results.certify.bytes / 2**20:.1f} MiB"
    return Report(
        kicker="hccs convert --problem embeddings",
        title=f"{run.name} in integers",
        sentence=run.summary,
        facts=[
            Fact("mean cosine to float", f"{held.mean:.4f}", f"{held.texts} held-back texts"),
            Fact("smallest cosine", f"{held.min:.4f}", f"1 % below {held.percentiles['1']:.4f}"),
            Fact("equal neighbours", f"{100 * held.overlap:.1f} %", "of the 10 nearest texts"),
            Fact("size", size, f"float32 {results.certify.float32_bytes / 2**20:.1f} MiB"),
        ],
        warnings=_warnings(run),
        sections=[
            Section("certificate", "Certificate", _certificate(run)),
            Section("cosines", "Cosines", _histogram(run)),
            Section("worst", "Worst texts", _worst(run)),
            Section("choices", "What was chosen", _choices(run)),
            Section("time", "Time", time_section(results.seconds)),
            Section("again", "Settings and commands", _commands(run)),
        ],
    )


def _warnings(run: ConvertedEncoder) -> list[str]:
    results, held, found = run.results, run.certificate.held_back, []
    assert held is not None
    if held.min < FAR:
        far = sum(1 for worst in held.worst if worst.cosine < FAR)
        found.append(f"{far} of the worst texts have a cosine below {FAR}: look at them.")
    if results.float_model.cut:
        found.append(
            f"{results.float_model.cut} texts have more than {results.float_model.max_length} tokens: the "
            "rest of them was not read."
        )
    if results.reconstruct.refused:
        found.append(f"Weights could not be corrected: {results.reconstruct.refused}")
    return found


def _certificate(run: ConvertedEncoder) -> list[Markup]:
    found = run.certificate
    return [
        boxed(CERTIFIED, found.rows()),
        words([("fingerprint", found.fingerprint), *(found.versions or {}).items()]),
    ]


def _histogram(run: ConvertedEncoder) -> list[Markup]:
    held = run.certificate.held_back
    assert held is not None
    most = max(count for _, count in held.histogram)
    rows = [
        [f"from {low:.4f}", str(count), bar(count, most, described=f"{count} texts")]
        for low, count in reversed(held.histogram)
    ]
    return [
        paragraph("Held-back texts by the cosine of their integer vector to their float vector."),
        boxed(["cosine", "texts", ""], rows),
    ]


def _worst(run: ConvertedEncoder) -> list[Markup]:
    held = run.certificate.held_back
    assert held is not None
    return [boxed(["text", "cosine"], [[worst.text, f"{worst.cosine:.4f}"] for worst in held.worst])]


def _choices(run: ConvertedEncoder) -> list[Markup]:
    results = run.results
    chosen, corrected = results.calibrate.chosen, results.reconstruct
    rows: list[list[Any]] = [
        [f"{tried.scores} scores", f"{tried.cosine:.4f}", "yes" * (tried == chosen)]
        for tried in results.calibrate.candidates
    ]
    if corrected.after is not None:
        what = f"weights corrected on {corrected.sentences} texts"
        rows.append([what, f"{corrected.after:.4f}", "yes" * corrected.kept])
    texts = results.float_model.texts
    return [
        paragraph(
            f"{texts['chooses']} held-back texts chose by their mean cosine to the float model; "
            f"{texts['certifies']} others certify."
        ),
        boxed(["", "mean cosine", "chosen"], rows),
    ]


def _commands(run: ConvertedEncoder) -> list[Markup]:
    settings = [(name.replace("_", " "), value) for name, value in asdict(run.settings).items()]
    return [
        command(run.command, "To repeat the run:"),
        command(f"hccs fingerprint {run.model}\nhccs show {run.model}", "More about it:"),
        words((name, value) for name, value in settings if value is not None),
    ]


def write_card(folder: Path) -> Path:
    """Write README.md, as the Hub shows it, into the folder of a finished run."""
    run = ConvertedEncoder(folder)
    path = folder / "README.md"
    atomic.replace(path, _card(run).encode())
    return path


def certificate_table(found: Certificate) -> str:
    """A certificate in Markdown."""
    return markdown_table(CERTIFIED, found.rows())


def _card(run: ConvertedEncoder) -> str:
    front = ["library_name: hccs", "pipeline_tag: sentence-similarity", "tags:", "- hccs", "- embeddings"]
    results, found = run.results, run.certificate
    parts = [
        "\n".join(["---", *front, "---"]),
        f"# {escaped(run.name)}, in integers by hccs",
        escaped(run.summary),
        f"Unit vectors of {results.float_model.dims} channels, {results.float_model.pooling} pooling, texts "
        f"of up to {results.float_model.max_length} tokens.",
        "## Use",
        USE.format(file=run.model.name),
        "## Certificate",
        certificate_table(found),
        f"Fingerprint `{found.fingerprint}`: `hccs fingerprint {run.model.name}` computes it on any machine.",
        "## Made by",
        f"hccs {hccs.__version__}:\n\n{fenced(run.command)}",
    ]
    return "\n\n".join(parts) + "\n"
