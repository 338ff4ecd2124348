"""A door before the API server that answers 403 to what a test names."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def refusing(url, is_refused):
    """Serve `url` at another address, which is given; `is_refused(method, path)` is asked for each request."""

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
            if is_refused(self.command, self.path):
                status = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "not for you"}
                self.reply(403, json.dumps(status).encode())
                return
            headers = {k: v for k in ("Content-Type", "Accept") if (v := self.headers.get(k))}
            asked = urllib.request.Request(url + self.path, data=body, headers=headers, method=self.command)
            try:
                with urllib.request.urlopen(asked) as found:
                    self.reply(found.status, found.read())
            except urllib.error.HTTPError as error:
                with error:
                    self.reply(error.code, error.read())

        do_GET = do_PATCH = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

        def reply(self, code, body):
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

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
