"""The files of deploy/, and the vitlab command lines in them."""

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import yaml

from docs.pages import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
SCRIPTS = sorted((DEPLOY / "slurm").glob("*.sbatch"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
RAY = DEPLOY / "ray" / "vitlab.yaml"
RAY_JOB = DEPLOY / "ray" / "parts.sh"
DOCKERFILE = DEPLOY / "Dockerfile"
LOCK, LOCKER = DEPLOY / "requirements-cpu.txt", DEPLOY / "lock.py"
COMPOSE = DEPLOY / "compose.yaml"
NGINX = DEPLOY / "nginx" / "vitlab.conf"
DASHBOARD = DEPLOY / "monitoring" / "grafana.json"


def objects() -> dict[str, dict[str, Any]]:
    """The objects of Kubernetes, by kind."""
    return {found["kind"]: found for found in (yaml.safe_load(f.read_text()) for f in KUBERNETES)}


def pod(item: dict[str, Any]) -> dict[str, Any]:
    """What a Deployment or Job makes its pods of."""
    found: dict[str, Any] = item["spec"]["template"]["spec"]
    return found


def entrypoint() -> list[str]:
    match = re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert match
    words: list[str] = json.loads(match[1])
    return words


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Each file's name, and the words after `vitlab` of a command line in it."""
    for file in KUBERNETES:
        item = yaml.safe_load(file.read_text())
        for box in pod(item)["containers"] if "template" in item["spec"] else ():
            yield file.name, (box.get("command", entrypoint()) + box.get("args", []))[1:]
    words = yaml.safe_load(COMPOSE.read_text())["services"]["vitlab"]["command"]
    yield COMPOSE.name, (entrypoint() + words)[1:]
    for file in (*SCRIPTS, RAY_JOB, *UNITS):
        text = file.read_text().replace("\\\n", " ")
        for line in text.splitlines():
            if match := re.search(
                r"^#   (?:sbatch |RAY_ADDRESS=\S+ ./)parts.\w+ (.*)"
                r"|(?:-m |^ExecStart=.*/)vitlab (.*)",
                line,
            ):
                words = shlex.split(match[1] or match[2])
                yield file.name, [word for word in words if word not in ("$@", "&")]
