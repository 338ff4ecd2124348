"""A cluster, two clouds and a fabric on loopback, spoken to by the real client libraries."""
