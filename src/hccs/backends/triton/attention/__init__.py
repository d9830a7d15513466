"""Integer attention in Triton."""

from hccs.backends.triton.attention.launch import attention

__all__ = ["attention"]
