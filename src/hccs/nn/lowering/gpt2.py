"""GPT-2: a causal pre-norm decoder of `Conv1D` layers, with scores of every token over the vocabulary."""

from __future__ import annotations

from typing import Any

from hccs.errors import ModelError
from hccs.nn.lowering.pre_norm import Block, PreNorm, Words


def stack(model: Any) -> PreNorm:
    """The parts of a GPT-2 language model; the labels of its scores are the token ids."""
    if type(model).__name__ != "GPT2LMHeadModel":
        raise ModelError(
            "GPT-2 as a language model",
            type(model).__name__,
            "Load it as GPT2LMHeadModel: a program has scores of the first token or of every token, and the "
            "other heads read the last.",
        )
    base = model.transformer
    if base.config.add_cross_attention:
        raise ModelError("a decoder by itself", "cross-attention to an encoder", "Keep its floats.")
    return PreNorm(
        Words(base.wte, base.wpe),
        tuple(parts_of(layer) for layer in base.h),
        base.ln_f,
        model.lm_head,
        tuple(map(str, range(model.lm_head.out_features))),
        causal=True,
        first_only=False,
    )


def parts_of(layer: Any) -> Block:
    """The modules of one layer."""
    return Block(
        layer.ln_1,
        (layer.attn.c_attn,),
        layer.attn.num_heads,
        layer.attn.scaling,
        layer.attn.c_proj,
        layer.ln_2,
        layer.mlp.c_fc,
        layer.mlp.act,
        layer.mlp.c_proj,
    )
