"""What makes a policy try what it has rarely seen."""
