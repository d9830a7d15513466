"""How faithful is an encoder of sentences in integers: STS-B, cosines and retrieval beside its float model?

    python benchmarks/embeddings_fidelity.py --model FOLDER --data DIR [--hccs FILE] [--texts FILE]
        [--compare FILE] [--json FILE]

FOLDER is one of sentence-transformers. DIR holds stsb/test.tsv (sentence1, sentence2, score) and cranfield
(documents.tsv, queries.tsv, relevance.txt). Without FILE, a model that was converted before, the model is
converted on the texts, one per line; by default on those that models/minilm-l6/make.py draws from DIR.
A model that was made for other texts is compared with its float model on those of --compare: cosines alone.
"""

from __future__ import annotations

import argparse
import runpy
import tempfile
import time
import warnings
from dataclasses import asdict
from pathlib import Path

from provenance import write_json

import hccs
from hccs.conversion.certificate import compare_vectors, read_pairs, score_pairs, score_retrieval
from hccs.conversion.sentence_transformers import SentenceEncoder, load_sentence_encoder

MADE_BY = Path(__file__).parents[1] / "models" / "minilm-l6" / "make.py"
"""Draws the texts with which the shipped model was converted."""


def converted(options: argparse.Namespace, folder: Path) -> tuple[hccs.Encoder, dict[str, float]]:
    """The integer model, and the seconds of processor time and of the clock that its conversion took."""
    if options.hccs is not None:
        return hccs.Encoder.load(options.hccs), {}
    texts = options.texts or runpy.run_path(str(MADE_BY))["texts"](options.data)
    clock, processor = time.perf_counter(), time.process_time()
    run = hccs.convert(options.model, texts, problem="embeddings", out=folder / "run")
    took = {"seconds": time.perf_counter() - clock, "processor_seconds": time.process_time() - processor}
    return run.encoder, took


def cosines(theirs: SentenceEncoder, ours: hccs.Encoder, texts: list[str]) -> dict[str, object]:
    found = asdict(compare_vectors(texts, theirs.encode(texts), ours.encode(texts)))
    return {name: found[name] for name in ("texts", "mean", "min", "percentiles", "overlap")}


def measure(theirs: SentenceEncoder, ours: hccs.Encoder, data: Path) -> dict[str, object]:
    """STS-B, the cosines of its sentences, and Cranfield."""
    pairs, both = str(data / "stsb" / "test.tsv"), (theirs.encode, ours.encode)
    first, second, _ = read_pairs(pairs)
    return {
        "stsb": asdict(score_pairs(pairs, *both)),
        "cosine": cosines(theirs, ours, [*first, *second]),
        "cranfield": asdict(score_retrieval(str(data / "cranfield"), *both)),
    }


def show(found: dict[str, dict[str, float]]) -> None:
    for name, task in (("stsb", "STS-B test, Spearman x 100"), ("cranfield", "Cranfield, nDCG@10 x 100")):
        if name in found:
            both = found[name]
            print(f"{task}: float {both['float_model']:.2f}, integers {both['integer_model']:.2f}")
    if "cranfield" in found:
        print(f"{100 * found['cranfield']['overlap']:.1f} % of Cranfield's results are equal")
    cosine = found["cosine"]
    print(f"cosine of {cosine['texts']} texts: mean {cosine['mean']:.4f}, smallest {cosine['min']:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument(
        "--hccs", type=Path, help="a converted model, or its run; without it one is converted"
    )
    parser.add_argument("--texts", type=Path, help="one text per line, to convert on")
    parser.add_argument("--compare", type=Path, help="one text per line, for cosines alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.data is None and (options.compare is None or not (options.hccs or options.texts)):
        parser.error("--data is needed, or --compare with --hccs or --texts")
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        ours, took = converted(options, Path(folder))
    theirs = load_sentence_encoder(options.model, n=ours.max_length)
    if options.compare is not None:
        lines = options.compare.read_text(encoding="utf-8").splitlines()
        measured: dict[str, object] = {
            "cosine": cosines(theirs, ours, [line for line in lines if line.strip()])
        }
    else:
        measured = measure(theirs, ours, options.data)
    show(measured)
    if options.json is not None:
        model = {"model": Path(options.model).name, "fingerprint": ours.fingerprint, "conversion": took}
        write_json(options.json, {**model, **measured})


if __name__ == "__main__":
    main()
