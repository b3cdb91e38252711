"""The protocol on the wire: frames, delta encoding, addresses, TLS."""
