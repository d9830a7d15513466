"""`hccs reproduce`: the paper's tables."""
