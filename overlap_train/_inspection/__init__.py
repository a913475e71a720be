"""What a traced step reads, writes and does besides: the ground for "known, or in step" (contract C10)."""
