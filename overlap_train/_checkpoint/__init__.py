"""Checkpoints: the state of a training on disk, from which a killed run goes on (contract C8).

`state` says what a checkpoint holds, `fingerprints` whom it belongs to, and `meta` where the training stood.
`container` is how that is laid out in one file, `disk` syncs with care, `lock` keeps a second process out,
and `store` makes writing atomic and finds the newest sound one. `writing` decides for a fit when one is due
and what goes into it, and `resume` goes on from one.
"""
