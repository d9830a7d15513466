"""Whole integer programs as freestanding C99: `plan` places the values, `constants` and `calls` write them."""
