"""Ports of loopback: one that is free, or one that must be."""

from __future__ import annotations

import socket

from infra.errors import PoolshiftError

HOST = "127.0.0.1"


def free_port() -> int:
    """One that nobody listens on now. Another process can still take it first: what is started then says so."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def refuse_busy(port: int) -> None:
    """Raise PoolshiftError if somebody listens on it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise PoolshiftError(
                f"port {port} on {HOST}",
                f"cannot be used: {error.strerror}",
                expected="a free port",
                remedy=f"choose another with --port, or leave it out; `ss -ltnp 'sport = :{port}'` shows who has it",
            ) from error
