"""The embedded Kubernetes control plane: an API server in memory, served on loopback."""
