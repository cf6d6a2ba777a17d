"""What one engine published another restores, byte for byte, and the suite sees if not."""

import pages
import pytest
from engine_run import prompts, transfer_config
from reports import cached, tokens

PROMPTS = prompts(3, 300)
WHOLE = [288, 288, 288]


@pytest.fixture
def published(bed, manager, tmp_path):
    """Pages of PROMPTS in the Manager, by an engine that is dead now."""
    engine = bed.start(PROMPTS, manager, hold=True, env={"ORBITKV_TEST_DUMP": str(tmp_path / "first")})
    manager.wait_for(lambda s: s["blocks"] >= 27, "27 blocks")
    engine.kill()
    return tmp_path / "first"


def restored(bed, manager, tmp_path, name="second", shape="main", **env):
    report = bed.run(PROMPTS, manager, shape=shape, env={"ORBITKV_TEST_DUMP": str(tmp_path / name), **env})
    return report, pages.compare([tmp_path / "first" / "published"], tmp_path / name / "loaded")


@pytest.mark.parametrize("shape", ["main", "layers"])
def test_a_killed_engines_pages_are_restored_byte_exact(bed, manager, published, reference, tmp_path, shape):
    report, (count, size, wrong) = restored(bed, manager, tmp_path, shape=shape)
    assert tokens(report) == reference(PROMPTS)
    assert cached(report) == WHOLE
    assert report["runs"][0]["counters"]["vllm:external_prefix_cache_hits"] == sum(WHOLE)
    assert (count, size, wrong) == (27, 27 * 4 * 65536, 0)


def test_every_layer_of_the_engine_waits_for_its_pages(bed, manager, published, reference, tmp_path):
    """A layer whose hook did not come would make the verdict bad: nothing would be loaded."""
    report, (count, _, wrong) = restored(bed, manager, tmp_path, shape="layers", ORBITKV_TEST_HOOKS="1")
    assert tokens(report) == reference(PROMPTS)
    assert (count, wrong, cached(report)) == (27, 0, WHOLE)


def test_two_living_engines_share_one_manager(bed, manager, reference):
    mine, theirs = prompts(2, 200, seed=1), prompts(2, 200, seed=2)
    first = bed.start(mine, manager, hold=True)
    second = bed.start(theirs, manager, hold=True)
    manager.wait_for(lambda s: s["blocks"] >= 24, "24 blocks")
    crossed = [bed.start(p, manager) for p in (theirs, mine)]
    reports = [engine.result() for engine in crossed]
    assert [cached(r) for r in reports] == [[192, 192], [192, 192]]
    assert [tokens(r) for r in reports] == [reference(theirs), reference(mine)]
    for engine in (first, second):
        engine.kill()
    assert manager.status()["failed_verifications"] == 0


def test_one_engine_restores_after_its_own_cache_is_emptied(bed, manager, reference):
    report = bed.run(PROMPTS, manager, passes=2, reset=True)
    assert [cached(report, 0), cached(report, 1)] == [[0, 0, 0], WHOLE]
    assert tokens(report, 0) == tokens(report, 1) == reference(PROMPTS)


def test_after_an_external_reset_an_engine_uses_only_what_it_stored_since(bed, manager, published, reference):
    """Pass 0 has the old pages, pass 1 computes and stores anew, pass 2 has those."""
    report = bed.run(PROMPTS, manager, passes=3, reset=True, reset_connector=[1])
    assert [cached(report, n) for n in range(3)] == [WHOLE, [0, 0, 0], WHOLE]
    assert [tokens(report, n) for n in range(3)] == [reference(PROMPTS)] * 3
    assert manager.status()["blocks"] == 2 * 27
    other = bed.run(PROMPTS, manager)  # and a restarted one: generation 0
    assert cached(other) == WHOLE and tokens(other) == reference(PROMPTS)


