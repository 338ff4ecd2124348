"""The story: which step comes when. Prefect flows and the command line."""
