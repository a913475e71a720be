"""What a step reads, writes and does besides, traced or as Python: "known, or in step" (contract C10)."""
