"""Checkpoints: the state of a training on disk, from which a killed run goes on (contract C8).

`state` says what a checkpoint holds, `fingerprints` whom it belongs to, and `meta` where the training stood.
`container` is how that is laid out in one file, `files` opens and syncs with care, `lock` keeps a second
process out, and `store` makes writing atomic and finds the newest sound one. `policy` is what a user decides.
"""

from overlap_train._checkpoint.meta import TrainingMeta
from overlap_train._checkpoint.state import CheckpointState, layout
from overlap_train._checkpoint.store import CheckpointStore
from overlap_train.options.checkpoint import CheckpointPolicy, checkpoint_policy

__all__ = [
    "CheckpointPolicy",
    "CheckpointState",
    "CheckpointStore",
    "TrainingMeta",
    "checkpoint_policy",
    "layout",
]
