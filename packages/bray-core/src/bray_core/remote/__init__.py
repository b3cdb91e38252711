"""Ray: clusters, pools of worker processes, and their restarts."""
