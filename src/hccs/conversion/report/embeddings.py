"""The report and the card of a converted encoder: how close its vectors are, and for which texts least."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import hccs
from hccs._files import atomic
from hccs.conversion.card import CERTIFIED, escaped, fenced, markdown_table
from hccs.conversion.embeddings import ConvertedEncoder
from hccs.conversion.report.write import chart

FAR = 0.95
"""A text whose cosine is below is worth a warning."""

USE = """```python
import hccs

model = hccs.Encoder.load("{file}")
vectors = model.encode(["a query", "a passage"])  # unit vectors; the same bits on every machine
```"""

SECTIONS = {
    "certificate": "Certificate",
    "cosines": "Cosines",
    "worst": "Worst texts",
    "choices": "What was chosen",
    "time": "Time",
    "again": "Settings and commands",
}


def embeddings_page(folder: Path) -> dict[str, Any]:
    """What `embeddings.html` shows of a finished run."""
    run = ConvertedEncoder(folder)
    held, results = run.certificate.held_back, run.results
    assert held is not None
    most = max(count for _, count in held.histogram)
    return {
        "kind": "embeddings",
        "kicker": "hccs convert --problem embeddings",
        "title": f"{run.name} in integers",
        "sentence": run.summary,
        "facts": [
            ("mean cosine to float", f"{held.mean:.4f}", f"{held.texts} held-back texts"),
            ("smallest cosine", f"{held.min:.4f}", f"1 % below {held.percentiles['1']:.4f}"),
            ("equal neighbours", f"{100 * held.overlap:.1f} %", "of the 10 nearest texts"),
            (
                "size",
                f"{results.certify.bytes / 2**20:.1f} MiB",
                f"float32 {results.certify.float32_bytes / 2**20:.1f} MiB",
            ),
        ],
        "warnings": _warnings(run),
        "sections": SECTIONS,
        "run": run,
        "results": results,
        "held": held,
        "histogram": [
            [f"from {low:.4f}", count, chart("bar", count, most, f"{count} texts")]
            for low, count in reversed(held.histogram)
        ],
        "tried": _tried(run),
        "settings": [(k.replace("_", " "), v) for k, v in asdict(run.settings).items() if v is not None],
    }


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


def _tried(run: ConvertedEncoder) -> list[list[str]]:
    calibrated, corrected = run.results.calibrate, run.results.reconstruct
    rows = [
        [f"{calibrated.scores} scores", f"{calibrated.cosine:.4f}", "yes" * (not corrected.kept)],
    ]
    if corrected.after is not None:
        what = f"weights corrected on {corrected.sentences} texts"
        rows.append([what, f"{corrected.after:.4f}", "yes" * corrected.kept])
    return rows


def write_card(folder: Path) -> Path:
    """Write README.md, as the Hub shows it, into the folder of a finished run."""
    run = ConvertedEncoder(folder)
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
        markdown_table(CERTIFIED, found.rows()),
        f"Fingerprint `{found.fingerprint}`: `hccs fingerprint {run.model.name}` computes it on any machine.",
        "## Made by",
        f"hccs {hccs.__version__}:\n\n{fenced(run.command)}",
    ]
    path = folder / "README.md"
    atomic.replace(path, ("\n\n".join(parts) + "\n").encode())
    return path
