"""Scenarios as data."""
