"""Ctrl-C in the command's first second: status 130, and no traceback."""

import signal
import subprocess
import sys
import time

import pytest

import hewfl_command


def started(*arguments: str) -> subprocess.Popen[str]:
    code = "import sys, hewfl_command; sys.argv[0] = 'hewfl'; "
    code += "print('go', flush=True); hewfl_command.main()"
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    return process


@pytest.mark.parametrize("delay", [0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8])
def test_ctrl_c_while_python_imports_is_quiet(delay: float) -> None:
    process = started("--help")
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=600)
    assert errors == ""
    assert process.returncode in ((130,) if delay < 0.1 else (0, 130))
    assert process.returncode == 130 or "certify" in output


def test_ctrl_c_in_the_last_steps_of_python_changes_nothing() -> None:
    """The modules are taken apart after Python gave up its handlers of signals."""
    code = """
import os, signal, sys, hewfl_command

class Late:
    def __del__(self, kill=os.kill, me=os.getpid(), number=signal.SIGINT):
        kill(me, number)

late = Late()
sys.argv = ['hewfl', 'version']
hewfl_command.main()
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "hewfl" in done.stdout


def test_who_ignores_ctrl_c_goes_on_ignoring_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        monkeypatch.setattr(sys, "argv", ["hewfl", "version"])
        with pytest.raises(SystemExit) as end:
            hewfl_command.main()
        assert end.value.code in (None, 0)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert "hewfl" in capsys.readouterr().out
