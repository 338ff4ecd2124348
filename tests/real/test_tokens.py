"""A token that expires under a run: the error says so, and what to renew."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from infra.errors import Forbidden
from infra.kube.api import Kube


def list_until_refused(kube: Kube) -> int:
    """How many requests went well first; raises what ends it."""
    deadline = time.monotonic() + 60
    went_well = 0
    while time.monotonic() < deadline:
        kube.request("GET", "/api/v1/nodes", params={"limit": 1})
        went_well += 1
        time.sleep(0.2)
    return went_well


@pytest.mark.real
def test_a_token_that_expires_says_what_to_renew(healthy: Any) -> None:
    kube = healthy.connect(healthy.account("poolshift-plan", token=expiring(healthy, "poolshift-plan", seconds=8)))
    kube.request("GET", "/api/v1/nodes", params={"limit": 1})
    with pytest.raises(Forbidden, match="401") as caught:
        list_until_refused(kube)
    assert "renew the kubeconfig's credentials" in caught.value.remedy


def expiring(here: Any, name: str, seconds: float) -> str:
    """A token of an account that the server takes for `seconds` more (and up to 10 s from its cache).

    The server's own are good for 10 minutes at least, so this one is signed here, with the server's key. It allows
    for a minute of clock skew.
    """
    account = here.kube.request("GET", f"/api/v1/namespaces/poolshift/serviceaccounts/{name}")
    issuer = "https://poolshift-sandbox.invalid"
    now = int(time.time())
    claims = {
        "iss": issuer,
        "aud": [issuer],
        "sub": f"system:serviceaccount:poolshift:{name}",
        "iat": now - 600,
        "nbf": now - 600,
        "exp": now - 60 + int(seconds),
        "kubernetes.io": {
            "namespace": "poolshift",
            "serviceaccount": {"name": name, "uid": account["metadata"]["uid"]},
        },
    }
    pem = (here.sandbox.plane.folder / "service-accounts.key").read_bytes()
    key = serialization.load_pem_private_key(pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    signed = b".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "ES256", "typ": "JWT"}, claims))
    r, s = decode_dss_signature(key.sign(signed, ec.ECDSA(hashes.SHA256())))
    return (signed + b"." + _base64(r.to_bytes(32, "big") + s.to_bytes(32, "big"))).decode()


def _base64(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")
