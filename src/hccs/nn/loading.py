"""transformers' `from_pretrained` and `pipeline` attach HCCS to models that were saved with it.

transformers hands a model whose configuration names a quantisation method to that method's quantiser once its
weights are loaded. We register one as "hccs": it attaches the table that the configuration carries. The
weights are as they were, so the model is not quantised in transformers' sense: it trains, casts and saves
like any other.
"""

from __future__ import annotations

import warnings
from typing import Any

from hccs.nn.attaching import METHOD, restore
from hccs.nn.interface import NAME, register


def register_loader() -> None:
    """Make transformers attach HCCS on loading; does nothing without transformers, or when called again."""
    try:
        from transformers.quantizers import auto
        from transformers.quantizers.base import HfQuantizer
        from transformers.utils.quantization_config import QuantizationConfigMixin
    except ImportError:
        return
    if NAME in auto.AUTO_QUANTIZER_MAPPING:
        return

    class HccsConfig(QuantizationConfigMixin):  # type: ignore[misc]
        """The entry by which transformers finds the loader; the table has an entry of its own."""

        def __init__(self, quant_method: str = NAME) -> None:
            self.quant_method = quant_method  # type: ignore[assignment]

    class HccsLoader(HfQuantizer):  # type: ignore[misc]
        requires_calibration = True

        @property
        def is_trainable(self) -> bool:
            return True

        def is_serializable(self) -> bool:
            return True

        def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
            chosen = model.config._attn_implementation
            _as_ordinary(model)
            if chosen == NAME:
                return restore(model)
            warnings.warn(
                f"float softmax, not HCCS: the model was saved with HCCS and loaded with "
                f"attn_implementation={chosen!r}. hccs.nn.restore(model) attaches HCCS.",
                stacklevel=2,
            )
            return model

    register()
    auto.register_quantization_config(NAME)(HccsConfig)
    auto.register_quantizer(NAME)(HccsLoader)


def _as_ordinary(model: Any) -> None:
    """Take back what transformers notes of a quantised model: Trainer, half() and float() would refuse it."""
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        if name in vars(model):
            delattr(model, name)
    for module in model.modules():
        getattr(getattr(module, "config", None), "__dict__", {}).pop("_is_quantized", None)
    setattr(model.config, METHOD, {"quant_method": NAME})
