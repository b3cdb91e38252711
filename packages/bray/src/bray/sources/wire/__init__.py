"""The parts of sources that play over the wire: what answers, what calls, what is counted."""
