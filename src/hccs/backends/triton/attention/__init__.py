"""Integer attention in Triton."""

from hccs.backends.triton.attention.cached_step import step_again
from hccs.backends.triton.attention.launch import again, attention

__all__ = ["again", "attention", "step_again"]
