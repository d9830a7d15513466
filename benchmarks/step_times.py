"""Where the time of an encoder in integers goes, step by step: a part of encoder_cpu.py."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from encoder_variants import table_for, tokens
from linear_cpu import peak_of_products
from turns import seconds_of

import hccs.nn
from hccs.executors import cpu
from hccs.program import operators as op
from hccs.program.plan import Step, plan

TURNS, SECONDS = 7, 0.2
COPY = 1 << 26  # bytes, more than caches hold
NAMES = {op.Linear: "linear", op.Attention: "attention", op.LayerNorm: "LayerNorm"}
ACTIVATIONS = (op.NarrowRows, op.Narrow, op.Table, op.Ramp)


def kind(step: Step) -> str:
    if step.main.embeds or (step.before is not None and step.before.embeds):
        return "embedding"
    return "activation" if isinstance(step.main, ACTIVATIONS) else NAMES.get(type(step.main), "other")


def products(step: Step, width: int, batch: int, n: int) -> int:
    """Multiply-adds of a step whose output has so many channels."""
    rows = batch * (n if step.all_rows else 1)
    if isinstance(step.main, op.Linear):
        return rows * width * step.main.params.weight.shape[1]
    return 2 * rows * n * width if isinstance(step.main, op.Attention) else 0


def time_steps(model: Any, shape: str, sizes: list[str]) -> list[dict[str, Any]]:
    """Seconds of every kind of step in the fastest turn, and of its products at the peak of VNNI or AMX."""
    longest = max(int(size.split("x")[1]) for size in sizes)
    whole = hccs.nn.lower(model, table_for(model, longest), [tokens(model, 2, longest)])
    program = whole.program
    planned = plan(program, cpu.TARGET)
    steps = [step for group in planned.groups for step in group]
    engine, peak, found = cpu.compiled(program), peak_of_products(), []
    if engine is None:
        return []
    width = whole.width
    for size in ["1x1", *sizes]:
        batch, n = map(int, size.split("x"))
        ids = tokens(model, batch, n)["input_ids"].numpy()

        def call(ids: Any = ids) -> None:
            engine.answer(ids, None, None, 1, width)

        call()
        repeats = max(1, int(SECONDS / seconds_of(call)))
        best, per_second = (float("inf"), np.empty(0)), 0.0
        for _ in range(TURNS):
            per_second = max(per_second, peak() if peak else 0.0)
            engine.time_steps()
            whole = seconds_of(call, repeats)
            best = min(best, (whole, np.array(engine.step_seconds()) / repeats), key=lambda one: one[0])
        seconds, floors = defaultdict(float), defaultdict(float)
        for step, spent in zip(steps, best[1], strict=True):
            seconds[kind(step)] += float(spent)
            if per_second:
                floors[kind(step)] += (
                    products(step, planned.values[step.writes[0]].width, batch, n) / per_second
                )
        seconds["call"] = best[0] - float(best[1].sum())
        entry = {
            "shape": shape,
            "size": size,
            "all": best[0],
            "seconds": dict(seconds),
            "floor": dict(floors),
        }
        if n == batch == 1:
            weights = sum(step.main.params.weight.size for step in steps if isinstance(step.main, op.Linear))
            entry["weights_over_copy"] = weights / seconds["linear"] / copied_per_second()
        found.append(entry)
        show(entry)
    return found


def copied_per_second() -> float:
    """Bytes that a copy reads and writes."""
    from_, to = np.ones(COPY, np.uint8), np.zeros(COPY, np.uint8)
    return 2 * COPY / min(seconds_of(lambda: np.copyto(to, from_)) for _ in range(5))


def show(entry: dict[str, Any]) -> None:
    all_floors = sum(entry["floor"].values())
    print(f"\n{entry['shape']}, {entry['size']}: {1e6 * entry['all']:.0f} us", end="")
    print(f", {all_floors / entry['all']:.2f} of it products at the peak" if all_floors else "")
    for name, seconds in sorted(entry["seconds"].items(), key=lambda one: -one[1]):
        floor = entry["floor"].get(name, 0.0)
        share = f", {floor / seconds:.2f} of it products at the peak" if floor else ""
        print(f"  {name:12} {1e6 * seconds:10.1f} us, {seconds / entry['all']:.3f} of all{share}")
    if "weights_over_copy" in entry:
        print(f"  weights are read at {entry['weights_over_copy']:.2f} of a copy's bandwidth")
