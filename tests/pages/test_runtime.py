"""The runtime for browsers: fetched once, by npm, and only as it is pinned."""

import base64
import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from vitlab.errors import PackageError
from vitlab.pages import runtime
from vitlab.pages.runtime import NodePackage, cache, kept, runtime_files

CONTENT = {"dist/a.js": b"first", "dist/b.wasm": b"second", "dist/other.js": b"not needed"}


def archive() -> bytes:
    """What the registry has, and a member that leaves its folder."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as members:
        for name, content in [*CONTENT.items(), ("../../escaped.js", b"x")]:
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            members.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodePackage:
    """A pinned package, and an npm that has it."""
    content = archive()
    (tmp_path / "registry.tgz").write_bytes(content)
    npm(tmp_path, monkeypatch)(f"echo $@ >> {tmp_path}/log; cp {tmp_path}/registry.tgz got.tgz")
    digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
    needed = {name: hashlib.sha256(CONTENT[name]).hexdigest() for name in list(CONTENT)[:2]}
    pinned = NodePackage("thing", "1.2.3", digest, needed)
    monkeypatch.setattr(runtime, "RUNTIME", pinned)
    return pinned


def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replace npm by a shell script."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def write(script: str) -> None:
        (tmp_path / "bin" / "npm").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / "npm").chmod(0o755)

    return write


def test_npm_fetches_once_into_the_cache(tmp_path: Path, package: NodePackage) -> None:
    assert kept() is None
    for _ in range(2):
        assert runtime_files() == [b"first", b"second"]
    asked = (tmp_path / "log").read_text().splitlines()
    assert asked == ["pack thing@1.2.3 --ignore-scripts --silent"]
    assert kept() == cache() / "thing-1.2.3"
    assert sorted(each.name for each in kept().iterdir()) == ["a.js", "b.wasm"]
    assert not list(tmp_path.rglob("escaped.js"))


def test_a_damaged_file_is_fetched_again(package: NodePackage) -> None:
    runtime_files()
    (cache() / "thing-1.2.3" / "a.js").write_bytes(b"First")
    assert kept() is None
    assert runtime_files() == [b"first", b"second"]


def test_another_archive_is_refused(package: NodePackage, monkeypatch: pytest.MonkeyPatch) -> None:
    for change, message in (
        ({"integrity": "AAAA"}, r"another archive of thing 1.2.3 than the one"),
        ({"files": {"dist/c.js": "0" * 64}}, r"thing 1.2.3 lacks dist/c.js as it is pinned"),
    ):
        monkeypatch.setattr(runtime, "RUNTIME", replace(package, **change))
        with pytest.raises(PackageError, match=message):
            runtime_files()
    assert not list(cache().glob("*"))


def test_no_npm_and_no_network_are_one_line(
    tmp_path: Path, package: NodePackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm(tmp_path, monkeypatch)("echo 'npm error network\nunreachable' >&2; exit 1")
    with pytest.raises(PackageError, match=r"npm cannot fetch thing 1.2.3 \(npm error network"):
        runtime_files()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PackageError, match=r"install Node.js, which has npm") as found:
        runtime_files()
    assert "\n" not in str(found.value)
