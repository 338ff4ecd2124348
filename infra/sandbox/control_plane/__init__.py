"""The embedded Kubernetes control plane: an API server in memory, served on loopback over plain HTTP.

`ControlPlane` runs it in an event loop, `run_in_thread` beside blocking code.
"""

from infra.sandbox.control_plane.embedded import ControlPlane, run_in_thread

__all__ = ["ControlPlane", "run_in_thread"]
