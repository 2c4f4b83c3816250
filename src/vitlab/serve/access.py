"""Access: where a service listens, and who may ask it (bearer tokens, RFC 6750).

Nothing here imports PyTorch, so that the command line answers at once.
"""

import hmac
import ipaddress
import os
import socket
import stat
from pathlib import Path

from starlette.datastructures import Headers

from vitlab.errors import OptionError
from vitlab.serve.exchange import Refused

LEAST, MOST = 16, 4096  # characters of a token
LOCAL = ("localhost", "127.0.0.1", "[::1]")
BACKLOG = 2048  # connections that wait to be accepted
STALLED = 30_000  # milliseconds after which a client that reads nothing is cut off
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where they are reached from this machine


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        OptionError: the address is taken, or is not this machine's.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        opened = socket.create_server(
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
    # Connections inherit both; without the first, answers wait 40 ms for an acknowledgment.
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED)
    return opened


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


def hosts_of(host: str) -> tuple[str, ...]:
    """Return the names that requests may call the service by; none if any will do."""
    written = f"[{host}]" if ":" in host else host.lower()
    return tuple(dict.fromkeys((*LOCAL, written))) if is_loopback(host) else ()


def read_token(file: str | Path) -> str:
    """Return the token in a file; none if no file is named.

    Raises:
        OptionError: the file cannot be read, others can write it, or it has no usable token.
    """
    if not file:
        return ""
    try:
        with Path(file).expanduser().open("rb") as stream:
            bits = os.fstat(stream.fileno()).st_mode
            content = stream.read(MOST + 2)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(f"cannot read the token in {file}: {reason}") from None
    if bits & stat.S_IWOTH:
        raise OptionError(f"anybody on this machine can write {file}: run chmod 600 {file}")
    token = content.strip().decode("ascii", "replace")
    if not LEAST <= len(token) <= MOST or not token.isprintable() or set(token) & {" ", "\ufffd"}:
        raise OptionError(
            f"{file} must have one token of at least {LEAST} ASCII characters without spaces: "
            f"openssl rand -hex 32 > {file} makes one"
        )
    return token


def check_token(headers: Headers, *allowed: str) -> None:
    """Refuse a request without one of the tokens that are not empty.

    Raises:
        Refused: 401, there is no token, or an unknown one.
    """
    if not any(each and has_token(headers, each) for each in allowed):
        message = "a valid token is needed: send the header Authorization: Bearer TOKEN"
        raise Refused(401, message, {"WWW-Authenticate": "Bearer"})


def has_token(headers: Headers, token: str) -> bool:
    """Return whether a request has a token; the time does not depend on where it is wrong."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    same = hmac.compare_digest(given.strip().encode(), token.encode())
    return scheme.lower() == "bearer" and same


def check_origin(headers: Headers) -> None:
    """Refuse a request that a page of another site makes: browsers say where it comes from.

    Anything but a browser says nothing, and passes. Behind a proxy with TLS the page of this
    service has another Host than here, but `Sec-Fetch-Site` is right; old browsers, and those of
    sites without TLS, send `Origin` alone.

    Raises:
        Refused: 403, it does.
    """
    site = headers.get("sec-fetch-site", "")
    origin = headers.get("origin", "")
    own = headers.get("host", "").lower()
    foreign = origin and origin.lower().partition("://")[2] != own
    if site in ("cross-site", "same-site") or (foreign and not site):
        message = "without a --token-file, a browser's page must be this service's own to ask it"
        raise Refused(403, message)
