"""Who may ask: a bearer token (RFC 6750), and the names under which the service is reached."""

import hashlib
import hmac
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from starlette.datastructures import Headers

from vitlab.errors import OptionError
from vitlab.serve.http.problems import Refused
from vitlab.serve.process.addresses import is_loopback

LEAST, MOST = 16, 4096  # characters of a token
LOCAL = ("localhost", "127.0.0.1", "[::1]")


def read_token(file: str | Path) -> tuple[str, str]:
    """Return the token in a file, and a warning if other users of this machine can read it.

    Raises:
        OptionError: the file cannot be read, others can write it, or it has no usable token.
    """
    path = Path(file).expanduser()
    try:
        with path.open("rb") as stream:
            bits = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
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
    others = bits & (stat.S_IRGRP | stat.S_IROTH)
    warning = f"other users of this machine can read {file}: chmod 600 {file}" if others else ""
    return token, warning


def check_token(headers: Headers, token: str) -> None:
    """Refuse a request without the token, if there is one; the time does not depend on where.

    Raises:
        Refused: 401, there is none, or it is another.
    """
    if not token:
        return
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not given.strip():
        message = "a token is needed: send the header Authorization: Bearer TOKEN"
        raise Refused(401, message, {"WWW-Authenticate": "Bearer"})
    if not hmac.compare_digest(_digest(given.strip()), _digest(token)):
        problem = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
        raise Refused(401, "the token is wrong", problem)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def check_owner(token: str) -> None:
    """Refuse to change models where nobody can show that they may.

    Raises:
        Refused: 403, the service was started without a token.
    """
    if not token:
        raise Refused(
            403, "models can be changed only where the service has a token: --token-file FILE"
        )


def hosts_of(host: str) -> tuple[str, ...]:
    """Return the names that requests may call the service by; none where any will do.

    A page of another site may point its own name at 127.0.0.1 (DNS rebinding), and then read what
    the service answers; the browser still sends that name as the Host.
    """
    written = f"[{host}]" if ":" in host else host.lower()
    return tuple(dict.fromkeys((*LOCAL, written))) if is_loopback(host) else ()


def check_host(headers: Headers, hosts: Iterable[str]) -> None:
    """Refuse a request that calls the service by another name.

    Raises:
        Refused: 403, it does.
    """
    allowed = tuple(hosts)
    given = headers.get("host", "").lower()
    name, _, port = given.rpartition(":") if not given.endswith("]") else (given, "", "")
    name = name if name and port.isdecimal() else given
    if allowed and name not in allowed:
        raise Refused(403, f"this service answers only to the Host {', '.join(allowed)}")


def check_origin(headers: Headers) -> None:
    """Refuse a request that a page of another site makes: browsers say where it comes from.

    Raises:
        Refused: 403, it comes from elsewhere.
    """
    origin, site = headers.get("origin", ""), headers.get("sec-fetch-site", "")
    own = f"http://{headers.get('host', '')}"
    if (origin and origin.lower() != own.lower()) or site in ("cross-site", "same-site"):
        raise Refused(403, "only the page that this service serves may ask it")
