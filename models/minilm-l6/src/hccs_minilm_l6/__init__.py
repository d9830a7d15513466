"""all-MiniLM-L6-v2 in integers, as one `.hccs` file."""

from pathlib import Path

__version__ = "0.1.0"

PATH = Path(__file__).parent / "all-MiniLM-L6-v2.hccs"
"""The file: `hccs.Encoder.load(PATH)`, or `hccs.Encoder.load("all-MiniLM-L6-v2")`."""
