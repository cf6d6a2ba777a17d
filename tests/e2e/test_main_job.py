"""The main job itself, as a person starts it: multi-process layout, plug-in by PYTHONPATH."""

import json
import pathlib
import subprocess
import sys

MAIN_JOB = pathlib.Path(__file__).with_name("main_job.py")


def test_the_main_job(bed, tmp_path):
    command = [sys.executable, str(MAIN_JOB), "--model-dir", bed.model, "--workdir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["tokens_equal"] is True and result["wrong_bytes"] == 0
    assert result["restored_tokens"] == 864 and result["restored_bytes"] == 27 * 4 * 65536
    assert result["seconds"]["cold"] > 0 and result["seconds"]["restored"] > 0
