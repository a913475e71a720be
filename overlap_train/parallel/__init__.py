"""Data parallelism: one model on several devices and hosts, and logical GPUs with streams of their own."""

from overlap_train.parallel.cluster import join_cluster
from overlap_train.parallel.streams import split_gpu

__all__ = ["join_cluster", "split_gpu"]
