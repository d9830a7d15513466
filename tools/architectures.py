"""Makes docs/architectures.md: what of hccs works on each architecture of transformers, tried here and now.

    python tools/architectures.py            # writes the page
    python tools/architectures.py --check    # says whether it is what the code does

A tiny random model of each is converted; every "yes" is a comparison that held. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf

import hccs
import hccs.nn
from hccs.errors import HccsError
from hccs.executors.onnx import equal_scores
from hccs.export import export_c_model, write_onnx

PAGE = Path(__file__).parents[1] / "docs" / "architectures.md"
N = 20
"""The longest row of the tiny models."""
YES, NO = "yes", "no"

_SHAPE = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=37,
    initializer_range=0.15,
)
_WORDS = dict(_SHAPE, vocab_size=60, max_position_embeddings=70)
_IMAGE = dict(_SHAPE, image_size=24, patch_size=6)
_SPECIAL = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)


@dataclass(frozen=True)
class Architecture:
    """One of transformers: how to make a tiny one, and models that are of it."""

    name: str
    known_as: str
    make: Callable[[], Any]
    inputs: str = "tokens"


ARCHITECTURES = (
    Architecture(
        "BERT",
        "bert-base-uncased, MiniLM-L6, bge, e5",
        lambda: hf.BertForSequenceClassification(hf.BertConfig(**_WORDS)),
    ),
    Architecture(
        "RoBERTa", "roberta-base", lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**_WORDS))
    ),
    Architecture(
        "XLM-RoBERTa",
        "xlm-roberta-base, multilingual-e5",
        lambda: hf.XLMRobertaForSequenceClassification(hf.XLMRobertaConfig(**_WORDS)),
    ),
    Architecture(
        "CamemBERT",
        "camembert-base",
        lambda: hf.CamembertForSequenceClassification(hf.CamembertConfig(**_WORDS)),
    ),
    Architecture(
        "DistilBERT",
        "distilbert-base-uncased",
        lambda: hf.DistilBertForSequenceClassification(
            hf.DistilBertConfig(
                vocab_size=60, dim=32, n_layers=2, n_heads=4, hidden_dim=37, initializer_range=0.15
            )
        ),
    ),
    Architecture(
        "ELECTRA",
        "electra-base-discriminator",
        lambda: hf.ElectraForSequenceClassification(hf.ElectraConfig(**_WORDS, embedding_size=32)),
    ),
    Architecture(
        "ELECTRA, narrow embeddings",
        "electra-small-discriminator",
        lambda: hf.ElectraForSequenceClassification(hf.ElectraConfig(**_WORDS, embedding_size=16)),
    ),
    Architecture(
        "ALBERT",
        "albert-base-v2",
        lambda: hf.AlbertForSequenceClassification(hf.AlbertConfig(**_WORDS, embedding_size=16)),
    ),
    Architecture(
        "ModernBERT",
        "ModernBERT-base",
        lambda: hf.ModernBertForSequenceClassification(
            hf.ModernBertConfig(**_WORDS, **_SPECIAL, cls_token_id=1, sep_token_id=2, local_attention=8)
        ),
    ),
    Architecture(
        "MPNet",
        "all-mpnet-base-v2",
        lambda: hf.MPNetForSequenceClassification(hf.MPNetConfig(**_WORDS)),
    ),
    Architecture(
        "DeBERTa",
        "deberta-v3-base",
        lambda: hf.DebertaV2ForSequenceClassification(
            hf.DebertaV2Config(**_WORDS, relative_attention=True, pos_att_type="p2c|c2p")
        ),
    ),
    Architecture(
        "ViT",
        "vit-base-patch16-224",
        lambda: hf.ViTForImageClassification(hf.ViTConfig(**_IMAGE)),
        "images",
    ),
    Architecture(
        "DeiT",
        "deit-tiny-patch16-224",
        lambda: hf.DeiTForImageClassification(hf.DeiTConfig(**_IMAGE)),
        "images",
    ),
    Architecture(
        "GPT-2",
        "gpt2, distilgpt2",
        lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(
                vocab_size=60, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.15
            )
        ),
    ),
    Architecture(
        "GPT-2, last token",
        "classifiers of sequences",
        lambda: hf.GPT2ForSequenceClassification(
            hf.GPT2Config(
                vocab_size=60,
                n_positions=64,
                n_embd=32,
                n_layer=2,
                n_head=4,
                initializer_range=0.15,
                pad_token_id=1,
            )
        ),
    ),
    Architecture(
        "Llama",
        "Llama-3.2-1B, SmolLM2",
        lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_WORDS, num_key_value_heads=2)),
    ),
    Architecture(
        "Qwen2",
        "Qwen2.5-0.5B",
        lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**_WORDS, num_key_value_heads=2)),
    ),
    Architecture(
        "Mistral",
        "Mistral-7B",
        lambda: hf.MistralForCausalLM(hf.MistralConfig(**_WORDS, num_key_value_heads=2, sliding_window=6)),
    ),
    Architecture(
        "Qwen3",
        "Qwen3-0.6B",
        lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**_WORDS, num_key_value_heads=2, head_dim=8)),
    ),
    Architecture(
        "Whisper's encoder",
        "whisper-tiny",
        lambda: hf.WhisperForAudioClassification(
            hf.WhisperConfig(
                vocab_size=60,
                d_model=32,
                encoder_layers=2,
                encoder_attention_heads=4,
                decoder_layers=1,
                decoder_attention_heads=4,
                encoder_ffn_dim=37,
                decoder_ffn_dim=37,
                num_mel_bins=8,
                max_source_positions=N,
                init_std=0.15,
                decoder_start_token_id=1,
                **_SPECIAL,
            )
        ),
        "sound",
    ),
)


@dataclass(frozen=True)
class Row:
    """What works of one architecture: "yes", another word for how, or "no"."""

    attach: str
    integer_attention: str
    whole_program: str
    onnx: str
    c: str
    why: str
    """Of what does not work."""


def tried(architecture: Architecture, *, slow: bool = True) -> Row:
    """Convert a tiny random model in every way.

    Without `slow` C is written but not compiled.
    """
    torch.manual_seed(0)
    model = architecture.make().eval()
    batches = [_batch(architecture.inputs, seed) for seed in range(3)]
    fresh = _batch(architecture.inputs, 9)
    try:
        table = hccs.calibrate(hccs.nn.collect(model, batches, n=N), n=N)
    except HccsError as error:
        return Row(NO, NO, NO, NO, NO, _reason(model, error))
    attached = hccs.nn.attach(copy.deepcopy(model), table)
    plain, with_hccs = _answers(model, fresh), _answers(attached, fresh)
    _require(0 < _distance(with_hccs, plain) < 0.5, "HCCS to stand in for softmax", architecture)
    _require(
        np.array_equal(_answers(_loaded_again(attached), fresh), with_hccs), "the bits saved", architecture
    )
    inside = hccs.nn.attach(copy.deepcopy(model), table, backend="integer")
    _require(0 < _distance(_answers(inside, fresh), with_hccs) < 0.5, "int8 q, k and v", architecture)
    try:
        pixels = hccs.nn.PixelScaling((0.5,) * 3, (0.5,) * 3) if architecture.inputs == "images" else None
        whole = hccs.nn.lower(model, table, batches, pixels=pixels)
    except HccsError as error:
        return Row(YES, YES, NO, NO, NO, _reason(model, error))
    if architecture.inputs == "tokens":
        mask = fresh["attention_mask"].numpy()
        near = whole(fresh["input_ids"].numpy(), mask).logits
        on = mask > 0 if near.ndim == 3 else np.ones(len(near), bool)  # padding has no scores
        # Programs have the table's lines in their attention, or exponentials.
        found = [_distance(near[on], floats[on]) for floats in (_answers(inside, fresh), plain)]
        _require(min(found) < 0.3, "integers near the floats", architecture)
    exports: dict[str, Callable[[Architecture, Any, Path, bool], None]] = {"ONNX": _in_onnx, "C": _in_c}
    missing = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, written in exports.items():
            try:
                written(architecture, whole, Path(folder), slow)
            except HccsError as error:
                missing[name] = f"not in {name}: {error.args[1]}"
    onnx, c = (NO if name in missing else YES for name in exports)
    return Row(YES, YES, YES, onnx, c, "; ".join(missing.values()))


def _in_onnx(architecture: Architecture, whole: Any, folder: Path, slow: bool) -> None:
    file = write_onnx(whole.program, folder / "whole.onnx")
    _require(equal_scores(file, whole, 8) == 8, "the program's scores in ONNX Runtime", architecture)


def _in_c(architecture: Architecture, whole: Any, folder: Path, slow: bool) -> None:
    written = export_c_model(whole, folder / "c")
    if slow:
        command = ["make", "-s", "-C", str(written.folder), "CFLAGS=-O0"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        _require(done.returncode == 0 and "PASS" in done.stdout, "the scores in C", architecture)


def _batch(inputs: str, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if inputs == "images":
        return {"pixel_values": torch.randn(6, 3, 24, 24, generator=generator)}
    if inputs == "sound":
        return {"input_features": torch.randn(6, 8, 2 * N, generator=generator)}
    lengths = torch.randint(4, N + 1, (8, 1), generator=generator)
    lengths[0] = N
    mask = torch.arange(N) < lengths
    ids = torch.randint(5, 60, (8, N), generator=generator)
    return {"input_ids": torch.where(mask, ids, 1), "attention_mask": mask.long()}


def _answers(model: Any, batch: dict[str, torch.Tensor]) -> np.ndarray:
    with torch.no_grad():
        logits = model(**batch).logits
    return np.asarray(logits)


def _distance(these: np.ndarray, those: np.ndarray) -> float:
    """Mean difference, as a part of the answers' spread."""
    return float(abs(these - those).mean() / those.std())


