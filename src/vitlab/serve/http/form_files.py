"""The files in a multipart/form-data body (RFC 7578), parsed as it arrives."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from vitlab.serve.http.problems import Refused

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

Sink = Callable[[bytes], object]
NAME = 255  # characters of a file's name that are kept
HEADERS = 8  # of a part


class Form:
    """Hands out the files of a body.

    Args:
        content_type: the request's header, which names the boundary
        most: files; beyond them the answer is 413
        keep: called with the name of each file, which is only ever shown or compared; returns what
            takes its bytes

    Raises:
        Refused: 400, the header names no boundary.
    """

    def __init__(self, content_type: str, most: int, keep: Callable[[str], Sink]) -> None:
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not boundary:
            raise Refused(400, "the Content-Type of a multipart body must name its boundary")
        self._keep, self._most, self._count, self._complete = keep, most, 0, False
        self._sink: Sink = len
        self._headers: dict[bytes, bytes] = {}
        self._name, self._value = bytearray(), bytearray()
        try:
            self._parser = MultipartParser(
                boundary, self._callbacks(), max_header_count=HEADERS, max_header_size=2048
            )
        except FormParserError:
            raise Refused(400, "the boundary of the multipart body is too long") from None

    def _callbacks(self) -> "MultipartCallbacks":
        return {
            "on_part_begin": self._headers.clear,
            "on_header_field": lambda data, start, end: self._name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._keep_header,
            "on_headers_finished": self._begin_file,
            "on_part_data": self._pass_on,
            "on_end": self._end,
        }

    def write(self, piece: bytes) -> None:
        """Parse the next bytes.

        Raises:
            Refused: 400, it is not a form of files; 413, there are too many.
        """
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise Refused(400, f"the multipart body is malformed: {error}") from None

    def finish(self) -> None:
        """Refuse a body that ends too early.

        Raises:
            Refused: 400, it does.
        """
        if not self._complete:
            raise Refused(400, "the multipart body ends before its last boundary")

    def _keep_header(self) -> None:
        name = bytes(self._name).lower()
        if name in self._headers:
            raise Refused(400, "a part of the multipart body has one header twice")
        self._headers[name] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _begin_file(self) -> None:
        kind, about = parse_options_header(self._headers.get(b"content-disposition"))
        field_name = about.get(b"name", b"").decode("utf-8", "replace")
        if kind != b"form-data":
            raise Refused(400, "a part of the multipart body lacks Content-Disposition: form-data")
        if b"filename" not in about:
            raise Refused(
                400,
                f"the form field {field_name[:NAME]!r} is not a file: send files alone, and the "
                "rest in the URL, as ?top=3",
            )
        if self._count == self._most:
            raise Refused(413, f"the body has more than {self._most} files")
        self._count += 1
        self._sink = self._keep(about[b"filename"].decode("utf-8", "replace")[:NAME])

    def _pass_on(self, data: bytes, start: int, end: int) -> None:
        self._sink(data[start:end])

    def _end(self) -> None:
        self._complete = True
