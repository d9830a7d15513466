"""Makes the model of this distribution again.

    python models/minilm-l6/make.py --model FOLDER --data DATA --out build/minilm-l6

FOLDER is all-MiniLM-L6-v2 as sentence-transformers saves it. DATA holds the data sets mnli, snli, sst2,
banking77, stsb and cranfield: a seeded mix of training texts, and of longer ones put together from premises,
calibrates the model and corrects its weights. No label is read; STS-B's test part and Cranfield are for the
certificate alone.
"""

from __future__ import annotations

import argparse
import csv
import random
import shutil
from pathlib import Path

import hccs

HERE = Path(__file__).parent
TARGET = HERE / "src" / "hccs_minilm_l6" / "all-MiniLM-L6-v2.hccs"
MIX = (
    ("mnli/train.tsv", "premise", 700),
    ("snli/train.tsv", "hypothesis", 400),
    ("sst2/train.tsv", "sentence", 200),
    ("banking77/train.csv", "text", 200),
    ("stsb/train.tsv", "sentence1", 700),
)
LONG, SHORTEST, LONGEST = 300, 60, 200
"""Texts of so many words, each made of premises that follow one another."""


def texts(data: Path, seed: int = 0) -> list[str]:
    """The mix, and long texts, in an order by the seed."""
    rng, found = random.Random(seed), []
    for name, column, count in MIX:
        tabs = name.endswith(".tsv")
        with (data / name).open(encoding="utf-8", newline="") as file:
            quoting = csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL
            rows = [
                row[column] for row in csv.DictReader(file, delimiter="\t" if tabs else ",", quoting=quoting)
            ]
        rows = [" ".join(row.split()) for row in rows if row.strip()]
        found += rng.sample(rows, count)
        if name.startswith("mnli"):
            words = " ".join(dict.fromkeys(rows)).split()
            for _ in range(LONG):
                start, count = rng.randrange(len(words) - LONGEST), rng.randint(SHORTEST, LONGEST)
                found.append(" ".join(words[start : start + count]))
    rng.shuffle(found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--out", type=Path, required=True, help="the run's folder: report, certificate, model"
    )
    arguments = parser.parse_args()
    found = hccs.convert(
        arguments.model,
        texts(arguments.data),
        out=arguments.out,
        problem="embeddings",
        pairs=str(arguments.data / "stsb" / "test.tsv"),
        retrieval=str(arguments.data / "cranfield"),
    )
    shutil.copy(found.model, TARGET)
    shutil.copy(found.folder / "certificate.json", HERE / "certificate.json")
    print(found.summary)


if __name__ == "__main__":
    main()
