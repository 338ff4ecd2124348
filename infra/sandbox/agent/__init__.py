"""The kubelet of simulated nodes: a client of the Kubernetes API that makes pods run, fail and end."""

from infra.sandbox.agent.agent import Agent
from infra.sandbox.agent.defects import Defects

__all__ = ["Agent", "Defects"]
