"""What concerns this process as a whole: event loops, memory, cores, logging, module search."""
