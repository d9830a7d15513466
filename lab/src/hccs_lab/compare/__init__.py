"""`hccs compare`: every softmax replacement on the same logits, in the same model, on the same data."""
