"""Same data as that of a run: by its contents, or by its files where these were not read."""

from vitlab.data.contents import Contents
from vitlab.progress import say
from vitlab.runs.run_folder import RunFolder


def is_same_data(folder: RunFolder, contents: Contents) -> bool:
    """Return whether some images are those that a run was started with.

    Contents decide, unless the names, sizes and times of all files are as they were. Of a run that
    ended before it had read every image, names and sizes decide, and a line says so.

    Args:
        folder: of the run
        contents: of the images; what the run knows of them is taken over
    """
    if folder.fingerprint and contents.fingerprint:
        return folder.fingerprint == contents.fingerprint
    before = folder.mark
    if before is None:
        return folder.fingerprint == contents.read()
    now = contents.survey()
    if now is None or now.files != before.files:
        return False
    if now.times != before.times and folder.fingerprint:
        say(f"files of {folder.data} have other times than {folder.path} was started with: "
            "comparing what is in them")  # fmt: skip
        return folder.fingerprint == contents.read()
    if now.times != before.times:
        say(f"files of {folder.data} have the names and sizes that {folder.path} was started "
            "with, and other times; what was in them was not read then")  # fmt: skip
    contents.adopt(before, folder.fingerprint)
    return True