def _loaded_again(model: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return type(model).from_pretrained(folder).eval()


def _require(held: bool, what: str, architecture: Architecture) -> None:
    if not held:
        sys.exit(f"{architecture.name}: expected {what}")


_OWN_WORDS = {
    "mpnet": "its attention adds a bias of relative positions to the logits and goes past transformers' "
    "attention interface",
    "deberta-v2": "its logits are sums of three products, two of them with relative positions, computed "
    "outside transformers' attention interface",
}


def _reason(model: Any, error: HccsError) -> str:
    """Why not, for the page: what the refusal found, or more where it cannot know."""
    kind = model.config.model_type
    _, got, _ = error.args
    found = got.removeprefix(kind).removeprefix(" with ").removesuffix(", which have no integer operator")
    return _OWN_WORDS.get(kind, found)


HEADER = """# Architectures

What works on which models of transformers. `python tools/architectures.py` made this page: it converts a tiny random model of
each architecture and compares answers, and a test fails where the page is not what the code does.

| column | "yes" means |
|---|---|
| attach | `hccs.nn.attach`: HCCS in place of softmax, trainable; saved and loaded again, the answers are the same bits |
| integer attention | `backend="integer"`: attention from int8 q, k and v to its output in integers, floats around it |
| whole program | `hccs.nn.lower`: an [integer model](integer_model.md), from token ids or pixels to scores |
| ONNX | all scores of the whole program in ONNX Runtime are equal |
| C | the whole program in [C without floats](microcontroller.md), compiled and run here: all scores are equal |

"""  # noqa: E501

FOOTER = """
**Anything else** whose attention goes through transformers' attention interface attaches; `hccs.nn.attention_layers(model)` lists the
layers that would be replaced, or refuses. Attention that adds a bias to its logits (T5, ALiBi), has sinks, or sees only the keys
that an indexer chose (DeepSeek V3.2) is refused when it runs. A whole program needs LayerNorm or RMSNorm, learnt absolute or rotary positions, dense layers, and activations of one value at a time, gated or not.
"""  # noqa: E501


def rendered(found: dict[Architecture, Row]) -> str:
    """The page of these findings."""
    columns = [field.name for field in fields(Row) if field.name != "why"]
    header = [name.upper() if len(name) < 5 else name.replace("_", " ") for name in columns]
    lines = [f"| architecture | such as | {' | '.join(header)} |", "|---" * (len(header) + 2) + "|"]
    reasons = []
    for architecture, row in found.items():
        cells = [getattr(row, name) for name in columns]
        lines.append(f"| {architecture.name} | {architecture.known_as} | {' | '.join(cells)} |")
        if row.why:
            what = "not supported: " if row.attach == NO else "no whole program: "
            what = "" if row.whole_program == YES else what
            reasons.append(f"- **{architecture.name}**, {what}{row.why}.")
    return HEADER + "\n".join([*lines, "", "## Why not", *reasons]) + "\n" + FOOTER


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    hf.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    hf.logging.disable_progress_bar()
    made = rendered({architecture: tried(architecture) for architecture in ARCHITECTURES})
    if not options.check:
        PAGE.write_text(made, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != made:
        sys.exit(f"{PAGE.name} is not what the code does: run python tools/architectures.py")


if __name__ == "__main__":
    main()
