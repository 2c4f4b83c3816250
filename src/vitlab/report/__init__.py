"""One self-contained HTML page a run: `write(file, facts)`.

Importing this costs no plotting library: matplotlib, Pillow and Jinja load when a page is written.
"""

from vitlab.report.page import write

__all__ = ["write"]
