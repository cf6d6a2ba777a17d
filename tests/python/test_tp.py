"""One engine over two Managers: the example of docs/tp.md, byte for byte, and who has nothing."""

import os
import pathlib
import re
import threading
import time

import pytest
from orbitkv import CacheManagerClient, PrefixGroup, RejectedError, RetryLaterError
from tp_hosts import TOKENS, Host, key

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "tp.md"
SAVED = (12, 7)
@pytest.fixture
def hosts():
    made = [Host(0), Host(1)]
    yield made
    for host in made:
        host.close()


def group_of(hosts, timeout=20.0, **options):
    seats = [(host.scheduler, host.instance, [2 * host.number, 2 * host.number + 1]) for host in hosts]
    return PrefixGroup(seats, timeout, **options)


def test_the_pages_example_restores_every_rank(hosts):
    for host, count in zip(hosts, SAVED, strict=True):
        host.save(count)
    (example,) = [e for e in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "claim.wait" in e]
    restored = []

    def restore_on_all_ranks(found):
        assert found.blocks == min(SAVED)
        for host in hosts:
            ((group, blocks, _),) = found.leases[host.number]
            assert (group, blocks) == (0, min(SAVED))
            for rank in range(2):
                restored.append(2 * host.number + rank)
                yield restored[-1], host.restore(rank, found.leases[host.number])

    names = {
        "PrefixGroup": lambda _: group_of(hosts),
        "scheduler_a": None,
        "scheduler_b": None,
        "instance": None,
        "hashes": [key(block) for block in range(16)],
        "restore_on_all_ranks": restore_on_all_ranks,
    }
    exec(example, names)
    assert restored == [0, 1, 2, 3]
    for host in hosts:
        status = host.manager.wait_for(lambda s: s["leases"] == 0 and s["interests"]["open"] == 0, "nothing held")
        assert status["interests"]["claims"] == 1
    names["group"].close()


def test_a_boundary_of_two_groups_is_had_on_every_rank_or_on_none():
    hosts = [Host(0, groups=2), Host(1, groups=2)]
    for host, count in zip(hosts, (5, 3), strict=True):
        host.save(count)
    with group_of(hosts) as group:
        none = group.begin([key(block) for block in range(5)] * 2, boundary=5 * TOKENS).poll(20)
        assert (none.blocks, none.why, none.participant) == (0, "gone", 1)
        with group.begin([key(block) for block in range(3)] * 2, boundary=3 * TOKENS) as claim:
            found = claim.poll(20)
            assert found.blocks == 6
            for host in hosts:
                assert [(of, blocks) for of, blocks, _ in found.leases[host.number]] == [(0, 3), (1, 3)]
                for rank in range(2):
                    claim.restored(2 * host.number + rank, host.restore(rank, found.leases[host.number]))
            end = claim.wait(20)
            assert end.success and end.quiet
    for host in hosts:
        host.close()


def test_a_list_of_several_parts_is_one(hosts):
    for host, count in zip(hosts, SAVED, strict=True):
        host.save(count)
    nowhere = [bytes([255, *divmod(n, 256)]) + bytes(29) for n in range(4500)]
    with group_of(hosts) as group, group.begin([key(block) for block in range(8)] + nowhere) as claim:
        assert claim.poll(20).blocks == min(SAVED)


