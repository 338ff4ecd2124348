"""The steps of a migration: each observes, decides and acts, and is safe to run again."""
