"""How faithful is an encoder of sentences in integers: STS-B, cosines and retrieval beside its float model?

    python benchmarks/embeddings_fidelity.py --model FOLDER --data DIR [--hccs FILE] [--texts FILE]
        [--json FILE]

FOLDER is one of sentence-transformers. DIR holds stsb/test.tsv (sentence1, sentence2, score) and cranfield
(documents.tsv, queries.tsv, relevance.txt). Without FILE, a model that was converted before, the model is
converted on the texts, one per line; by default on unlabelled texts of DIR: premises of MNLI, hypotheses of
SNLI, sentences of SST-2, Banking77 and STS-B's training part.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
import warnings
from dataclasses import asdict
from pathlib import Path

from provenance import write_json

import hccs
from hccs.conversion.certificate import compare_vectors, read_pairs, score_pairs, score_retrieval
from hccs.conversion.data.reading import read_table
from hccs.conversion.sentence_transformers import SentenceEncoder, load_sentence_encoder

MIXTURE = (
    ("mnli/train.tsv", "premise", 500),
    ("snli/train.tsv", "hypothesis", 350),
    ("sst2/train.tsv", "sentence", 200),
    ("banking77/train.csv", "text", 200),
    ("stsb/train.tsv", "sentence1", 600),
)
"""Files that are read where they exist, a column of each, and how many of its texts."""


def mixture(data: Path) -> list[str]:
    """Texts of every file, drawn by a fixed seed."""
    found: list[str] = []
    for name, column, count in MIXTURE:
        if (data / name).exists():
            texts = read_table(data / name, (column,), if_missing="", if_other_columns="").cells(column)
            found += random.Random(0).sample(texts, min(count, len(texts)))
    return [" ".join(text.split()) for text in found if text.strip()]


def converted(options: argparse.Namespace, folder: Path) -> tuple[hccs.Encoder, dict[str, float]]:
    """The integer model, and the seconds of processor time and of the clock that its conversion took."""
    if options.hccs is not None:
        return hccs.Encoder.load(options.hccs), {}
    texts = options.texts if options.texts is not None else mixture(options.data)
    clock, processor = time.perf_counter(), time.process_time()
    run = hccs.convert(options.model, texts, problem="embeddings", out=folder / "run")
    took = {"seconds": time.perf_counter() - clock, "processor_seconds": time.process_time() - processor}
    return run.encoder, took


def measure(theirs: SentenceEncoder, ours: hccs.Encoder, data: Path) -> dict[str, object]:
    """Every measure by name."""
    pairs, both = str(data / "stsb" / "test.tsv"), (theirs.encode, ours.encode)
    first, second, _ = read_pairs(pairs)
    texts = [*first, *second]
    cosines = asdict(compare_vectors(texts, *(encode(texts) for encode in both)))
    return {
        "fingerprint": ours.fingerprint,
        "stsb": asdict(score_pairs(pairs, *both)),
        "cosine": {name: cosines[name] for name in ("texts", "mean", "min", "percentiles", "overlap")},
        "cranfield": asdict(score_retrieval(str(data / "cranfield"), *both)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument(
        "--hccs", type=Path, help="a converted model, or its run; without it one is converted"
    )
    parser.add_argument("--texts", type=Path, help="one text per line, to convert on")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        ours, took = converted(options, Path(folder))
    theirs = load_sentence_encoder(options.model, n=ours.max_length)
    found = {"model": Path(options.model).name, "conversion": took, **measure(theirs, ours, options.data)}
    stsb, cosine, cranfield = found["stsb"], found["cosine"], found["cranfield"]
    print(
        f"STS-B test, Spearman x 100: float {stsb['float_model']:.2f}, integers {stsb['integer_model']:.2f}"
    )
    print(f"cosine of {cosine['texts']} sentences: mean {cosine['mean']:.4f}, smallest {cosine['min']:.4f}")
    print(
        f"Cranfield, nDCG@10 x 100: float {cranfield['float_model']:.2f}, integers "
        f"{cranfield['integer_model']:.2f}; {100 * cranfield['overlap']:.1f} % of the results are equal"
    )
    if options.json is not None:
        write_json(options.json, found)


if __name__ == "__main__":
    main()
