"""A Manager that is upgraded, or killed, under the load of a real engine (serve --keep): the
blocks stay, the tokens are those of an engine without it, and no step stands still for long."""

import os
import random
import signal
import time

import pages
import pytest
from engine_run import prompts
from manager_process import ManagerProcess
from reports import cached, tokens

SEED = 21


@pytest.fixture
def kept(tmp_path):
    with ManagerProcess(pool="128MiB", extra=["--keep", "--keep-with", "keeper"]) as manager:
        yield manager
        pid = manager.status()["pid"]
        manager.stop()  # the keeper, which stops the Manager
        end = time.monotonic() + 20
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
            time.sleep(0.01)
        assert not os.path.exists(f"/proc/{pid}"), "the Manager outlives a stop of its keeper"


def next_life(manager, before, seconds=20):
    """Status of the Manager after the one with the pid `before`, with the engine's ranks, and how
    long it took."""
    start = time.monotonic()
    while time.monotonic() < start + seconds:
        status = manager.status()
        if status is not None and status["pid"] != before and status["instances"]:
            return status, time.monotonic() - start
    raise AssertionError(manager.text()[-3000:])


@pytest.mark.parametrize("how", ["upgrade", "kill"])
def test_under_load(bed, kept, reference, tmp_path, how, capsys):
    asked = prompts(4, 200, seed=41)
    stop = tmp_path / "stop"
    env = {"ORBITKV_TEST_DUMP": str(tmp_path / "dump")}
    engine = bed.start(asked, kept, passes=4, reset=True, until=str(stop), one_by_one=True, env=env)
    status = kept.wait_for(lambda s: s["blocks"] >= 24 and s["instances"], "24 blocks")
    chosen = random.Random(SEED)
    away = []
    for number in range(5):
        time.sleep(chosen.uniform(0.02, 0.4))
        before = kept.status()
        if how == "upgrade":
            assert kept.command("upgrade")["upgraded"] is True
        else:
            os.kill(before["pid"], signal.SIGKILL)
        status, seconds = next_life(kept, before["pid"])
        away.append(seconds)
        assert status["kept"]["blocks"] >= 0.99 * min(24, before["blocks"]), number
        assert engine.poll() is None, engine.text()[-3000:]
    stop.touch()
    report = engine.result(120)
    expected = reference(asked)
    for run in range(len(report["runs"])):
        assert tokens(report, run) == expected, f"pass {run} of {len(report['runs'])}"
    assert cached(report, -1) == [192] * 4
    assert pages.compare([tmp_path / "dump" / "published"], tmp_path / "dump" / "loaded")[2] == 0
    status = kept.wait_for(lambda s: s["operations"] == 0 and s["kept"]["old_grants"] == 0, "no operation")
    assert status["failed_verifications"] == 0 and status["pool"]["quarantined"] == 0
    passes = sorted(run["seconds"] for run in report["runs"])
    with capsys.disabled():
        print(
            f"\n{how}: away for {', '.join(f'{s:.3f}' for s in away)} s; a pass took {passes[len(passes) // 2]:.3f} s, "
            f"the longest {passes[-1]:.3f} s, of {len(passes)}"
        )
