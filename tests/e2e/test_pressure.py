"""Too little memory, in the engine and in the Manager; requests that go away."""

import statistics

import pages
from engine_run import prompts
from manager_process import ManagerProcess
from reports import cached, tokens


def test_a_pool_smaller_than_the_working_set(bed, reference, tmp_path):
    """8 MiB hold 31 of 54 blocks: hits, misses, evictions, right bytes."""
    asked = prompts(6, 300, seed=30)
    with ManagerProcess(pool="8MiB") as manager:
        env = {"ORBITKV_TEST_DUMP": str(tmp_path)}
        report = bed.run(asked, manager, passes=4, reset=True, one_by_one=True, env=env)
        status = manager.wait_for(lambda s: s["operations"] == 0 and s["leases"] == 0, "no lease")
        assert status["evicted"] > 0 and status["pool"]["used"] <= 8 << 20
    assert all(tokens(report, run) == reference(asked) for run in range(4))
    assert pages.compare([tmp_path / "published"], tmp_path / "loaded")[2] == 0


def test_preemption(bed, manager, reference, tmp_path):
    """35 blocks of engine memory for 6 requests that grow from 10 to 12."""
    asked = prompts(6, 300, seed=31)
    env = {"ORBITKV_TEST_DUMP": str(tmp_path)}
    report = bed.run(asked, manager, shape="small", passes=2, reset=True, max_tokens=64, env=env)
    assert all(tokens(report, run) == reference(asked, 64) for run in range(2))
    assert sum(run["counters"]["vllm:num_preemptions"] for run in report["runs"]) > 0
    assert sum(cached(report, 1)) > 0
    assert pages.compare([tmp_path / "published"], tmp_path / "loaded")[2] == 0
    assert all(run["settled"] for run in report["runs"])


def test_aborts_in_every_state(bed, manager, reference, tmp_path):
    """Waiting, loading, computing, decoding; then nothing is held any more."""
    asked = prompts(8, 300, seed=32)
    bed.run(asked[:4], manager)
    manager.wait_for(lambda s: s["blocks"] >= 36, "36 blocks")
    report = bed.run(asked, manager, kind="aborting", max_tokens=8, aborts=[0, 1, 2, None, 0, 1, 3, 5])
    assert report["settled"] and report["reset"]
    kept = report["finished"]["request-3"]
    assert kept["tokens"] == reference(asked)[3]
    manager.wait_for(lambda s: not s["sessions"] and s["leases"] == 0 and s["operations"] == 0, "nothing held")
    again = bed.run(asked, manager)
    assert tokens(again) == reference(asked)


def test_more_waiting_requests_than_fit_hold_few_leases(bed, manager, reference):
    asked = prompts(40, 100, seed=33)
    bed.run(asked, manager, max_tokens=2)
    report = bed.run(asked, manager, max_tokens=2)
    assert tokens(report) == reference(asked, 2)
    assert cached(report) == [96] * 40


def test_publishing_does_not_delay_steps(bed, manager, capsys):
    report = bed.run([], manager, kind="paired_steps", pairs=12, length=300, max_tokens=16)
    ratios, prefill, decode = [], [], []
    for pair in report["pairs"]:
        on, off = pair["on"], pair["off"]
        prefill.append(on[0] / off[0])
        decode.append(statistics.median(on[1:]) / statistics.median(off[1:]))
        ratios.append(sum(on) / sum(off))
    median = statistics.median(ratios)
    with capsys.disabled():
        print(
            f"\nstep times with/without publishing, {len(ratios)} pairs, medians: all steps {median:.3f}, "
            f"prefill {statistics.median(prefill):.3f}, decode {statistics.median(decode):.3f}"
        )
    assert median < 1.25
