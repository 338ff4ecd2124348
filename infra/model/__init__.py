"""Frozen types and the migration spec. No I/O, no SDK, no clock."""
