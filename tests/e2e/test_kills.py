"""SIGKILL at exact and at random moments, to the engine and to the Manager. Whoever is
left goes on; what is restored later is right to the byte."""

import os
import pathlib
import random
import signal
import time

import pages
import pytest
from engine_run import prompts
from reports import cached, tokens

SEED = 20
# A pass of each point in an engine with four requests, one at a time.
POINTS = (
    "client_submitted",
    "client_granted",
    "client_claimed",
    "client_before_drained",
    "client_after_drained",
)


def moments():
    """16 exact places, then 6 random times."""
    chosen = random.Random(SEED)
    exact = [f"{POINTS[i % len(POINTS)]}:kill:{chosen.randint(1, 4)}" for i in range(12)]
    exact += [f"client_mid_copy:kill:{hit}" for hit in (1, 2, 3, 4)]
    return exact + [chosen.uniform(0.02, 0.6) for _ in range(6)]


def die(bed, manager, asked, moment, dump=None):
    """An engine that is killed at the moment, exact place or seconds."""
    env = {"ORBITKV_FAULT": moment} if isinstance(moment, str) else {}
    if dump:
        env["ORBITKV_TEST_DUMP"] = str(dump)
    engine = bed.start(asked, manager, one_by_one=True, max_tokens=2, env=env, hold=True)
    if isinstance(moment, str):
        assert engine.wait(30) == -signal.SIGKILL, f"{moment} was never reached"
    else:
        time.sleep(moment)
        assert engine.kill() == -signal.SIGKILL


def quiet(status):
    return not status["sessions"] and status["leases"] == 0 and status["operations"] == 0


def test_engines_killed_while_they_publish(bed, manager, reference, tmp_path):
    asked = {}
    for number, moment in enumerate(moments()):
        asked[number] = prompts(4, 80, seed=100 + number)
        if isinstance(moment, str) and "mid_copy" in moment:
            asked[number] = prompts(4, 650, seed=100 + number)
        die(bed, manager, asked[number], moment, tmp_path / "dump")
    manager.wait_for(lambda s: s["operations"] == 0, "the end of dead engines' operations")
    hits = 0
    for number, some in asked.items():
        env = {"ORBITKV_TEST_DUMP": str(tmp_path / f"after-{number}")} if number % 4 == 0 else {}
        report = bed.run(some, manager, max_tokens=2, env=env)
        assert tokens(report) == reference(some, 2), moments()[number]
        hits += sum(cached(report))
        if env:
            _, _, wrong = pages.compare([tmp_path / "dump" / "published"], tmp_path / f"after-{number}" / "loaded")
            assert wrong == 0
    assert hits > 0 and manager.status()["failed_verifications"] == 0


def test_engines_killed_while_they_restore(bed, manager, reference, tmp_path):
    short, long = prompts(4, 80, seed=7), prompts(4, 650, seed=8)
    dump = {"ORBITKV_TEST_DUMP": str(tmp_path / "first")}
    for some in (short, long):
        bed.run(some, manager, max_tokens=2, env=dump)
    for moment in moments():
        die(bed, manager, long if isinstance(moment, str) and "mid_copy" in moment else short, moment)
    manager.wait_for(quiet, "no session, lease or operation of the dead")
    for some, name in ((short, "short"), (long, "long")):
        report = bed.run(some, manager, max_tokens=2, env={"ORBITKV_TEST_DUMP": str(tmp_path / name)})
        assert tokens(report) == reference(some, 2)
        assert all(c > 0 for c in cached(report))
        assert pages.compare([tmp_path / "first" / "published"], tmp_path / name / "loaded")[2] == 0
    status = manager.status()
    assert status["failed_verifications"] == 0 and status["pool"]["quarantined"] == 0


@pytest.mark.parametrize("exact", [True, False])
def test_the_manager_killed_under_load_and_started_again(bed, manager, reference, tmp_path, exact):
    """One engine goes on through 10 deaths: no wrong token, no hang, and it uses the new
    Manager without being told."""
    asked = prompts(4, 200, seed=9)
    stop = tmp_path / "stop"
    engine = bed.start(asked, manager, passes=6, reset=True, until=str(stop), one_by_one=True)
    chosen = random.Random(SEED + exact)
    for number in range(10):
        if exact:
            point = ("manager_before_grant", "manager_before_reap")[number % 2]
            manager.kill()
            manager.environment = {"ORBITKV_FAULT": f"{point}:kill:{chosen.randint(1, 4)}"}
            manager.start(ready=False)
            assert manager.process.wait(30) == -signal.SIGKILL
        else:
            time.sleep(chosen.uniform(0.02, 0.5))
            manager.kill()
        manager.environment = {}
        manager.start()
        assert engine.poll() is None, engine.text()[-3000:]
    manager.wait_for(lambda s: s["instances"], "the engine in the new Manager")
    stop.touch()
    report = engine.result(120)
    expected = reference(asked)
    for run in range(len(report["runs"])):
        assert tokens(report, run) == expected, f"pass {run} of {len(report['runs'])}"
    assert cached(report, -1) == [192] * 4
    assert all(run["settled"] for run in report["runs"])


def test_a_manager_that_hangs_does_not_hang_the_engine(bed, manager, reference, tmp_path):
    asked = prompts(4, 200, seed=10)
    stop = tmp_path / "stop"
    engine = bed.start(asked, manager, passes=3, reset=True, until=str(stop), one_by_one=True)
    manager.wait_for(lambda s: s["blocks"] >= 24, "24 blocks")
    os.kill(manager.process.pid, signal.SIGSTOP)
    try:
        time.sleep(1)
        stop.touch()
        report = engine.result(60)  # to the end while it hangs
    finally:
        os.kill(manager.process.pid, signal.SIGCONT)
    assert all(tokens(report, run) == reference(asked) for run in range(len(report["runs"])))
    slowest = max(run["seconds"] for run in report["runs"])
    assert slowest < 20, f"a pass took {slowest} s"


def descriptors_at_rest(manager):
    """How many the Manager has once no process is watched any more: an engine is, until it has ended."""
    directory = pathlib.Path(f"/proc/{manager.process.pid}/fd")
    end = time.monotonic() + 20
    while True:
        links = [os.readlink(entry) for entry in directory.iterdir()]
        if not any("pidfd" in link for link in links):
            return len(links)
        assert time.monotonic() < end, f"a process is still watched: {links}"
        time.sleep(0.1)


def test_repeated_deaths_leave_no_files_behind(bed, manager):
    """Nothing of a dead session stays open in the Manager."""
    asked = prompts(2, 80, seed=11)
    bed.run(asked, manager)
    manager.wait_for(quiet, "no session")
    before = descriptors_at_rest(manager)
    for _ in range(5):
        die(bed, manager, asked, "client_granted:kill:1")
    manager.wait_for(quiet, "no session")
    assert descriptors_at_rest(manager) == before
