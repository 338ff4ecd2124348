"""Migration specs to start from. Every one is loaded by a test."""
