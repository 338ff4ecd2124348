"""The one narrow edge to Kubernetes: plain objects in and out, the client's exceptions translated into ours."""
