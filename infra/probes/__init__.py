"""Synthetic workloads that measure: their catalogue, their payloads, and readers of what tools print."""
