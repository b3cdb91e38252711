"""Sessions, and the services that answer them."""
