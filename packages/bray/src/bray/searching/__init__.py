"""Search for settings: `bray search` and `bray.search`, by Optuna. Needs the extra `search`."""
