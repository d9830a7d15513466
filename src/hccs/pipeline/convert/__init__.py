"""`hccs convert`, `evaluate`, `export onnx` and the demo."""
