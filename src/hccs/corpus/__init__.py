"""Many texts to vectors in a folder, in parts that appear whole, and exact search over them."""
