"""Integer attention in Triton."""