def test_a_scope_keeps_engines_of_one_model_apart(bed, manager, published, reference):
    scoped = transfer_config("OrbitKVConnector", manager.socket, **{"orbitkv.cache_scope": "tenant-a"})
    report = bed.build_and_run({"kv_transfer_config": scoped}, PROMPTS, passes=2, reset=True)
    assert [cached(report, n) for n in range(2)] == [[0, 0, 0], WHOLE]
    assert tokens(report, 1) == reference(PROMPTS)
    assert manager.command("drop", "--scope", "tenant-a")["evicted"] == 27
    assert cached(bed.run(PROMPTS, manager)) == WHOLE


@pytest.mark.parametrize("shape, whole", [("main", 320), ("layers", 288)])
def test_a_prompt_of_whole_blocks_is_restored_whole(bed, manager, shape, whole):
    """But for the block of the token that a step with layer-ready loads computes itself."""
    exact = prompts(3, 320, seed=3)
    report = bed.run(exact, manager, passes=2, reset=True, shape=shape)
    assert cached(report, 1) == [whole] * 3
    assert tokens(report, 0) == tokens(report, 1)


@pytest.mark.parametrize("shape", ["main", "layers"])
def test_prompts_with_a_common_start(bed, manager, reference, shape):
    common = prompts(3, 300, seed=4, shared=200)
    report = bed.run(common, manager, passes=2, reset=True, shape=shape)
    assert cached(report, 1) == WHOLE
    assert tokens(report, 1) == reference(common)


@pytest.mark.parametrize("how", ["swap", "zero"])
def test_one_wrong_page_is_noticed(bed, manager, published, tmp_path, how):
    """Not a test of the product: equal tokens do not prove equal pages, this does."""
    _, (count, _, wrong) = restored(bed, manager, tmp_path, ORBITKV_TEST_SABOTAGE=how)
    assert count == 27 and wrong > 1000


def test_pages_poisoned_after_their_release_were_stored_before(bed, manager, reference, tmp_path):
    poisoned = {"ORBITKV_TEST_DUMP": str(tmp_path / "first"), "ORBITKV_TEST_POISON": "1"}
    bed.run(PROMPTS, manager, max_tokens=1, env=poisoned)
    report, (count, _, wrong) = restored(bed, manager, tmp_path)
    assert (count, wrong) == (27, 0)
    assert tokens(report) == reference(PROMPTS)


def test_without_a_manager_the_engine_serves_and_says_so_once(bed, reference, tmp_path):
    class Nobody:
        socket = str(tmp_path / "nobody.sock")

    engine = bed.start(PROMPTS, Nobody, passes=3, reset=True)
    report = engine.result()
    assert [tokens(report, n) for n in range(3)] == [reference(PROMPTS)] * 3
    warnings = [line for line in engine.text().splitlines() if "The engine serves on" in line]
    assert len(warnings) == 1 and "orbitkv serve" in warnings[0]


def test_the_plugin_is_found_by_its_name_alone(bed, manager, reference):
    """Entry point and registry: no module path, nothing of the tests in between."""
    engine = {"kv_transfer_config": transfer_config("OrbitKVConnector", manager.socket)}
    report = bed.build_and_run(engine, PROMPTS, passes=2, reset=True)
    assert cached(report, 1) == WHOLE
    assert tokens(report, 1) == reference(PROMPTS)


@pytest.mark.parametrize(
    "options, says",
    [
        ({"orbitkv.mode": "both"}, "orbitkv.mode"),
        ({}, "prefix_caching_hash_algo='xxhash'"),
    ],
)
def test_what_cannot_work_is_refused_at_start(bed, options, says):
    engine = {"kv_transfer_config": transfer_config("OrbitKVConnector", "/nowhere/manager.sock", **options)}
    if not options:
        engine["prefix_caching_hash_algo"] = "xxhash"
    with pytest.raises(AssertionError, match=says):
        bed.build_and_run(engine, PROMPTS)
