"""Figures, and how faithful a converted model is."""
