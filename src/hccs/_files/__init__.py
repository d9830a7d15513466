"""Files that appear whole or not at all, and the safetensors format."""
