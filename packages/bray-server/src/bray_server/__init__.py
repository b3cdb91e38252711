"""HTTP and TCP hosting of stateful and stateless services, sessions and clients."""
