"""How faithful the converted attention is: KL per head before and after retraining, and curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import hccs.nn
from hccs.calibration import fidelity as fidelity_of
from hccs.conversion.data.tokens import TokenisedSet
from hccs.nn.attaching import saved_table
from hccs.nn.interface import SLOT, attention_layers
from hccs.nn.slots import float_softmax
from hccs.numbers.table import ParamTable
from hccs_lab.figures import new_figure, save_figure


def measure(float_model: Any, retrained: Any, table: ParamTable, data: TokenisedSet) -> dict[str, Any]:
    """KL of every head in both models, and curves of the broadest and most focused head.

    `table` is the calibration of the float model; the retrained model carries its own. KL is against the
    softmax of the same model's logits, in nats, mean over rows.
    """
    batches = list(data.batches(64))
    hccs.nn.detach(float_model)
    before = hccs.nn.collect(float_model, batches, n=table.n, scale=table.scale)
    after_table = saved_table(retrained)
    hccs.nn.attach(retrained, after_table)
    after = hccs.nn.collect(retrained, batches, n=table.n, scale=after_table.scale)
    entropy = np.array([-before.summary([h]).negative_entropy for h in range(before.scale.size)])
    heads = {"focused": int(entropy.argmin()), "broad": int(entropy.argmax())}
    hccs.nn.attach(float_model, table)
    found = {
        "entropy": entropy.tolist(),
        "kl_before": fidelity_of(before, table)[..., 0].reshape(-1).tolist(),
        "kl_after": fidelity_of(after, after_table)[..., 0].reshape(-1).tolist(),
        "curves": {
            name: _curve(float_model, retrained, divmod(h, table.shape[1]), data) for name, h in heads.items()
        },
    }
    hccs.nn.detach(float_model)
    return found


def _logits(model: Any, batch: dict[str, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """(logits, mask) of every attention layer on one batch."""
    caught: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    hooks = [
        getattr(module, SLOT).register_forward_pre_hook(lambda _, inputs: caught.append(inputs))
        for module in attention_layers(model).values()
    ]
    device = next(model.parameters()).device
    with torch.no_grad():
        model(**{k: v.to(device) for k, v in batch.items() if k != "labels"})
    for hook in hooks:
        hook.remove()
    return caught


def _curve(float_model: Any, retrained: Any, where: tuple[int, int], data: TokenisedSet) -> dict[str, Any]:
    """Mean probability over key index: softmax of the float model, HCCS of the retrained one."""
    layer, head = where
    longest = max(range(len(data)), key=data.lengths.__getitem__)
    batch = data.__getitems__([longest])
    z, valid = _logits(float_model, batch)[layer]
    with torch.no_grad():
        soft = float_softmax(z, valid)[0, head]
        z_after, valid_after = _logits(retrained, batch)[layer]
        slot: Any = list(attention_layers(retrained).values())[layer].hccs_softmax
        integers = slot(z_after, valid_after)[0, head]
    return {
        "layer": layer,
        "head": head,
        "softmax": soft.mean(0).tolist(),
        "hccs": integers.mean(0).tolist(),
    }


def fidelity_figure(found: dict[str, Any], path: Path, title: str = "") -> None:
    """The paper's figure: probability over key index for a broad and a focused head; and KL per head."""
    figure = new_figure(11, 3.2)
    axes = figure.subplots(1, 3)
    for place, (name, curve) in zip(axes, found["curves"].items(), strict=False):
        place.plot(curve["softmax"], label="float softmax", color="tab:blue")
        place.plot(curve["hccs"], label="HCCS, retrained", color="tab:orange")
        place.set_title(f"{name}: layer {curve['layer']}, head {curve['head']}", fontsize=9)
        place.set_xlabel("key index")
        place.set_ylabel("mean probability")
        place.legend(fontsize=7)
    heads = range(len(found["kl_before"]))
    axes[2].bar([h - 0.2 for h in heads], found["kl_before"], 0.4, label="without retraining")
    axes[2].bar([h + 0.2 for h in heads], found["kl_after"], 0.4, label="retrained")
    axes[2].set_xlabel("head")
    axes[2].set_ylabel("KL, nats")
    axes[2].legend(fontsize=7)
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path)
