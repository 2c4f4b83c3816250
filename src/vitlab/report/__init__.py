"""One self-contained HTML page per run: `write(file, facts)`.

matplotlib, Pillow and Jinja are imported when a page is written.
"""

from vitlab.report.page import write

__all__ = ["write"]
