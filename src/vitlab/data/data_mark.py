"""Mark of a data set: the names, sizes and times of its files, its labels and classes.

It stands for the contents where these are not read. Where data lies does not matter.
"""

from typing import NamedTuple


class DataMark(NamedTuple):
    """What tells the files of a data set from others.

    Attributes:
        files: checksum of the classes, the labels, and the names and sizes of the files
        times: checksum of when they were changed last
    """

    files: str
    times: str
