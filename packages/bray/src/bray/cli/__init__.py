"""The subcommands that train, plan, view and tidy up."""
