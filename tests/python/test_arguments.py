"""Wrong arguments: the error names the argument and what it may be, whoever would have looked at it."""

import pytest
from orbitkv import (
    BlockHashes,
    CacheManagerClient,
    Group,
    Layer,
    PrefixGroup,
    QueryLoading,
    RecoveryContract,
    Registration,
    RestoreHandle,
    SaveHandle,
    WarmHint,
)

ID = bytes(range(16))
HASHES = [bytes(32)]
MEMORY = Registration(1, ())
CONTRACT = RecoveryContract("n", 16, [(0, "prefix", None)])


@pytest.fixture
def client(tmp_path):
    with CacheManagerClient(str(tmp_path / "nobody.sock"), ID, timeout_ms=1) as client:
        yield client


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"timeout_ms": -1}, ValueError, r"timeout_ms is 0 to 4294967295, not -1"),
        ({"timeout_ms": 2**32}, ValueError, r"timeout_ms is 0 to 4294967295"),
        ({"timeout_ms": 1.5}, TypeError, r"timeout_ms is a whole number, not 1\.5"),
        ({"spin_iterations": None}, TypeError, r"spin_iterations is a whole number, not None"),
        ({"instance_id": b"short"}, ValueError, r"instance_id has 16 bytes, not 5"),
        ({"instance_id": "0" * 16}, TypeError, r"instance_id is 16 bytes"),
        ({"timeout_ms": True}, TypeError, r"timeout_ms is a whole number, not True"),
        ({"timeout_ms": float("nan")}, TypeError, r"timeout_ms is a whole number, not nan"),
        ({"name": 5}, TypeError, r"name is a str, not 5"),
        ({"verify": "no"}, TypeError, r"verify is True or False, not 'no'"),
        ({"inline_copies": 1}, TypeError, r"inline_copies is True or False"),
        ({"early_leases": None}, TypeError, r"early_leases is True or False"),
        ({"copy_method": "fast"}, ValueError, r"copy_method is one of auto, direct, kernel, not 'fast'"),
        ({"copy_pace": 7}, TypeError, r"copy_pace is a str, not 7"),
        ({"trace_file": 7}, TypeError, r"trace_file is a path, not 7"),
        ({"bootstrap_socket": 7}, TypeError, r"bootstrap_socket is a path, not 7"),
    ],
)
def test_of_a_client(tmp_path, options, kind, said):
    with pytest.raises(kind, match=said):
        CacheManagerClient(**{"bootstrap_socket": tmp_path / "nobody.sock", "instance_id": ID, **options})


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda: WarmHint(first_use_ms=-1), ValueError, r"WarmHint\.first_use_ms is 0 to 4294967295, not -1"),
        (lambda: WarmHint(max_wait_ms=2**32), ValueError, r"WarmHint\.max_wait_ms is 0 to 4294967295"),
        (lambda: WarmHint(priority=float("nan")), TypeError, r"WarmHint\.priority is a whole number, not nan"),
        (lambda: WarmHint(priority=True), TypeError, r"WarmHint\.priority is a whole number, not True"),
        (lambda: WarmHint(confidence=101), ValueError, r"WarmHint\.confidence is 0 to 100, not 101"),
        (lambda: Group(id=70000), ValueError, r"Group\.id is 0 to 65535, not 70000"),
        (lambda: Group(shards=0), ValueError, r"Group\.shards is 1 to 65535, not 0"),
        (lambda: Group(shard=2, shards=2), ValueError, r"Group\.shard is 0 to 1, not 2"),
        (lambda: Group(writer=1), TypeError, r"Group\.writer is True or False, not 1"),
        (lambda: Group(rule="all"), ValueError, r"Group\.rule is one of prefix, window, checkpoint, not 'all'"),
        (lambda: Group(1, rule="window"), ValueError, r"Group\.window_tokens is 1 to 4294967295, not 0"),
        (lambda: Group(window_tokens=-1), ValueError, r"Group\.window_tokens is 0"),
        (lambda: Group(window_tokens=16), ValueError, r"Group\.window_tokens is 0 for a prefix group, not 16"),
        (lambda: Layer(None, 0, 0, bytearray(64), 64, 1, 64), TypeError, r"Layer\.name is a str, not None"),
        (lambda: Layer("l", -1, 0, bytearray(64), 64, 1, 64), ValueError, r"Layer\.group is 0 to 65535, not -1"),
        (lambda: Layer("l", 0, 0, bytearray(64), -64, 1, 64), ValueError, r"Layer\.block_stride is 0 to 184467440737"),
        (lambda: Layer("l", 0, 0, bytearray(64), 64, 0, 64), ValueError, r"Layer\.rows is 1 to 4294967295, not 0"),
        (lambda: Layer("l", 0, 0, bytearray(64), 64, 1, 0), ValueError, r"Layer\.row_bytes is 1 to"),
        (lambda: Layer("l", 0, 0, bytearray(64), 64, 1, 64, 0.5), TypeError, r"Layer\.row_stride is a whole number"),
        (lambda: RecoveryContract("n", -16, []), ValueError, r"page_tokens is 0"),
        (lambda: RecoveryContract(None, 16, []), TypeError, r"namespace is a str"),
        (lambda: PrefixGroup(5), TypeError, r"participants is a list, not 5"),
        (lambda: PrefixGroup([5]), ValueError, r"participants\[0\] is \(client, instance, ranks\), not 5"),
        (lambda: PrefixGroup([("c", ID, [0])]), TypeError, r"the client of a participant is a CacheManagerClient"),
        (lambda: PrefixGroup([], timeout=0), ValueError, r"timeout is 0\.001 to 4294967 seconds, not 0"),
        (lambda: PrefixGroup([], timeout=-1), ValueError, r"timeout is 0\.001 to 4294967 seconds, not -1"),
        (lambda: PrefixGroup([], restore_timeout=float("nan")), ValueError, r"restore_timeout is 0\.001 .* not nan"),
        (lambda: PrefixGroup([], timeout="5"), TypeError, r"timeout is a number of seconds, not '5'"),
    ],
)
def test_of_a_value_when_it_is_made(make, kind, said):
    with pytest.raises(kind, match=said):
        make()


