"""Google GKE node pools, and what they stand on: Compute Engine, Managed Lustre. The SDK stays inside."""
