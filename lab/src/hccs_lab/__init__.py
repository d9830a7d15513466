"""The laboratory of hccs: other softmax replacements, comparisons, benchmarks and reproductions of tables."""

__version__ = "0.1.0"