def test_of_a_participant(client):
    for seat, kind, said in [
        ((client, b"short", [0]), ValueError, "instance has 16 bytes, not 5"),
        ((client, ID, 0), TypeError, "ranks is a list, not 0"),
        ((client, ID, [-1]), ValueError, "rank is 0 to 65535, not -1"),
        ((client, ID, [0], (1, 2)), ValueError, r"an authority is \(incarnation, generation, layout, consumers\)"),
        ((client, ID, [0], (1, 2, bytes(3), 1)), ValueError, "layout has 16 bytes, not 3"),
    ]:
        with pytest.raises(kind, match=said):
            PrefixGroup([seat])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rank": -1}, r"rank is 0 to 65535, not -1"),
        ({"world_size": 2**16}, r"world_size is 0 to 65535"),
        ({"num_blocks": 2**40}, r"num_blocks is 0 to 4294967295"),
        ({"block_tokens": -(10**5000)}, r"block_tokens is 0 to 4294967295, not a number of many digits"),
    ],
)
def test_of_a_registration(client, given, said):
    usual = {
        "namespace": "n",
        "rank": 0,
        "world_size": 1,
        "device": "cpu:0",
        "layers": [],
        "num_blocks": 1,
        "block_tokens": 16,
    }
    with pytest.raises(ValueError, match=said):
        client.register(**{**usual, **given})
    for given, said in [({"groups": [0]}, "groups.0. is a Group"), ({"layers": ["l"]}, "layers.0. is a Layer")]:
        with pytest.raises(TypeError, match=said):
            client.register(**{**usual, **given})


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda c: c.query_prefetch(None, HASHES, "r"), TypeError, "instance is 16 bytes, not None"),
        (lambda c: c.query_prefetch(ID, HASHES, None), TypeError, "req_id is a str, not None"),
        (lambda c: c.query_candidates(ID, HASHES, "r", -1), ValueError, "group_id is 0 to 65535, not -1"),
        (lambda c: c.prepare_prefix(ID, HASHES, "r", 1 << 16), ValueError, "group_id is 0 to 65535"),
        (lambda c: c.warm_prefix(ID, HASHES, "r", 5), TypeError, "hint is a WarmHint, not 5"),
        (lambda c: c.query_prefetch(ID, HASHES, "r", 1), TypeError, "wait_for_full_prefix is True or False, not 1"),
        (lambda c: c.poll_query(ID, "r", None), TypeError, "loading is a QueryLoading, not None"),
        (lambda c: c.poll_recovery(ID, "r", QueryLoading(0)), TypeError, "loading is a RecoveryLoading"),
        (lambda c: c.query_boundaries(ID, None, {}, "r", (0, 16)), TypeError, "contract is a RecoveryContract"),
        (lambda c: c.query_boundaries(ID, CONTRACT, {}, "r", 5), ValueError, r"tail is \(origin, end\), not 5"),
        (lambda c: c.query_boundaries(ID, CONTRACT, {}, "r", (-1, 5)), ValueError, "tail: origin is 0 to"),
        (lambda c: c.query_boundaries(ID, CONTRACT, {}, "r", (0, 16), -1), ValueError, "limit is 0 to"),
        (lambda c: c.query_boundaries(ID, CONTRACT, 5, "r", (0, 16)), TypeError, "hashes is a dict, not 5"),
        (lambda c: c.read_recovery(ID, [HASHES], "r", 0, 16), TypeError, "hashes is a dict"),
        (lambda c: c.save(5, []), TypeError, "registration is a Registration, not 5"),
        (lambda c: c.save(MEMORY, [(0, [1])]), ValueError, r"groups\[0\] is \(group, blocks, hashes\)"),
        (lambda c: c.save(MEMORY, [], -1), ValueError, "ready_stream is 0 to 18446744073709551615, not -1"),
        (lambda c: c.start_restore(MEMORY, [ID]), ValueError, r"loads\[0\] is \(lease, block ids by group\)"),
        (lambda c: c.start_restore(MEMORY, [(ID, [5])]), TypeError, "blocks of group 0 is a list, not 5"),
        (lambda c: c.start_restore(MEMORY, [], 0, [("l", -1)]), ValueError, "the event of l is 0 to"),
        (lambda c: c.start_restore(MEMORY, [], 0, ["l"]), ValueError, r"a layer event is \(layer, event\), not 'l'"),
        (lambda c: c.poll_save(RestoreHandle(1)), TypeError, "handle is a SaveHandle, not RestoreHandle"),
        (lambda c: c.wait_restore(SaveHandle(1)), TypeError, "handle is a RestoreHandle, not SaveHandle"),
        (lambda c: c.forget(1), TypeError, "handle is an OperationHandle, not 1"),
        (lambda c: c.unregister(None), TypeError, "registration is a Registration, not None"),
        (lambda c: c.carry_interest("frame"), TypeError, "a frame is bytes, not str"),
        (lambda c: c.wait_connected(True), TypeError, "timeout is a number of seconds, not True"),
        (lambda c: c.cancel_query(ID, "r", 0, -1), ValueError, "revision is 0 to 18446744073709551615, not -1"),
        (lambda c: c.read_recovery(ID, {0: HASHES}, "r", -16, 16), ValueError, "origin is 0"),
        (lambda c: c.read_recovery(ID, {1 << 16: HASHES}, "r", 0, 16), ValueError, "a group of hashes is 0 to 65535"),
        (lambda c: c.release(b"x"), ValueError, "lease has 16 bytes, not 1"),
        (lambda c: c.publish_activity(b""), ValueError, "instance has 16 bytes, not 0"),
        (lambda c: c.wait_connected(float("nan")), ValueError, "timeout is 0 to 4294967 seconds, not nan"),
        (lambda c: c.wait_connected(float("inf")), ValueError, "timeout is 0 to 4294967 seconds, not inf"),
        (lambda c: c.wait_connected(float("-inf")), ValueError, "timeout is 0 to 4294967 seconds, not -inf"),
        (lambda c: c.wait_connected(10**400), ValueError, "timeout is 0 to 4294967 seconds, not a number of many"),
        (lambda c: c.wait_connected(-5), ValueError, "timeout is 0 to 4294967 seconds, not -5"),
        (lambda c: c.wait_connected("soon"), TypeError, "timeout is a number of seconds, not 'soon'"),
    ],
)
def test_of_a_call(client, call, kind, said):
    with pytest.raises(kind, match=said):
        call(client)


def test_of_blocks(client):
    for wrong in (-1, 2**32 - 1, 2**32, "a", None):
        with pytest.raises(ValueError, match="blocks of group 0 are block ids, 0 to 4294967294; "):
            client.save(MEMORY, [(0, [0, wrong], HASHES)])
    with pytest.raises(ValueError, match="blocks of group 1 are block ids, 0 to 4294967294 or None; 1.5 is none"):
        client.start_restore(MEMORY, [(ID, [[None], [1.5]])])
    with pytest.raises(ValueError, match="4294967294 or None; 4294967295 is none"):
        client.start_restore(MEMORY, [(ID, [[None, 2**32 - 1]])])
    assert len(BlockHashes(HASHES)) == 1
