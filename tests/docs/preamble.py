"""What the pages take as given: files and names that their snippets use without making them.

Each page runs in a folder with these files and in a namespace with these names.
"""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from hccs.conversion.data import tasks
from hccs_lab.demo import MODEL

SENTENCES = 16


def write_files(folder: Path) -> None:
    """A model, a decoder, a task's folder, tables of one's own, logits.

    `MODEL` is the embedded BERT-tiny; `DECODER` a random GPT-2; `DATA` holds SST-2 as far as anyone
    can tell; `mine.csv`, `other.tsv`;
    `logits.npz` as `hccs calibrate` reads it; `x.npy`: int8 rows; `sentences.txt`: texts alone.
    """
    import transformers

    shutil.copytree(MODEL, folder / "MODEL")
    sizes = transformers.GPT2Config(
        vocab_size=30522, n_embd=32, n_layer=2, n_head=2, bos_token_id=101, eos_token_id=102
    )
    transformers.GPT2LMHeadModel(sizes).save_pretrained(folder / "DECODER")
    movies = tasks.load(tasks.TASKS["movies"])
    chosen = movies.train.subset(SENTENCES)
    rows = [(text[0], label) for text, label in zip(chosen.texts, chosen.labels, strict=True)]
    (folder / "DATA").mkdir()
    for file in ("DATA/train.tsv", "DATA/dev.tsv", "other.tsv"):
        lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows)]
        (folder / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "sentences.txt").write_text("\n".join(text for text, _ in rows[:5]) + "\n", encoding="utf-8")
    with open(folder / "mine.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("review", "stars"), *rows])
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (2, 2, 200, 32)).astype(np.float32)
    np.savez(folder / "logits.npz", logits=logits, lengths=rng.integers(5, 33, 200))
    np.save(folder / "x.npy", rng.integers(-128, 128, (64, 64)).astype(np.int8))


def names() -> dict[str, Any]:
    """`model`, a transformers classifier; `batches` and `prompts` of its tokenizer."""
    import transformers

    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForSequenceClassification.from_pretrained(MODEL).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    texts = [text[0] for text in tasks.load(tasks.TASKS["movies"]).train.subset(SENTENCES).texts]
    batches = [
        tokenizer(texts[i : i + 8], padding=True, truncation=True, max_length=64, return_tensors="pt")
        for i in range(0, SENTENCES, 8)
    ]
    prompts = tokenizer(["a fine film"], return_tensors="pt", return_token_type_ids=False)
    return {"model": model, "batches": [dict(batch) for batch in batches], "prompts": dict(prompts)}
