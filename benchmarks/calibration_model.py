"""How long does calibrating a whole model take? Collect and search, from sentences of a task.

python benchmarks/calibration_model.py MODEL_FOLDER --data SST2_FOLDER [--vocabulary vocab.txt]
"""

from __future__ import annotations

import argparse
import time

import hccs.nn
from hccs.calibration import search
from hccs.conversion.data import tasks
from hccs.conversion.data.tokens import tokenise
from hccs.conversion.models import load_classifier


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--vocabulary")
    parser.add_argument("--sentences", type=int, default=512)
    options = parser.parse_args()
    data = tasks.load(tasks.TASKS[options.task], options.data)
    loaded = load_classifier(options.model, data.labels, options.vocabulary)
    chosen = tokenise(data.train.subset(options.sentences), loaded.tokenizer, data.task.n)
    began = time.perf_counter()
    found = search(hccs.nn.collect(loaded.model.eval(), list(chosen.batches(64)), n=data.task.n), data.task.n)
    seconds = time.perf_counter() - began
    print(f"{len(found.heads)} heads, {len(chosen)} sentences, n = {data.task.n}: {seconds:.1f} s, "
          f"mean KL {found.kl:.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
