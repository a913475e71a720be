"""Checkpoints: the state of a training on disk, from which a killed run goes on (contract C8).

`fingerprints` says whom a checkpoint belongs to and `content` what it holds. `container` is how that is laid
out in one file, and `store` keeps a second process out and finds the newest sound one. `attributes`
takes what data and model hold in Python, and `resume` decides for a fit when one is due and what goes into
it, and goes on from one.
"""
