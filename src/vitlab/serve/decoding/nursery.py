"""The service's end of the process that forks decoders."""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass

from vitlab.errors import ServiceError
from vitlab.serve.decoding.decoder import READY, Bounds
from vitlab.serve.decoding.forking import NUMBER, command

START = 120.0  # seconds: PyTorch is imported
LEAVE = 5.0
BUFFER = 2**24  # bytes of an answer that are read before anyone asks for them
WORK = "spawns" if sys.platform == "darwin" else "main"


@dataclass(frozen=True)
class Decoder:
    """A decoder process and the connection to it."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Nursery:
    """A process that starts decoders and ends them; a new one is started if it is killed.

    Args:
        bounds: of every decoder
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._asking = asyncio.Lock()

    async def begin(self) -> Decoder:
        """Start a decoder.

        Raises:
            ServiceError: it cannot be started.
        """
        for _ in range(2):
            try:
                async with self._asking:
                    decoder = await self._begun()
                async with asyncio.timeout(START):
                    await decoder.reader.readexactly(len(READY))
                return decoder
            except (OSError, EOFError):  # the process was killed: once more
                await self.stop()
        raise ServiceError("the processes that decode images cannot be started")

    async def end(self, decoder: Decoder) -> int:
        """End a decoder; return its exit status, or the negative signal that ended it before."""
        decoder.writer.close()
        async with self._asking:
            if self._control is None:
                return -9
            try:
                self._control.sendall(NUMBER.pack(decoder.number))
                return await self._number(self._control)
            except (OSError, EOFError):  # its decoders died with it
                await self._gone()
                return -9

    async def stop(self) -> None:
        """End the process and all decoders."""
        async with self._asking:
            await self._gone()

    async def _begun(self) -> Decoder:
        """Have a decoder started, and connect to it."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                control = await self._running()
                socket.send_fds(control, [NUMBER.pack(0)], [theirs.fileno()])
            number = await self._number(control)
            ours.setblocking(False)
            streams = await asyncio.open_unix_connection(sock=ours, limit=BUFFER)
        except BaseException:
            ours.close()
            raise
        return Decoder(number, *streams)

    async def _running(self) -> socket.socket:
        """Return the connection to the process; start it if there is none."""
        if self._control is not None:
            return self._control
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                command(WORK, theirs.fileno(), self.bounds),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C in a terminal does not reach it
                env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            )
        ours.setblocking(False)
        self._control = ours
        await self._number(ours)
        return ours

    async def _number(self, control: socket.socket) -> int:
        """Return the next number that the process says."""
        data, loop = b"", asyncio.get_running_loop()
        async with asyncio.timeout(START):
            while len(data) < NUMBER.size:
                if not (more := await loop.sock_recv(control, NUMBER.size - len(data))):
                    raise EOFError
                data += more
        (number,) = NUMBER.unpack(data)
        return int(number)

    async def _gone(self) -> None:
        """Wait until the process has ended, which it does when its connection closes."""
        control, process = self._control, self._process
        self._control = self._process = None
        if control is not None:
            control.close()
        if process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, LEAVE)
        process.kill()
        await asyncio.to_thread(process.wait)
