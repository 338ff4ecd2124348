"""The judgement: pure functions over a snapshot. No SDK, no Prefect, no clock."""
