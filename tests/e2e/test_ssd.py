"""Pages that do not fit into memory come back from SSD, also after everything was killed."""

import time

import pages
import pytest
from engine_run import prompts
from manager_process import ManagerProcess
from reports import cached, tokens

ASKED = prompts(44, 300, seed=50)  # 396 blocks of 256 KiB
BLOCKS, IN_MEMORY = 396, 96
WHOLE = [288] * len(ASKED)
POOL = "24MiB"


def manager_on(directory, pool=POOL, policy="all", extra=()):
    options = ["--ssd-path", str(directory / "store"), "--ssd-size", "512MiB"]
    options += ["--ssd-segment-size", "8MiB", "--ssd-write-policy", policy]
    return ManagerProcess(pool=pool, extra=[*options, *extra])


def stored(count):
    return lambda status: status["ssd"]["records"] >= count and status["ssd"]["queued_bytes"] == 0


@pytest.fixture
def first(bed, tmp_path):
    """A Manager whose SSD holds the blocks of ASKED; the engine that published them is dead."""
    with manager_on(tmp_path) as manager:
        engine = bed.start(
            ASKED, manager, hold=True, one_by_one=True, env={"ORBITKV_TEST_DUMP": str(tmp_path / "first")}
        )
        manager.wait_for(stored(BLOCKS), "all blocks on SSD", 40)
        engine.kill()
        yield manager


def restored(bed, manager, tmp_path):
    report = bed.run(ASKED, manager, one_by_one=True, env={"ORBITKV_TEST_DUMP": str(tmp_path / "second")})
    return report, pages.compare([tmp_path / "first" / "published"], tmp_path / "second" / "loaded")


def test_a_working_set_of_four_times_the_memory_survives_the_death_of_everything(
    bed, first, reference, tmp_path, capsys
):
    first.kill()
    began = time.monotonic()
    first.start()
    back = time.monotonic() - began
    report, (count, _, wrong) = restored(bed, first, tmp_path)
    assert tokens(report) == reference(ASKED)
    assert cached(report) == WHOLE
    assert (count, wrong) == (BLOCKS, 0)
    ssd = first.status()["ssd"]
    assert ssd["recovered"] == BLOCKS and ssd["reads"] >= BLOCKS - IN_MEMORY
    with capsys.disabled():
        print(f"\nManager back after {back:.2f} s; {ssd['reads']} blocks read from SSD")


def test_what_left_memory_is_read_back_by_the_same_manager(bed, first, reference, tmp_path):
    report, (count, _, wrong) = restored(bed, first, tmp_path)
    assert tokens(report) == reference(ASKED) and cached(report) == WHOLE
    assert (count, wrong) == (BLOCKS, 0)
    status = first.wait_for(lambda s: s["operations"] == 0 and s["leases"] == 0, "no lease")
    assert status["ssd"]["reads"] >= BLOCKS - IN_MEMORY and status["failed_verifications"] == 0


def test_a_flipped_bit_on_disk_is_a_miss_and_never_a_wrong_token(bed, first, reference, tmp_path):
    first.kill()
    store = tmp_path / "store"
    with open(store, "r+b") as file:  # somewhere in the images of the first segment
        for at in range((1 << 20) + (1 << 18), (1 << 20) + (12 << 18), 1 << 18):
            file.seek(at + 12345)
            byte = file.read(1)[0]
            file.seek(at + 12345)
            file.write(bytes([byte ^ 4]))
    first.start()
    report, (_, _, wrong) = restored(bed, first, tmp_path)
    assert tokens(report) == reference(ASKED) and wrong == 0
    assert sum(cached(report)) < sum(WHOLE)
    ssd = first.status()["ssd"]
    assert ssd["lost"]["corrupt"] > 0 or ssd["recovered"] < BLOCKS


def test_eviction_by_command_keeps_what_is_stored(bed, first, reference, tmp_path):
    answer = first.command("evict")
    assert answer["evicted"] > 0 and answer["evicted_bytes"] > 0
    first.wait_for(lambda s: s["blocks"] == 0, "an empty memory")
    report, (count, _, wrong) = restored(bed, first, tmp_path)
    assert tokens(report) == reference(ASKED) and (count, wrong) == (BLOCKS, 0)


def test_a_dropped_namespace_does_not_come_back(bed, first, reference, tmp_path):
    (space,) = first.command("ssd", "list")["namespaces"]
    assert space["records"] == BLOCKS and space["asked"]
    gone = first.command("ssd", "drop", space["digest"][:12])
    assert gone["namespaces"] == 1 and gone["records"] == BLOCKS
    first.kill()
    first.start()
    assert first.command("ssd", "list")["namespaces"] == []
    report = bed.run(ASKED[:2], first)
    assert tokens(report) == reference(ASKED[:2]) and cached(report) == [0, 0]


def test_two_managers_do_not_share_a_store(first, tmp_path):
    with pytest.raises(RuntimeError, match="in use"), manager_on(tmp_path):
        pass
