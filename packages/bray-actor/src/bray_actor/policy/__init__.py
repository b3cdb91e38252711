"""The actor of a policy: outputs to actions, steps to segments, many sessions in one batch."""
