"""What a trainer reports: means of losses, figures of replays, where the time goes."""
