"""What a shell completes: commands, options, and the words that an option may be."""

import shutil
import subprocess

import pytest

from conftest import call

ASK = """
source /dev/stdin
complete -p vitlab > /dev/null || exit 1
for line in "vitlab fi" "vitlab finetune --tu" "vitlab finetune --tune x" "vitlab train --no-fl"; do
    read -ra COMP_WORDS <<< "$line"
    [ "${COMP_WORDS[-1]}" = x ] && COMP_WORDS[-1]=""
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _shtab_vitlab
    echo "${COMPREPLY[@]}"
done
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes(capsys: pytest.CaptureFixture[str]) -> None:
    code, script, _ = call(capsys, "completion", "bash")
    assert code == 0
    ran = subprocess.run(
        ["bash", "-c", ASK], input=script, capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == [
        "finetune", "--tune", "all attention ffn head last norms lora", "--no-flip",
    ]  # fmt: skip


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_too(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, script, _ = call(capsys, "completion", shell)
    assert code == 0
    assert "vitlab" in script
    assert "label-smoothing" in script
