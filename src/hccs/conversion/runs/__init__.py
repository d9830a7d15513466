"""Folders of runs: what was asked, what is done, who works on it.

One mechanism serves `convert`, `compare` and `reproduce`: a `RunFolder` keeps the settings and a lock, and
every piece of work in it a `StageRecord`, which does a stage once and writes its result as it is known.
"""
