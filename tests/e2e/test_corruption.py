"""Damaged bytes in the pool: noticed, computed again, counted; never a wrong token."""

import pages
import pytest
from engine_run import prompts
from reports import cached, tokens
from slabs import Slabs

PROMPTS = prompts(3, 300, seed=20)

PLACES = {
    "payload": lambda header, slot: header + (slot - header) // 2,
    "last byte": lambda header, slot: slot - 1,
    "header check": lambda header, slot: 32 + 3,
    "header length": lambda header, slot: 24 + 2,
    "allocation id": lambda header, slot: 16,
}


def published(bed, manager, tmp_path, **env):
    bed.run(PROMPTS, manager, env={"ORBITKV_TEST_DUMP": str(tmp_path / "first"), **env})
    manager.wait_for(lambda s: s["blocks"] >= 27 and s["operations"] == 0, "27 blocks")


def damage(manager, place):
    slabs = Slabs(manager.process.pid)
    count = slabs.flip(place)
    slabs.close()
    assert count >= 27, f"found {count} images"


def restore(bed, manager, tmp_path, shape="main", **env):
    report = bed.run(PROMPTS, manager, shape=shape, env={"ORBITKV_TEST_DUMP": str(tmp_path / "second"), **env})
    return report, pages.compare([tmp_path / "first" / "published"], tmp_path / "second" / "loaded")


@pytest.mark.parametrize("place", PLACES)
def test_a_flipped_bit_is_noticed_and_the_pages_are_computed(bed, manager, reference, tmp_path, place):
    published(bed, manager, tmp_path)
    damage(manager, PLACES[place])
    report, (_, _, wrong) = restore(bed, manager, tmp_path)
    assert tokens(report) == reference(PROMPTS)
    assert wrong == 0 and cached(report) == [0, 0, 0]
    status = manager.status()
    assert status["failed_verifications"] > 0 and status["failed_restores"] >= 3


def test_a_step_that_used_damaged_pages_is_taken_back(bed, manager, reference, tmp_path):
    published(bed, manager, tmp_path)
    damage(manager, PLACES["payload"])
    report, (_, _, wrong) = restore(bed, manager, tmp_path, shape="layers")
    assert tokens(report) == reference(PROMPTS) and wrong == 0
    assert manager.status()["failed_verifications"] > 0


@pytest.mark.parametrize("shape", ["main", "layers"])
def test_damaged_blocks_are_replaced_by_good_ones(bed, manager, reference, tmp_path, shape):
    published(bed, manager, tmp_path)
    damage(manager, PLACES["payload"])
    restore(bed, manager, tmp_path, shape=shape)  # computes, and publishes again
    manager.wait_for(lambda s: s["blocks"] >= 27 and s["operations"] == 0, "27 blocks again")
    report, (count, _, wrong) = restore(bed, manager, tmp_path)
    assert (cached(report), count, wrong) == ([288] * 3, 27, 0)
    assert tokens(report) == reference(PROMPTS)


def test_a_wrong_digest_is_noticed(bed, manager, reference, tmp_path):
    """The engine's own digest of one image is wrong from the start."""
    published(bed, manager, tmp_path, ORBITKV_FAULT="client_digest:flip:1")
    report, (_, _, wrong) = restore(bed, manager, tmp_path)
    assert tokens(report) == reference(PROMPTS) and wrong == 0
    assert 0 in cached(report) and manager.status()["failed_verifications"] == 1


def test_without_verification_the_same_damage_goes_through(bed, manager, tmp_path):
    """Shows that the tests above look at what protects: switched off, bytes are wrong."""
    published(bed, manager, tmp_path)
    damage(manager, PLACES["payload"])
    report, (count, _, wrong) = restore(bed, manager, tmp_path, ORBITKV_TEST_VERIFY="0")
    assert cached(report) == [288] * 3
    assert (count, wrong) == (27, 27)
