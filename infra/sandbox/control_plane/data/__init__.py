"""The distilled OpenAPI of Kubernetes, and the script that distils it."""
