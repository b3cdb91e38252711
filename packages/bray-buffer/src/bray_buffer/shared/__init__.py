"""Buffers between processes: batches in shared memory."""
