"""A small physical model of GPU nodes and their networks, and writers that print what real tools print from it."""
