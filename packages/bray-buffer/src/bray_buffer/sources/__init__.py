"""Sources: samples from memory, iterators, files and data sets, in batches."""

from bray_buffer.sources.episodes import EpisodeSource
from bray_buffer.sources.minari import MinariSource
from bray_buffer.sources.parquet import ParquetSource
from bray_buffer.sources.python_objects import SequenceSource, StreamSource
from bray_buffer.sources.source import Source, Stream
from bray_buffer.sources.source_buffer import SourceBuffer
from bray_buffer.sources.source_config import SourceConfig

__all__ = [
    "EpisodeSource",
    "MinariSource",
    "ParquetSource",
    "SequenceSource",
    "Source",
    "SourceBuffer",
    "SourceConfig",
    "Stream",
    "StreamSource",
]
