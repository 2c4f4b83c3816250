"""The files of deploy/ fit each other, and their command lines are understood."""

import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from deploy.deploy_files import (
    COMPOSE,
    DASHBOARD,
    DEPLOY,
    DOCKERFILE,
    KUBERNETES,
    LOCK,
    LOCKER,
    NGINX,
    RAY,
    RAY_JOB,
    SCRIPTS,
    UNITS,
    command_lines,
    objects,
    pod,
)
from docs.pages import ROOT, understood
from vitlab.serve.app import application
from vitlab.serve.engine import Engine
from vitlab.serve.limits import Limits
from vitlab.serve.ray_app import deployment

WORKLOADS = [kind for kind in ("Deployment", "Job") if kind in objects()]


@pytest.mark.parametrize(
    ("file", "words"), list(command_lines()), ids=lambda value: str(value)[:20]
)
def test_command_lines_are_understood(file: str, words: list[str]) -> None:
    assert understood(*words[:1], words[1:])


@pytest.mark.parametrize("kind", WORKLOADS)
def test_pods_need_no_privileges(kind: str) -> None:
    spec = pod(objects()[kind])
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    user = spec["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in DOCKERFILE.read_text()
    for box in spec["containers"]:
        assert box["securityContext"]["readOnlyRootFilesystem"] is True
        assert box["securityContext"]["allowPrivilegeEscalation"] is False
        assert box["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= set(box["resources"]["limits"])
        mounted = {mount["mountPath"] for mount in box["volumeMounts"]}
        assert "/tmp" in mounted
        assert {mount["name"] for mount in box["volumeMounts"]} == {
            volume["name"] for volume in spec["volumes"]
        }


def test_objects_name_each_other() -> None:
    found = objects()
    deployment = found["Deployment"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    (box,) = pod(deployment)["containers"]
    port, metrics = box["ports"]
    assert f"EXPOSE {port['containerPort']}" in DOCKERFILE.read_text()
    words = box["args"]
    assert int(words[words.index("--metrics-port") + 1]) == metrics["containerPort"]
    assert found["Service"]["spec"]["ports"][1]["name"] == metrics["name"]
    assert found["ServiceMonitor"]["spec"]["endpoints"][0]["port"] == metrics["name"]
    assert (
        found["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items()
        <= found["Service"]["metadata"]["labels"].items()
    )
    allowed = found["NetworkPolicy"]["spec"]["ingress"][1]["ports"][0]["port"]
    assert allowed == metrics["containerPort"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert found["NetworkPolicy"]["spec"]["ingress"][0]["ports"][0]["port"] == port["containerPort"]
    target = found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
    claim = found["PersistentVolumeClaim"]["metadata"]["name"]
    for kind in WORKLOADS:
        claims = [each.get("persistentVolumeClaim") for each in pod(found[kind])["volumes"]]
        assert claim in [each["claimName"] for each in claims if each]


def test_probes_ask_what_the_service_answers() -> None:
    (box,) = pod(objects()["Deployment"])["containers"]
    paths = {name: box[name]["httpGet"]["path"] for name in box if name.endswith("Probe")}
    assert paths == {
        "startupProbe": "/ready", "readinessProbe": "/ready", "livenessProbe": "/health"
    }  # fmt: skip


def test_alerts_and_dashboard_ask_for_metrics_that_there_are() -> None:
    engine = Engine(device="cpu")
    application(engine)
    text = generate_latest(engine.metrics.registry).decode()
    known = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    known |= {f"{each}{end}" for each in known for end in ("_bucket", "_sum", "_count")}
    rules = [each["expr"] for each in objects()["PrometheusRule"]["spec"]["groups"][0]["rules"]]
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = rules + [target["expr"] for panel in panels for target in panel["targets"]]
    names = {name for each in asked for name in re.findall(r"(?:vitlab|process)_\w+", each)}
    assert len(names) > 15
    assert names <= known


def test_composes_containers_have_what_they_name() -> None:
    found = yaml.safe_load(COMPOSE.read_text())
    service, proxy = found["services"]["vitlab"], found["services"]["nginx"]
    named = [word for word in service["command"] if word.startswith("/run/secrets/")]
    assert sorted(named) == sorted(f"/run/secrets/{each}" for each in service["secrets"])
    assert set(service["secrets"]) == set(found["secrets"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    inside = {each.split(":")[1] for each in proxy["volumes"]}
    assert set(re.findall(r"/etc/nginx/vitlab\.\w+", NGINX.read_text())) <= inside
    assert (COMPOSE.parent / proxy["volumes"][0].split(":")[0]).samefile(NGINX)
    assert (COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]).exists()


def test_the_proxy_and_the_service_have_the_same_bounds() -> None:
    text = NGINX.read_text()
    sizes = [float(each) for each in re.findall(r"client_max_body_size (\d+)m;", text)]
    assert sizes == [Limits.max_body, Limits.max_model]
    waits = [float(each) for each in re.findall(r"proxy_read_timeout (\d+)s;", text)]
    assert min(waits) > Limits.timeout


def test_rays_file_is_understood() -> None:
    (app,) = yaml.safe_load(RAY.read_text())["applications"]
    module, name = app["import_path"].split(":")
    assert callable(getattr(importlib.import_module(module), name))
    assert set(app["args"]) <= set(inspect.signature(deployment).parameters)
    assert Limits.of(**app["args"]["limits"])


def test_ending_takes_less_time_than_it_may() -> None:
    deployment = pod(objects()["Deployment"])
    (words,) = [words for file, words in command_lines() if file == "deployment.yaml"]
    drain = understood(*words[:1], words[1:]).drain
    (box,) = deployment["containers"]
    pause = float(box["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pause + drain + 10 <= deployment["terminationGracePeriodSeconds"]
    stop = re.search(r"^TimeoutStopSec=(\d+)$", UNITS[0].read_text(), re.MULTILINE)
    assert stop is not None
    assert drain + 10 <= float(stop[1])


@pytest.mark.parametrize("file", [*SCRIPTS, RAY_JOB], ids=lambda file: file.name)
def test_job_scripts_are_bash(file: Path) -> None:
    subprocess.run(["bash", "-n", file], check=True)
    assert file == RAY_JOB or re.search(r"^#SBATCH --requeue$", file.read_text(), re.MULTILINE)


def test_the_image_has_only_what_it_needs() -> None:
    """Whatever is copied from the checkout exists, and .dockerignore lets it through."""
    copied = re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    assert names == allowed
    assert all((ROOT / name).exists() for name in names)


def test_the_image_is_installed_by_hashes_of_the_tested_versions() -> None:
    pinned = dict(re.findall(r"^(\S+)==(\S+) --hash=sha256:[0-9a-f]{64}$", LOCK.read_text(), re.M))
    assert len(pinned) == LOCK.read_text().count("\n") - 1
    pinned = {re.sub(r"[-_.]+", "-", name).lower(): each for name, each in pinned.items()}
    tested = re.findall(r"^([^#\s]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)
    versions = {re.sub(r"[-_.]+", "-", name).lower(): each for name, each in tested}
    assert {name: versions.get(name, each) for name, each in pinned.items()} == pinned | {
        "torch": versions["torch"]
    }
    assert pinned["torch"] == f"{versions['torch']}+cpu"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = project["project"]["dependencies"] + project["build-system"]["requires"]
    for extra in ("serve", "datasets"):
        needed += project["project"]["optional-dependencies"][extra]
    names = {re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", each)[0]).lower() for each in needed}
    assert names <= set(pinned)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("tool", "files"),
    [
        (["hadolint"], [DOCKERFILE]),
        (["shellcheck"], [*SCRIPTS, RAY_JOB]),
        (["kubernetes-validate", "--strict", "--quiet"], KUBERNETES),
        (["systemd-analyze", "--man=no", "verify"], UNITS),
    ],
    ids=lambda value: str(value[0]).rsplit("/")[-1],
)
def test_other_peoples_checks_pass(tool: list[str], files: list[Path], tmp_path: Path) -> None:
    if not shutil.which(tool[0]):
        pytest.skip(f"{tool[0]} is not installed")
    copies = [tmp_path / file.name for file in files]
    for file, copy in zip(files, copies, strict=True):
        copy.write_text(file.read_text().replace("/opt/vitlab/bin/vitlab", "/bin/true"))
    done = subprocess.run([*tool, *copies], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_is_looked_at() -> None:
    single = (DOCKERFILE, LOCK, LOCKER, COMPOSE, NGINX, DASHBOARD, RAY, RAY_JOB)
    known = {*single, *KUBERNETES, *SCRIPTS, *UNITS}
    assert {file for file in DEPLOY.rglob("*") if file.is_file()} == known


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda file: file.stem)
def test_jobs_of_slurm_have_all_their_cores(script: Path, tmp_path: Path) -> None:
    """From 22.05 on, srun takes the cores of a task from its own variable alone."""
    for name, does in {"srun": 'echo "$SRUN_CPUS_PER_TASK"', "scontrol": "echo node1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    about = {"NODELIST": "node1", "JOB_ID": "7", "NNODES": "1", "CPUS_PER_TASK": "12"}
    about |= {"ARRAY_JOB_ID": "7", "ARRAY_TASK_ID": "3"}
    about |= {"ARRAY_TASK_MIN": "0", "ARRAY_TASK_COUNT": "8"}
    env = {f"SLURM_{key}": value for key, value in about.items()}
    env["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    words = ["bash", str(script), "embed", "weights", "data", "--out", "folder"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "12\n"), done.stderr
