"""A buffer in workers on Ray: segments in from anywhere, batches out on the workers' node."""

from bray_buffer.remote.remote_buffer import RemoteBuffer

__all__ = ["RemoteBuffer"]
