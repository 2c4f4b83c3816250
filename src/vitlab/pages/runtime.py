"""ONNX Runtime for browsers: the files of its npm package, at one version, with their checksums.

They are looked for in this package's folder `vendor`, which `make vendor` fills and wheels contain,
then in the user's cache; where neither has them, npm fetches them into the cache.
"""

import base64
import hashlib
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vitlab.errors import PackageError
from vitlab.files import read_bytes, sha256, staged_folder, vanishing_folder
from vitlab.places import cache_folder

VENDORED = Path(__file__).parent / "vendor"
MOST_BYTES = 2**28  # of a package, and of a file in it
PATIENCE = 600  # seconds


@dataclass(frozen=True)
class NodePackage:
    """A package of the npm registry, pinned.

    Attributes:
        name: as the registry knows it
        version: exactly
        integrity: SHA-512 of its archive, in base64
        files: SHA-256 of each file that is needed, by its path in the archive
    """

    name: str
    version: str
    integrity: str
    files: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def folder(self) -> str:
        """The name of the folder that keeps its files."""
        return f"{self.name}-{self.version}"


RUNTIME = NodePackage(
    "onnxruntime-web",
    "1.30.0",
    "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ==",
    {
        "dist/ort.wasm.min.js": "faece07e84faa9001f5104bbe4e5c70861d06cb2376a0dea1fa0ad33a67adc81",
        "dist/ort-wasm-simd-threaded.mjs": (
            "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b"
        ),
        "dist/ort-wasm-simd-threaded.wasm": (
            "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2"
        ),
    },
)


def runtime_files() -> list[bytes]:
    """Return the files of the runtime, in its order; npm fetches them if they are not here yet.

    Raises:
        PackageError: they are not here, and cannot be fetched.
        DiskError: they cannot be written into the cache.
    """
    place = kept()
    if place is None:
        place = cache() / RUNTIME.folder
        fetch(place)
    return [read_bytes(place / Path(name).name, MOST_BYTES) for name in RUNTIME.files]


def kept() -> Path | None:
    """Return the folder on this machine that has every file of the runtime, undamaged."""
    for home in (VENDORED, cache()):
        place = home / RUNTIME.folder
        if all(_is(place / Path(name).name, check) for name, check in RUNTIME.files.items()):
            return place
    return None


def cache() -> Path:
    """Return the folder of the user's cache in which packages are kept."""
    return cache_folder("npm")


def vendor() -> None:
    """Fetch the runtime into this package's own folder, from where wheels take it."""
    if kept() != (place := VENDORED / RUNTIME.folder):
        fetch(place)


def fetch(place: Path) -> None:
    """Fetch the runtime by npm, and keep its files in a folder.

    Raises:
        PackageError: npm is missing or fails, or the package is not the one that is pinned.
        DiskError: the folder cannot be written.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise PackageError(
            f"the page needs the files of {RUNTIME}, which npm fetches: install Node.js, which has "
            "npm, and run the command again"
        )
    with vanishing_folder() as scratch:
        archive = _packed(npm, scratch)
        content = read_bytes(archive, MOST_BYTES)
        if base64.b64encode(hashlib.sha512(content).digest()).decode() != RUNTIME.integrity:
            raise PackageError(
                f"npm returned another archive of {RUNTIME} than the one that is pinned: check the "
                "registry that npm uses (npm config get registry)"
            )
        with staged_folder(place) as draft:
            _unpack(archive, draft)


def _packed(npm: str, scratch: Path) -> Path:
    """Return the archive of the runtime, downloaded; nothing of it is run."""
    words = [npm, "pack", f"{RUNTIME.name}@{RUNTIME.version}", "--ignore-scripts", "--silent"]
    try:
        done = subprocess.run(
            words, cwd=scratch, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        reason = done.stderr.strip() or f"status {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    found = list(scratch.glob("*.tgz"))
    if len(found) != 1:
        raise PackageError(
            f"npm cannot fetch {RUNTIME} ({reason}): run the command where the npm registry can be "
            "reached"
        )
    return found[0]


def _unpack(archive: Path, draft: Path) -> None:
    """Write the files that are needed; every other member is left alone."""
    with tarfile.open(archive) as members:
        for member in members:
            name = member.name.removeprefix("package/")
            if name in RUNTIME.files and member.isreg() and member.size <= MOST_BYTES:
                stream = members.extractfile(member)
                assert stream is not None  # a regular file
                (draft / Path(name).name).write_bytes(stream.read())
    for name, check in RUNTIME.files.items():
        if not _is(draft / Path(name).name, check):
            raise PackageError(f"{RUNTIME} lacks {name} as it is pinned")


def _is(file: Path, check: str) -> bool:
    """Whether a file is there, with this checksum."""
    return file.is_file() and sha256(file) == check
