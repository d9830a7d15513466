"""The first half of the demo: reviews ranked by meaning, without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("hccs_minilm_l6")

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
from hccs_lab.demo.search import search
made = search(print)
assert "act" in " ".join(review for _, review in made.found[0].reviews).lower()
for found in made.found:
    cosines = [cosine for cosine, _ in found.reviews]
    assert cosines == sorted(cosines, reverse=True) and cosines[0] > 0.3
assert len(made.fingerprint) == 64 and made.reviews == 1001
print("ranked")
"""


def test_reviews_are_ranked_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ranked" in done.stdout
