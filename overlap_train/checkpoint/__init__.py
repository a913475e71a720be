"""Checkpoints: the state of a training on disk, from which a killed run goes on (contract C8).

`state` says what a checkpoint holds and whom it belongs to, `container` how that is laid out in one file,
`lock` keeps a second process out, and `store` makes writing atomic and finds the newest sound one.
"""

from overlap_train.checkpoint.state import CheckpointState, layout
from overlap_train.checkpoint.store import CheckpointStore

__all__ = ["CheckpointState", "CheckpointStore", "layout"]
