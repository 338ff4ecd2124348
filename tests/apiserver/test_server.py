"""The server as a program: ports, clock, logs, clients, what it does not offer."""

from __future__ import annotations

import datetime as dt
import http.server
import ipaddress
import json
import socket
import ssl
import threading
import urllib.error
import urllib.request

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kubernetes import client, watch

from infra.clock import ManualClock
from infra.sandbox.control_plane import run_in_thread


def ask(url, method="GET", body=None, kind="application/json"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
    call = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": kind})
    try:
        with urllib.request.urlopen(call, timeout=10) as answer:
            text = answer.read().decode()
            return answer.status, dict(answer.headers), text
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, dict(refusal.headers), refusal.read().decode()


def test_a_taken_port_is_an_os_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        with pytest.raises(OSError, match=str(taken.getsockname()[1])):
            run_in_thread(port=taken.getsockname()[1])


def test_the_date_header_shows_the_clock_of_the_store():
    moment = dt.datetime(2031, 5, 6, 7, 8, 9, tzinfo=dt.UTC)
    url, stop = run_in_thread(ManualClock(time=moment), controllers=False)
    _, headers, _ = ask(f"{url}/version")
    stop()

    assert headers["Date"] == "Tue, 06 May 2031 07:08:09 GMT"


def test_a_stopped_server_ends_its_watches():
    url, stop = run_in_thread(controllers=False)
    with urllib.request.urlopen(f"{url}/api/v1/pods?watch=true", timeout=10) as answer:
        stop()
        rest = answer.read()

    assert rest == b""


def test_what_is_not_offered_says_so(url):
    pod = {"metadata": {"name": "exec-me"}, "spec": {"containers": [{"name": "a", "image": "i"}]}}
    ask(f"{url}/api/v1/namespaces/default/pods", "POST", pod)

    status, _, text = ask(f"{url}/api/v1/namespaces/default/pods/exec-me/portforward?ports=80", "POST")

    body = json.loads(text)
    assert (status, body["reason"]) == (501, "NotImplemented")
    assert body["message"] == "pods/portforward is not offered by the embedded control plane"


def test_malformed_protobuf_is_400(url):
    path = f"{url}/api/v1/namespaces/default/configmaps"
    for body in (b"nonsense", b"k8s\x00\x0a\xff", b"k8s\x00"):
        status, _, text = ask(path, "POST", body, "application/vnd.kubernetes.protobuf")
        assert (status, json.loads(text)["reason"]) == (400, "BadRequest"), body


class Kubelet(http.server.BaseHTTPRequestHandler):
    """Answers for the log of any container with the path that it was asked for."""

    def do_GET(self):
        if "/slow" in self.path:
            self.send_response(400)
            self.end_headers()
            self.wfile.write(b'container "main" is waiting to start: ContainerCreating')
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"asked for {self.path}\n".encode())

    def log_message(self, *arguments):
        pass


@pytest.fixture
def kubelet(tmp_path):
    """A kubelet's log endpoint over TLS with a certificate that nobody signed; its port."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kubelet")])
    start = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=36500))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path / "kubelet.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Kubelet)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_logs_come_from_the_kubelet_of_the_pods_node(url, kubelet):
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet}},
    }
    ask(f"{url}/api/v1/nodes", "POST", {"metadata": {"name": "log-node"}, "status": status})
    for name in ("logged", "slow"):
        spec = {"nodeName": "log-node", "containers": [{"name": "main", "image": "i"}]}
        ask(f"{url}/api/v1/namespaces/default/pods", "POST", {"metadata": {"name": name}, "spec": spec})
    logs = f"{url}/api/v1/namespaces/default/pods/%s/log"

    code, headers, text = ask(logs % "logged" + "?tailLines=5&timestamps=true")
    assert (code, headers["Content-Type"]) == (200, "text/plain")
    assert text == "asked for /containerLogs/default/logged/main?timestamps=true&tailLines=5\n"

    code, _, text = ask(logs % "slow")
    assert (code, json.loads(text)["message"]) == (400, 'container "main" is waiting to start: ContainerCreating')


def test_the_official_client_works(url):
    configuration = client.Configuration(host=url)
    with client.ApiClient(configuration) as api:
        core = client.CoreV1Api(api)
        core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name="official")))
        container = client.V1Container(name="main", image="app:1")
        for name in ("a", "b", "c"):
            pod = client.V1Pod(
                metadata=client.V1ObjectMeta(name=name, labels={"app": "x"}),
                spec=client.V1PodSpec(containers=[container], scheduler_name="nobody"),
            )
            core.create_namespaced_pod("official", pod)

        page = core.list_namespaced_pod("official", limit=2)
        assert [each.metadata.name for each in page.items] == ["a", "b"]
        rest = core.list_namespaced_pod("official", limit=2, _continue=page.metadata._continue)
        assert [each.metadata.name for each in rest.items] == ["c"]

        eviction = client.V1Eviction(metadata=client.V1ObjectMeta(name="a"))
        core.create_namespaced_pod_eviction("a", "official", eviction)
        with pytest.raises(client.ApiException) as refusal:
            core.read_namespaced_pod("a", "official")
        assert refusal.value.status == 404

        stream = watch.Watch().stream(core.list_namespaced_pod, "official", timeout_seconds=1)
        assert {(each["type"], each["object"].metadata.name) for each in stream} == {("ADDED", "b"), ("ADDED", "c")}
