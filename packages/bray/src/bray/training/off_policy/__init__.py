"""Learning from a replay or a data set: what others played, or an earlier policy."""
