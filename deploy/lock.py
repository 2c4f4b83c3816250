"""Write requirements with the hash of each file that pip chooses on this machine for the image.

`python3.11 deploy/lock.py > deploy/requirements-cpu.txt` on x86-64 Linux, as the image has it;
`PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu` finds PyTorch's CPU build.
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch==2.13.0+cpu"
COMMAND = "install --quiet --dry-run --ignore-installed --only-binary :all: --report - -c"


def main() -> None:
    """Print what is installed beside this project, and what builds its wheel."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    words = [*COMMAND.split(), str(ROOT / "constraints.txt"), *build, TORCH]
    words += [f"{ROOT}[serve,datasets]"]
    report = json.loads(subprocess.check_output([sys.executable, "-m", "pip", *words]))
    about = report["environment"]
    print(f"# Python {about['python_version']}, {about['sys_platform']}, ", end="")
    print(f"{about['platform_machine']}; made by deploy/lock.py")
    for each in sorted(report["install"], key=lambda each: each["metadata"]["name"].lower()):
        name, version = each["metadata"]["name"], each["metadata"]["version"]
        if name != "vitlab":
            digest = each["download_info"]["archive_info"]["hashes"]["sha256"]
            print(f"{name}=={version} --hash=sha256:{digest}")


if __name__ == "__main__":
    main()
