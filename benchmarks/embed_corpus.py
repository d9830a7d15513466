"""How fast does `hccs embed` go, beside a plain loop of `Encoder.encode` over the same file?

    python benchmarks/embed_corpus.py --texts FILE... [--count 200000] [--column NAME] [--turns 1]
        [--json FILE]

The loop reads the texts once and encodes 4,096 at a time with all threads; it writes nothing. `hccs embed`
reads, encodes, writes Parquet and syncs it to disk. Both take turns; the best turn of each counts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from provenance import write_json

import hccs
from hccs.corpus.embedding import embed, plan
from hccs.corpus.folder import Folder
from hccs.corpus.reading import KINDS, Columns, rows, sources

LOOP = 4096


def read_texts(files: list[str], column: str, count: int) -> list[str]:
    """Texts of files; of a table without the column, its first one."""
    found: list[str] = []
    for source in sources(files, None):
        table = KINDS.get(Path(source.name).suffix) in ("csv", "tsv")
        with open(source.name, encoding="utf-8") as file:
            first = file.readline().strip()
        names = first.split("," if source.name.endswith("csv") else "\t")
        columns = Columns(column if column in names else names[0]) if table else Columns()
        found += [row[1] for row in rows(source, columns)]
    return found[:count]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", nargs="+", default=[str(Path(__file__).with_name("embedding_texts.txt"))])
    parser.add_argument("--column", default="text")
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    texts = [" ".join(t.split()) for t in read_texts(options.texts, options.column, options.count)]
    texts = [text for text in texts if text]
    encoder = hccs.Encoder.load(options.model)
    encoder.encode(texts[:64])
    seconds: dict[str, list[float]] = {"loop": [], "embed": []}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "texts.txt"
        source.write_text("\n".join(texts), encoding="utf-8")
        for turn in range(options.turns):
            began = time.perf_counter()
            lines = source.read_text(encoding="utf-8").splitlines()
            chunks = [lines[i : i + LOOP] for i in range(0, len(lines), LOOP)]
            loop = [encoder.encode(chunk, out="int8", prompt="") for chunk in chunks]
            seconds["loop"].append(time.perf_counter() - began)
            out = Path(folder) / f"out{turn}"
            began = time.perf_counter()
            embed(*plan([str(source)], out, model=options.model, prompt=""))
            seconds["embed"].append(time.perf_counter() - began)
            written = Folder.load(out)
            parts = [written.vectors(name) for name in written.names()]
            np.testing.assert_array_equal(np.concatenate(parts), np.concatenate(loop))
    rates = {name: len(texts) / min(values) for name, values in seconds.items()}
    over = rates["embed"] / rates["loop"]
    print(f"{len(texts)} texts on {len(os.sched_getaffinity(0))} cores")
    for name, rate in rates.items():
        print(f"{name:6s} {rate:8.0f} texts/s")
    print(f"embed over the loop: {over:.2f}")
    found: dict[str, Any] = {"texts": len(texts), "seconds": seconds, "rates": rates, "over": over}
    if options.json:
        write_json(options.json, found)


if __name__ == "__main__":
    main()
