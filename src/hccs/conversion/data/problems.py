"""The problems that models solve: a label or a value of a text or a pair, a label per word, of an image."""

CLASSIFICATION, REGRESSION, TOKENS, IMAGES = PROBLEMS = ("classification", "regression", "tokens", "images")

IGNORED = -100
"""The label of tokens that have none: the first token of a word carries the word's."""
