"""Run the explorer of `vitlab explore` until it is stopped."""

import asyncio
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Mapping
from contextlib import suppress

from vitlab.explore.explore_routes import application
from vitlab.explore.explorer import Explorer
from vitlab.serve.service import server_of

LEAVE = 1.0  # seconds for the answers under way, once asked to stop
HOST = "127.0.0.1"
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def explore(explorer: Explorer, opened: socket.socket, ready: Callable[[], None]) -> None:
    """Serve the explorer until a signal.

    Args:
        explorer: with its models
        opened: a socket of this machine alone, that listens
        ready: called once the page can be opened

    Raises:
        UserError: a process cannot be started.
        KeyboardInterrupt: there was a signal.
    """
    kept = {each: signal.getsignal(each) for each in SIGNALS}
    try:
        asyncio.run(_explored(explorer, opened, ready))
    finally:
        for each, handler in kept.items():
            signal.signal(each, handler)
    raise KeyboardInterrupt


async def _explored(explorer: Explorer, opened: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; a second one ends the process."""
    asked, loop = asyncio.Event(), asyncio.get_running_loop()

    def end() -> None:
        if asked.is_set():
            os.write(2, b"vitlab explore: interrupted\n")
            os._exit(130)
        asked.set()

    for each in SIGNALS:
        loop.add_signal_handler(each, end)
    server = server_of(application(explorer), round(LEAVE))
    try:
        await explorer.start()
        serving = asyncio.create_task(server.serve([opened]))
        waiting = asyncio.create_task(asked.wait())
        ready()
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        server.should_exit = server.force_exit = True
        await serving
    finally:
        await explorer.stop()


def open_browser(url: str) -> None:
    """Open a page in a browser with a window, if one is at hand; nobody waits for it."""

    def show() -> None:
        with suppress(Exception):  # the URL is printed in any case
            webbrowser.open(url)

    if has_window(sys.platform, os.environ):
        threading.Thread(target=show, name="vitlab-browser", daemon=True).start()


def has_window(platform: str, environment: Mapping[str, str]) -> bool:
    """Return whether a browser would open beside this terminal, not within it or far away."""
    if "SSH_CONNECTION" in environment and "BROWSER" not in environment:
        return False
    shown = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return not platform.startswith("linux") or any(environment.get(name) for name in shown)
