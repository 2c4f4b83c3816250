"""The versions of what decides the results of a run."""

import platform
import subprocess
from pathlib import Path

from vitlab.packages import version_of

PATIENCE = 10  # seconds for git, which may ask a file system that is gone


def versions() -> dict[str, str]:
    """Return the versions of everything whose arithmetic decides the result, and our revision."""
    packages = {name: version_of(name) for name in ("vitlab", "torch", "numpy", "pillow")}
    machine = {"python": platform.python_version(), "processor": processor()}
    revision = _revision()
    return packages | machine | ({"git": revision} if revision else {})


def processor() -> str:
    """Return the kind of processor, on which the last bits depend: `x86_64 AVX512, bf16`."""
    import torch  # slow to import

    from vitlab.precision import has_bf16

    vectors = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()} {vectors}" + ", bf16" * has_bf16()


def _revision() -> str:
    """Return the git revision of our source tree, or nothing outside one; `+` marks changes."""
    own = Path(__file__)

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words],
            cwd=own.parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
        return done.stdout.strip()

    try:
        tracked = git("ls-files", own.name)
        changed = "+" if git("status", "--porcelain", "--untracked-files=no") else ""
        return git("rev-parse", "HEAD") + changed if tracked else ""
    except (OSError, subprocess.SubprocessError):
        return ""
