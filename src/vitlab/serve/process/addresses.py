"""Addresses: where the service listens, and the URL of it.

Nothing here imports PyTorch, so that the command line answers at once.
"""

import ipaddress
import os
import socket

from vitlab.errors import OptionError

BACKLOG = 2048  # connections that wait to be accepted
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where they are reached from this machine


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        OptionError: the address is taken, or is not this machine's.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(
            address[:2],
            family=family,
            backlog=BACKLOG,
            dualstack_ipv6=family == socket.AF_INET6 and address[0] == "::",
        )
    except (OSError, UnicodeError, OverflowError) as error:
        number = getattr(error, "errno", None) or 0  # negative where a name cannot be resolved
        reason = os.strerror(number) if number > 0 else str(error)
        raise OptionError(
            f"cannot listen on {host}, port {port}: {reason}; choose another --port, or 0 for any"
        ) from None


def url_of(opened: socket.socket) -> str:
    """Return the address of a socket as a URL that works on this machine."""
    host, port = opened.getsockname()[:2]
    host = ANY.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether a name or address is this machine's alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
