"""Integer attention in Triton."""

from hccs.backends.triton.attention.launch import again, attention

__all__ = ["again", "attention"]
