"""The world: types, adapters, probes, the ledger and the sandbox. Never imports Prefect."""
