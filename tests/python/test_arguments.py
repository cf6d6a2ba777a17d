"""Wrong arguments: the error names the argument and what it may be, whoever would have looked at it."""

import pytest
from orbitkv import BlockHashes, CacheManagerClient, Group, Layer, WarmHint

ID = bytes(range(16))
HASHES = [bytes(32)]


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
    ],
)
def test_of_a_client(tmp_path, options, kind, said):
    with pytest.raises(kind, match=said):
        CacheManagerClient(str(tmp_path / "nobody.sock"), **{"instance_id": ID, **options})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rank": -1}, r"rank is 0 to 65535, not -1"),
        ({"world_size": 2**16}, r"world_size is 0 to 65535"),
        ({"num_blocks": 2**40}, r"num_blocks is 0 to 4294967295"),
        ({"block_tokens": -(10**5000)}, r"block_tokens is 0 to 4294967295, not a number of many digits"),
        ({"groups": [Group(id=70000)]}, r"Group\.id is 0 to 65535, not 70000"),
        ({"groups": [Group(window_tokens=-1)]}, r"Group\.window_tokens is 0"),
        ({"layers": [Layer("l", 0, 0, bytearray(64), -64, 1, 64)]}, r"Layer\.block_stride is 0 to 1844674407370955"),
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


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda c: c.query_prefetch(None, HASHES, "r"), TypeError, "instance is 16 bytes, not None"),
        (lambda c: c.query_prefetch(ID, HASHES, None), TypeError, "req_id is a str, not None"),
        (lambda c: c.query_candidates(ID, HASHES, "r", -1), ValueError, "group_id is 0 to 65535, not -1"),
        (lambda c: c.prepare_prefix(ID, HASHES, "r", 1 << 16), ValueError, "group_id is 0 to 65535"),
        (lambda c: c.warm_prefix(ID, HASHES, "r", WarmHint(confidence=101)), ValueError, "confidence is 0 to 100"),
        (lambda c: c.warm_prefix(ID, HASHES, "r", WarmHint(first_use_ms=-5)), ValueError, "first_use_ms is 0"),
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
    memory = type("Registered", (), {"handle": 1})()
    for wrong in (-1, 2**32 - 1, 2**32, "a", None):
        with pytest.raises(ValueError, match="blocks of group 0 are block ids, 0 to 4294967294; "):
            client.save(memory, [(0, [0, wrong], HASHES)])
    with pytest.raises(ValueError, match="blocks of group 1 are block ids, 0 to 4294967294 or None; 1.5 is none"):
        client.start_restore(memory, [(ID, [[None], [1.5]])])
    with pytest.raises(ValueError, match="4294967294 or None; 4294967295 is none"):
        client.start_restore(memory, [(ID, [[None, 2**32 - 1]])])
    assert len(BlockHashes(HASHES)) == 1
