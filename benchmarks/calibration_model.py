"""How long does calibrating a whole model take? Collect and search, from sentences of a task.

python benchmarks/calibration_model.py MODEL_FOLDER --data SST2_FOLDER [--vocabulary vocab.txt]
"""

from __future__ import annotations

import argparse
import time

from hccs.conversion.data import tasks
from hccs.conversion.data.tokens import tokenise
from hccs.conversion.models import load_classifier
from hccs.conversion.steps import calibrate


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
    found = calibrate(loaded.model.eval(), chosen, n=data.task.n)
    heads = len(found.calibration.heads)
    print(f"{heads} heads, {len(chosen)} sentences, n = {data.task.n}: {time.perf_counter() - began:.1f} s, "
          f"mean KL {found.calibration.kl:.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
