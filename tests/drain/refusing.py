"""A door before the API server that answers in its place what a test says."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FORBIDDEN = 403, json.dumps({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "not for you"}).encode()


def refusing(url, is_refused):
    """Serve `url` at another address, which is given; `is_refused(method, path)` is asked for each request."""
    return answering(url, lambda method, path: FORBIDDEN if is_refused(method, path) else None)


@contextmanager
def answering(url, answer):
    """The same; `answer(method, path)` gives (code, body) for what does not reach `url`, else None."""

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # a body that waits for the acknowledgement of its head comes 40 ms late

        def pass_on(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
            if (given := answer(self.command, self.path)) is not None:
                self.reply(*given)
                return
            headers = {k: v for k in ("Content-Type", "Accept") if (v := self.headers.get(k))}
            asked = urllib.request.Request(url + self.path, data=body, headers=headers, method=self.command)
            try:
                with urllib.request.urlopen(asked) as found:
                    if "watch=true" in self.path:
                        self.stream(found)
                    else:
                        self.reply(found.status, found.read())
            except urllib.error.HTTPError as error:
                with error:
                    self.reply(error.code, error.read())

        do_GET = do_PATCH = do_POST = do_PUT = do_DELETE = pass_on  # noqa: N815

        def reply(self, code, body):
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def stream(self, found):
            self.close_connection = True
            self.send_response(found.status)
            self.end_headers()
            try:
                while piece := found.read1(65536):
                    self.wfile.write(piece)
            except OSError:
                return  # who watched has gone

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
