"""Tasks and their data, from files or the Hub to tokens."""
