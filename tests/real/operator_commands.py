"""How each operator is started on loopback: its flags, its configuration file, the certificates that it expects."""

from __future__ import annotations

import ipaddress
from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from infra.kube.api import Kube

# Operators that keep their certificates in a Secret and rotate them: (namespace, Secret, name of the authority).
ROTATED = {
    "kueue": ("kueue-system", "kueue-webhook-server-cert", "kueue-ca"),
    "training-operator": ("kubeflow", "training-operator-webhook-cert", "training-operator-ca"),
}
SERVICES = ("kueue-webhook-service.kueue-system.svc", "training-operator.kubeflow.svc")
CONFIGURED = {
    "jobset": "config.jobset.x-k8s.io/v1alpha1",
    "lws": "config.lws.x-k8s.io/v1alpha1",
    "kueue": "config.kueue.x-k8s.io/v1beta2",
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an operator runs: its folder, the cluster, and its ports for health and for webhooks."""

    folder: Path
    kubeconfig: Path
    health: int
    hooks: int

    @cached_property
    def certificate(self) -> tuple[bytes, bytes]:
        """(certificate, key) in PEM: signed by itself, for loopback and for the names that rotating operators ask."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)  # they read no other kind
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "operator")])
        names = [x509.DNSName(n) for n in ("localhost", *SERVICES, *(authority for *_, authority in ROTATED.values()))]
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=3650))  # they renew what ends within 90 days
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([*names, x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM), key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )

    def called(self, path: str) -> dict[str, str]:
        """The clientConfig of a webhook of this operator."""
        bundle = b64encode(self.certificate[0]).decode()
        return {"url": f"https://127.0.0.1:{self.hooks}{path}", "caBundle": bundle}

    def write_certificate(self, folder: Path) -> Path:
        """tls.crt and tls.key, as a mounted Secret shows them."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in zip(("tls.crt", "tls.key"), self.certificate, strict=True):
            (folder / name).write_bytes(content)
        return folder


def prepare(kube: Kube, name: str, place: Place) -> None:
    """The Secret of an operator that rotates its certificates, filled with ours, so that it leaves them alone."""
    if name not in ROTATED:
        return
    namespace, secret, _ = ROTATED[name]
    if kube.get(f"/api/v1/namespaces/{namespace}") is None:
        kube.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    certificate, key = (b64encode(part).decode() for part in place.certificate)
    data = {"ca.crt": certificate, "ca.key": key, "tls.crt": certificate, "tls.key": key}
    kube.delete(f"/api/v1/namespaces/{namespace}/secrets/{secret}")
    body = {"metadata": {"name": secret}, "data": data}
    kube.request("POST", f"/api/v1/namespaces/{namespace}/secrets", body=body)


def commands(name: str, place: Place) -> dict[str, tuple[list[str], list[str]]]:
    """Of each program what comes before its path, and its flags: alone, on loopback, certificates beside its log."""
    kubeconfig, health = str(place.kubeconfig), f"127.0.0.1:{place.health}"
    match name:
        case "mpi-operator":
            flags = ["-kubeConfig", kubeconfig, "-lock-namespace", "default", "-monitoring-port", str(place.health)]
            return {"manager": ([], [*flags, "-kube-api-qps", "100", "-kube-api-burst", "100"])}
        case "training-operator":
            # Its webhook server looks below TMPDIR, its rotation only whether there is a file below /tmp.
            mounted = Path("k8s-webhook-server") / "serving-certs"
            place.write_certificate(place.folder / mounted)
            place.write_certificate(Path("/tmp") / mounted)
            flags = ["--metrics-bind-address=0", f"--health-probe-bind-address={health}"]
            flags += [f"--webhook-server-port={place.hooks}", "--enable-scheme=pytorchjob"]
            return {"manager": (["env", f"TMPDIR={place.folder}", f"KUBECONFIG={kubeconfig}"], flags)}
        case "kuberay":
            flags = ["--metrics-addr=0", f"--health-probe-bind-address={health}", "--enable-leader-election=false"]
            return {"manager": (["env", f"KUBECONFIG={kubeconfig}"], flags)}
    flags = [f"--kubeconfig={kubeconfig}", f"--config={configuration(name, place)}"]
    return {"manager": ([], [*flags, *(["--feature-gates=VisibilityOnDemand=false"] if name == "kueue" else [])])}


def configuration(name: str, place: Place) -> Path:
    """The configuration file of an operator that takes one."""
    document: dict[str, Any] = {
        "apiVersion": CONFIGURED[name],
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{place.health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {
            "host": "127.0.0.1",
            "port": place.hooks,
            "certDir": str(place.write_certificate(place.folder / "certificates")),
        },
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": name in ROTATED},
    }
    if name == "kueue":
        document["integrations"] = {"frameworks": ["batch/job"]}
    path = place.folder / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def ready_path(name: str) -> str:
    """Where it says that it is ready."""
    return "/metrics" if name == "mpi-operator" else "/readyz"
