"""Folders of runs: what was asked, what is done, who works on it."""
