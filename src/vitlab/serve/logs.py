"""Log lines as JSON, one object a line; never the body of a request, never a query."""

import json
import logging
import traceback
from datetime import UTC, datetime

LOGGERS = ("vitlab", "uvicorn.error", "asyncio")
LOG = logging.getLogger("vitlab.serve")
LOG.setLevel(logging.WARNING)  # a line for each request is the service's, not the explorer's


class Lines(logging.Formatter):
    """Formats a record as one JSON object: what happened, and the fields given with it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {"time": when, "level": record.levelname.lower()}
        line["event"] = record.getMessage()
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line, default=str)  # in ASCII: no locale can spoil it


def log(event: str, level: int = logging.INFO, *, error: bool = False, **fields: object) -> None:
    """Write one line.

    Args:
        event: what happened
        level: of `logging`
        error: whether to add the traceback of the exception that is being handled
        fields: what is known of it
    """
    LOG.log(level, event, exc_info=error, extra={"fields": fields})


def log_to_stderr() -> None:
    """Write the lines of the service, and of the libraries below it, to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(Lines())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
    LOG.setLevel(logging.INFO)
    for name in ("uvicorn.error", "python_multipart"):  # they warn of every bad request
        logging.getLogger(name).setLevel(logging.ERROR)
