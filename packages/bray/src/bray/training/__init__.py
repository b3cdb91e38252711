"""The loop that plays, trains, evaluates and stops."""