def test_a_participant_is_bound_to_the_registrations_that_it_names(hosts):
    for host in hosts:
        host.save(2)
    named = [host.scheduler.interest_authority() for host in hosts]
    assert [of.consumers for of in named] == [2, 2]
    seats = [(host.scheduler, host.instance, [2 * host.number, 2 * host.number + 1]) for host in hosts]
    with PrefixGroup([(*seat, of) for seat, of in zip(seats, named, strict=True)], 20.0) as group:
        assert group.begin([key(0)]).poll(20).blocks == 1
    with PrefixGroup([(*seat, of) for seat, of in zip(seats, named[::-1], strict=True)], 20.0) as group:
        found = group.begin([key(0)]).poll(20)
        assert found.blocks == 0 and "stale authority" in found.message
    strange = os.urandom(16)
    with pytest.raises(RetryLaterError, match="not ready"):
        hosts[0].scheduler.interest_authority(strange)
    with PrefixGroup([(hosts[0].scheduler, strange, [0, 1], named[0])], 20.0) as group:
        assert "stale authority" in group.begin([key(0)]).poll(20).message
    with PrefixGroup([seats[0], (hosts[1].scheduler, strange, [2, 3])], 0.3) as group:
        found = group.begin([key(0)]).poll(20)
        assert (found.blocks, found.why, found.participant) == (0, "timeout", 1)
        assert f"participant 1 did not have it in time; its Manager says: instance {strange.hex()[:4]}" in found.message
    with pytest.raises(ValueError, match="generation"):
        PrefixGroup([(*seats[0], named[0]._replace(generation=-1))])


def test_a_host_without_it_leaves_nothing_held(hosts):
    hosts[0].save(4)
    with group_of(hosts) as group:
        claim = group.begin([key(block) for block in range(4)])
        found = claim.poll(10)
        assert (found.blocks, found.leases, found.why, found.participant) == (0, (), "gone", 1)
        end = claim.wait(10)
        assert end.done and end.quiet and not end.success
        hosts[0].manager.wait_for(lambda s: s["leases"] == 0 and s["interests"]["open"] == 0, "nothing held")
        claim.close()
        claim.close()
        with pytest.raises(RejectedError):
            claim.poll()
    with pytest.raises(RejectedError):
        group.begin([key(0)])


def test_what_cannot_be_a_group_is_named(hosts):
    with pytest.raises(RejectedError, match="rank 1 is of two participants"):
        PrefixGroup([(host.scheduler, host.instance, [1]) for host in hosts])
    with group_of(hosts[:1], timeout=0.5) as group:
        with pytest.raises(RejectedError, match="hashes"):
            group.begin([])
        claim = group.begin([key(0)])
        with pytest.raises(RejectedError, match="rank 9"):
            claim.restored(9, True)
        with pytest.raises(RejectedError, match="no lease"):
            claim.restored(0, True)
        for wrong in (-1, 65_536):
            with pytest.raises(ValueError, match="rank"):
                claim.restored(wrong, True)
        with pytest.raises(ValueError, match="timeout"):
            claim.poll(1e9)
    with PrefixGroup([(hosts[0].scheduler, hosts[0].instance, [0, 1, 2])]) as group:
        found = group.begin([key(0)]).poll(10)
        assert found.blocks == 0 and "ranks" in found.message
    with pytest.raises(RejectedError):
        hosts[0].scheduler.carry_interest(b"no frame")


def test_claims_that_are_dropped_are_closed(hosts):
    hosts[0].save(2)
    with group_of(hosts[:1]) as group:
        for _ in range(150):  # 128 may be open
            assert group.begin([key(0)]).poll(20) is not None
        with group.begin([key(0)]) as claim:
            assert claim.poll(20).blocks == 1
        hosts[0].manager.wait_for(lambda s: s["leases"] == 0 and s["interests"]["open"] == 0, "nothing held")


def test_a_group_that_is_closed_while_threads_use_it_lets_them_go():
    client = CacheManagerClient("/nowhere/none.sock", os.urandom(16))
    for _ in range(20):
        group = PrefixGroup([(client, os.urandom(16), [0])])
        ended = []

        def work(group=group, ended=ended):
            try:
                while True:
                    claim = group.begin([key(0)])
                    claim.poll(0.01)
                    claim.wait(0.0)
                    claim.close()
            except (RejectedError, RetryLaterError) as error:
                ended.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.005)
        group.close()
        for thread in threads:
            thread.join(60)
        assert len(ended) == 4
    client.close()
