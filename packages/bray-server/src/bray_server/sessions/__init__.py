"""Sessions, and the services that answer their requests."""
