"""Who we are, and whom we trust: as the client has it, asked now and then, and at once when the server doubts it."""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kubernetes import client as k8s

from infra.errors import BadSpec, Forbidden, Unreachable
from infra.kube.api import connect
from infra.kube.lines import Lines
from infra.kube.pods import Answer, evict
from infra.model.spec import Cluster
from infra.model.workload import Pod

POD = Pod(namespace="default", name="p", uid="u")


@pytest.fixture
def server(request):
    """(URL, what came as Authorization, tokens that it takes). Over TLS where a test gives it a context."""
    came, taken = [], {"one", "two"}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            came.append(self.headers["Authorization"])
            self.send_response(200 if came[-1] in taken else 401)
            body = b'{"kind":"Any"}'
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            self.do_GET()

        def log_message(self, *_):
            pass

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls := getattr(request, "param", None):
        serving.socket = tls.wrap_socket(serving.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=serving.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{serving.server_address[1]}", came, taken
    serving.shutdown()
    thread.join()
    serving.server_close()


def test_the_client_is_asked_once_for_many_requests_and_anew_after_a_refusal(kube_at, server):
    url, came, taken = server
    kube, asked = kube_at(url), []

    def renew(configuration):
        asked.append(1)
        configuration.api_key["BearerToken"] = "one" if len(asked) == 1 else "two"

    kube.client.configuration.api_key["BearerToken"] = "none"
    kube.client.configuration.refresh_api_key_hook = renew
    lines = Lines(kube)
    kube.patience.seconds = 0

    assert [evict(lines, POD).answer for _ in range(3)] == [Answer.ACCEPTED] * 3
    kube.request("GET", "/x")
    assert (came, len(asked)) == (["one"] * 4, 1)

    taken.discard("one")
    kube._credentials_asked = float("inf")  # however much time passes here
    assert evict(lines, POD).answer is Answer.ERROR
    assert evict(lines, POD).answer is Answer.ACCEPTED
    taken.discard("two")
    with pytest.raises(Forbidden):
        kube.request("GET", "/x")
    lines.close()
    assert (came[4:], len(asked)) == (["one", "two", "two"], 2)


def test_credentials_that_cannot_be_renewed_are_no_answer_and_say_why(kube_at, server):
    url, came, _ = server
    kube = kube_at(url)

    def renew(configuration):
        raise RuntimeError("the plugin is not there")

    kube.client.configuration.api_key["BearerToken"] = "none"
    kube.client.configuration.refresh_api_key_hook = renew
    kube.patience.seconds = 0

    assert evict(Lines(kube), POD).answer is Answer.UNANSWERED
    with pytest.raises(Unreachable, match="cannot be renewed: RuntimeError: the plugin is not there"):
        kube.open("GET", "/x")
    assert came == []


def test_one_thread_renews_while_the_others_go_on_with_what_they_have(kube_at, server):
    url, came, _ = server
    kube, asked, go_on = kube_at(url), [], threading.Event()

    def renew(configuration):
        asked.append(threading.current_thread())
        configuration.api_key["BearerToken"] = "one" if len(asked) == 1 else "two"
        assert len(asked) == 1 or go_on.wait(10)

    kube.client.configuration.api_key["BearerToken"] = "none"
    kube.client.configuration.refresh_api_key_hook = renew
    assert kube.credentials() == {"authorization": "one"}
    kube.refused()
    slow = threading.Thread(target=kube.credentials)
    slow.start()
    while len(asked) < 2:
        go_on.wait(0.01)
    lines = Lines(kube)
    assert [evict(lines, POD).answer for _ in range(3)] == [Answer.ACCEPTED] * 3
    lines.close()
    go_on.set()
    slow.join()
    assert kube.credentials() == {"authorization": "two"}
    assert (came, len(asked)) == (["one"] * 3, 2)


def certificate(file, name):
    """A fresh one, which is its own authority, with its key; returns where it is."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    called = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "api")])
    address = ipaddress.ip_address("127.0.0.1") if name == "127.0.0.1" else None
    alternative = x509.IPAddress(address) if address else x509.DNSName(name)
    made = (
        x509.CertificateBuilder(called, called, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    file.write_bytes(made.public_bytes(pem) + key.private_bytes(pem, *plain))
    return str(file)


def at(kube, url, **more):
    """The cluster over TLS, as a kubeconfig with these words would have it."""
    kube.server = url.replace("http:", "https:")
    for name, value in {"host": kube.server, "retries": False, **more}.items():
        setattr(kube.client.configuration, name, value)
    kube.client.configuration.api_key["BearerToken"] = "one"
    kube.client = k8s.ApiClient(kube.client.configuration)
    kube.patience.seconds = 0
    return kube


SERVING = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")  # which some of these ask for
@pytest.mark.parametrize("server", [SERVING], indirect=True)
@pytest.mark.parametrize(
    ("name", "more", "good"),
    [
        ("127.0.0.1", {}, True),
        ("127.0.0.1", {"ssl_ca_cert": None}, False),
        ("127.0.0.1", {"ssl_ca_cert": None, "verify_ssl": False}, True),
        ("elsewhere", {}, False),
        ("elsewhere", {"verify_ssl": False}, True),
        ("kubernetes", {"tls_server_name": "kubernetes"}, True),
    ],
)
def test_our_own_connections_trust_whom_the_client_trusts(kube_at, server, tmp_path, name, more, good):
    url, _, _ = server
    file = certificate(tmp_path / "pem", name)
    SERVING.load_cert_chain(file)
    kube = at(kube_at(url), url, **{"ssl_ca_cert": file, **more})
    lines = Lines(kube)
    assert (evict(lines, POD).answer is Answer.ACCEPTED) is good
    lines.close()
    if good:
        kube.request("GET", "/x")
    else:
        with pytest.raises(Unreachable):
            kube.open("GET", "/x")


@pytest.mark.parametrize("server", [SERVING], indirect=True)
def test_certificates_that_are_renewed_in_their_files_are_read_anew(kube_at, server, tmp_path):
    url, _, _ = server
    file = certificate(tmp_path / "pem", "127.0.0.1")
    SERVING.load_cert_chain(file)
    kube = at(kube_at(url), url, ssl_ca_cert=file, cert_file=file, key_file=file)
    lines = Lines(kube)
    for _ in range(2):
        assert evict(lines, POD).answer is Answer.ACCEPTED
        stream = lines.stream("/x", {}, connect=5, silence=5)
        assert (stream.status, stream.read()) == (200, b'{"kind":"Any"}')
        stream.close()
        lines.close()
        SERVING.load_cert_chain(certificate(tmp_path / "pem", "127.0.0.1"))
    (tmp_path / "pem").unlink()
    assert evict(lines, POD).answer is Answer.UNANSWERED
    with pytest.raises(Unreachable, match="FileNotFound"):
        lines.stream("/x", {}, connect=5, silence=5)


PLUGIN = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}


@pytest.mark.filterwarnings("ignore:SOCKS support in urllib3")
@pytest.mark.parametrize(
    ("cluster", "user", "said"),
    [
        ({}, {"token": "t", "as": "reader"}, "user u: acts as reader, which the client library leaves out"),
        ({}, {"exec": {**PLUGIN, "command": "no-such-plugin"}}, "plugin no-such-plugin gave neither token"),
        ({}, {"exec": {**PLUGIN, "command": "false"}}, "plugin false gave neither token"),
        ({}, {"tokenFile": "/nowhere/token"}, "/nowhere/token"),
        ({"certificate-authority": "/nowhere/ca"}, {"token": "t"}, "/nowhere/ca"),
        ({"proxy-url": "socks5://127.0.0.1:1"}, {"token": "t"}, "is SOCKS: No module named 'socks'"),
    ],
)
def test_what_the_client_would_leave_out_in_silence_is_refused_before_anything_is_sent(tmp_path, cluster, user, said):
    path = tmp_path / "kubeconfig"
    named = {"cluster": {"server": "https://127.0.0.1:1", **cluster}, "user": user}
    lists = {f"{kind}s": [{"name": kind[0], kind: value}] for kind, value in named.items()}
    contexts = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
    path.write_text(json.dumps({**lists, "contexts": contexts, "current-context": "x"}))
    with pytest.raises(BadSpec) as refusal:
        connect(Cluster(kubeconfig=str(path)))
    assert said in str(refusal.value)
