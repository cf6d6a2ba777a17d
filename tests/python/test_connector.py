"""Both sides of the connector against the fake client and vLLM's block pool."""

import logging
import pickle

import pytest
from fake_client import FakeClient
from orbitkv.vllm.metadata import NOTHING
from small_engine import BLOCK, Engine, Request

INSTANCE = bytes(range(16))


def engine_of(manager, instance=INSTANCE, **options):
    return Engine(lambda: FakeClient(manager, instance), **options)


def prompt(blocks, extra=5, seed=0):
    return [seed * 1000 + i for i in range(blocks * BLOCK + extra)]


def publish(manager, tokens, instance=b"p" * 16):
    """Another engine computes and publishes a prompt, then is gone."""
    engine = engine_of(manager, instance)
    request = Request("p", list(tokens))
    engine.admit(request)
    engine.step([(request, 0, request.num_tokens)])
    engine.step()


def free_blocks(engine):
    return engine.pool.get_num_free_blocks()


def test_published_pages_are_restored_in_another_engine(fake_manager):
    publish(fake_manager, prompt(4))
    engine = engine_of(fake_manager)
    request = Request("r", prompt(4))
    assert engine.admit(request) == 4 * BLOCK
    done = engine.step()
    assert (done.ended, done.failed) == ({"r"}, set())
    assert engine.loaded_pages_are_right(request, 4 * BLOCK)


def test_a_prompt_of_whole_blocks_may_hit_in_full(fake_manager):
    publish(fake_manager, prompt(3, extra=0))
    assert engine_of(fake_manager).admit(Request("r", prompt(3, extra=0))) == 3 * BLOCK


def test_only_blocks_beyond_the_local_hit_are_loaded(fake_manager):
    publish(fake_manager, prompt(4))
    engine = engine_of(fake_manager)
    request = Request("r", prompt(4))
    assert engine.admit(request, computed=2 * BLOCK) == 2 * BLOCK
    (task,) = engine.step().tasks.loads
    assert list(task.blocks) == engine.tables["r"][2:4]


def test_repeated_lookups_hold_one_lease_and_change_nothing(fake_manager):
    publish(fake_manager, prompt(4))
    engine = engine_of(fake_manager)
    request = Request("r", prompt(4))
    answers = set()
    for _ in range(50):
        answers.add(engine.scheduler.matched_tokens(request, 0))
        engine.clock.now += 0.1
    assert answers == {(4 * BLOCK, True)} and len(fake_manager.leases) == 1
    assert fake_manager.calls.count("query_prefetch") < 30


def test_blocks_on_their_way_from_ssd_put_the_request_off(fake_manager):
    publish(fake_manager, prompt(4))
    engine = engine_of(fake_manager)
    request = Request("r", prompt(4))
    fake_manager.stored = {request.block_hashes[2]}
    asked = fake_manager.calls.count("query_prefetch")
    for _ in range(20):  # an engine without other work asks in a loop
        assert engine.scheduler.matched_tokens(request, 0) == (None, False)
    assert fake_manager.calls.count("query_prefetch") == asked + 1 and not fake_manager.leases
    engine.clock.now += 0.01
    fake_manager.stored = set()
    assert engine.scheduler.matched_tokens(request, 0) == (4 * BLOCK, True)
    assert len(fake_manager.leases) == 1 and not fake_manager.waits


@pytest.mark.parametrize("how", ["finished", "local hit", "not chosen"])
def test_a_request_that_no_longer_waits_for_ssd_says_so(fake_manager, how):
    publish(fake_manager, prompt(4))
    engine = engine_of(fake_manager)
    request = Request("r", prompt(4))
    fake_manager.stored = {request.block_hashes[0]}
    assert engine.scheduler.matched_tokens(request, 0) == (None, False)
    assert fake_manager.waits
    if how == "finished":
        engine.scheduler.finished("r")
    elif how == "local hit":
        assert engine.scheduler.matched_tokens(request, 4 * BLOCK) == (0, False)
    else:
        engine.scheduler.allocated(request, [1, 2, 3, 4, 5], 0)
    assert not fake_manager.waits and not fake_manager.leases


def test_a_manager_that_dies_meanwhile_lets_the_request_be_computed(fake_manager):
    publish(fake_manager, prompt(4))
    engine = engine_of(fake_manager)
    request = Request("r", prompt(4))
    fake_manager.stored = {request.block_hashes[0]}
    assert engine.scheduler.matched_tokens(request, 0) == (None, False)
    fake_manager.down = True
    engine.clock.now += 0.01
    assert engine.scheduler.matched_tokens(request, 0) == (0, False)


def test_a_shrinking_local_hit_moves_the_lease(fake_manager):
    publish(fake_manager, prompt(4))
    engine = engine_of(fake_manager)
    request = Request("r", prompt(4))
    for local in (3, 2, 1):
        expected = ((4 - local) * BLOCK, True)
        assert engine.scheduler.matched_tokens(request, local * BLOCK) == expected
        assert len(fake_manager.leases) == 1


@pytest.mark.parametrize("how", ["finished", "not chosen"])
def test_an_unused_lease_is_released(fake_manager, how):
    publish(fake_manager, prompt(4))
    engine = engine_of(fake_manager)
    request = Request("r", prompt(4))
    engine.scheduler.matched_tokens(request, 0)
    assert len(fake_manager.leases) == 1
    if how == "finished":
        engine.scheduler.finished("r")
    else:
        engine.scheduler.allocated(request, [1, 2, 3, 4, 5], 0)
    assert not fake_manager.leases


@pytest.mark.parametrize(
    "request_options",
    [{"skip_reading_prefix_cache": True}, {"kv_transfer_params": {"do_remote_prefill": True}}],
)
def test_requests_that_must_not_read_take_no_lease(fake_manager, request_options):
    publish(fake_manager, prompt(2))
    engine = engine_of(fake_manager)
    assert engine.scheduler.matched_tokens(Request("r", prompt(2), **request_options), 0) == (0, False)
    assert not fake_manager.leases


def test_save_only_publishes_and_never_reads(fake_manager):
    publish(fake_manager, prompt(2))
    engine = engine_of(fake_manager, read=False)
    request = Request("r", prompt(2, seed=1))
    assert engine.admit(request) == 0 and engine.admit(Request("q", prompt(2))) == 0
    assert len(engine.step([(request, 0, request.num_tokens)]).tasks.saves) == 1


def test_decode_publishes_the_block_that_it_fills(fake_manager):
    engine = engine_of(fake_manager)
    request = Request("r", prompt(1, extra=BLOCK - 1))
    engine.admit(request)
    first = engine.step([(request, 0, request.num_tokens)])
    assert [len(t.blocks) for t in first.tasks.saves] == [1]
    request.extend([7])
    second = engine.step([(request, request.num_tokens - 1, 1)], new=False)
    assert second.tasks.saves[0].hashes == request.block_hashes[1]
    request.extend([8])
    assert engine.step([(request, request.num_tokens - 1, 1)], new=False).tasks is NOTHING


def test_chunked_prefill_publishes_each_block_once(fake_manager):
    engine = engine_of(fake_manager)
    request = Request("r", prompt(4))
    engine.admit(request)
    published = []
    for computed in range(0, request.num_tokens, 24):
        step = engine.step([(request, computed, min(24, request.num_tokens - computed))], new=computed == 0)
        published += [h for t in step.tasks.saves for h in FakeClient.hashes(t.hashes)]
    assert published == request.block_hashes[:4]


def test_identical_prompts_in_one_step_are_published_once(fake_manager):
    engine = engine_of(fake_manager)
    requests = [Request(name, prompt(3)) for name in "ab"]
    for request in requests:
        engine.admit(request)
    (task,) = engine.step([(r, 0, r.num_tokens) for r in requests]).tasks.saves
    assert len(task.blocks) == 3


def test_the_null_block_is_never_published(fake_manager):
    engine = engine_of(fake_manager)
    request = Request("r", prompt(3))
    engine.admit(request)
    engine.tables["r"][1] = 0
    (task,) = engine.step([(request, 0, request.num_tokens)]).tasks.saves
    assert 0 not in task.blocks and len(task.blocks) == 2


# ---- pins ----


@pytest.mark.parametrize("end", ["finish", "preempt"])
def test_source_blocks_stay_out_of_the_pool_until_the_drain(fake_manager, end):
    engine = engine_of(fake_manager)
    fake_manager.held = True
    before = free_blocks(engine)
    request = Request("r", prompt(4))
    engine.admit(request)
    engine.step([(request, 0, request.num_tokens)])
    engine.finish(request) if end == "finish" else engine.free("r")
    assert free_blocks(engine) == before - 4 and engine.scheduler.has_open_saves()
    others = engine.pool.get_new_blocks(free_blocks(engine))
    for block in others:  # whoever gets the free blocks overwrites them
        engine.memory[0][:, block.block_id] = 0xEE
    engine.pool.free_blocks(others)
    fake_manager.finish()
    engine.step()
    assert free_blocks(engine) == before and not engine.scheduler.has_open_saves()
    fake_manager.held = False
    reader = engine_of(fake_manager, b"x" * 16)
    again = Request("again", prompt(4))
    assert reader.admit(again) == 4 * BLOCK
    reader.step()
    assert reader.loaded_pages_are_right(again, 4 * BLOCK)


def test_pins_wait_for_every_worker(fake_manager):
    engine = engine_of(fake_manager, workers=2)
    fake_manager.held = True
    request = Request("r", prompt(2))
    engine.admit(request)
    engine.step([(request, 0, request.num_tokens)])
    fake_manager.open.pop(0).run()
    engine.step()
    assert engine.scheduler.has_open_saves()
    fake_manager.finish()
    engine.step()
    assert not engine.scheduler.has_open_saves()


def test_preemption_waits_for_pins_only_while_it_helps(fake_manager):
    engine = engine_of(fake_manager)
    fake_manager.held = True
    request = Request("r", prompt(2))
    engine.admit(request)
    engine.step([(request, 0, request.num_tokens)])
    assert not engine.scheduler.frees_soon()  # the request holds the same blocks
    engine.finish(request)
    assert engine.scheduler.frees_soon()
    engine.clock.now += 60
    assert not engine.scheduler.frees_soon()


def test_a_manager_that_hangs_cannot_pin_the_whole_pool(fake_manager):
    engine = engine_of(fake_manager, num_blocks=32)
    fake_manager.held = True
    for number in range(12):
        request = Request(f"r{number}", prompt(3, seed=number))
        engine.admit(request)
        engine.step([(request, 0, request.num_tokens)])
        engine.finish(request)
    assert free_blocks(engine) >= 15


# ---- failures ----


def test_a_failed_load_is_reported_once_and_not_offered_again(fake_manager):
    publish(fake_manager, prompt(4))
    engine = engine_of(fake_manager)
    fake_manager.fail_restores = "block 0: checksum of layer 1 differs"
    request = Request("r", prompt(4))
    engine.admit(request)
    done = engine.step()
    assert (done.ended, done.failed) == ({"r"}, {"r"})
    assert engine.step().ended == set()
    fake_manager.fail_restores = ""
    assert engine.scheduler.matched_tokens(request, 0) == (0, False)
    assert engine_of(fake_manager, b"y" * 16).admit(Request("other", prompt(4))) == 4 * BLOCK


def test_keys_behind_a_local_hit_stay_refused(fake_manager):
    publish(fake_manager, prompt(4))
    engine = engine_of(fake_manager)
    fake_manager.fail_restores = "broken"
    request = Request("r", prompt(4))
    engine.admit(request, computed=2 * BLOCK)
    engine.step()
    fake_manager.fail_restores = ""
    assert engine.scheduler.matched_tokens(request, 0) == (2 * BLOCK, True)


def test_a_lease_that_is_gone_fails_the_load(fake_manager):
    publish(fake_manager, prompt(4))
    engine = engine_of(fake_manager)
    engine.admit(Request("r", prompt(4)))
    fake_manager.leases.clear()
    done = engine.step()
    assert (done.ended, done.failed) == ({"r"}, {"r"})


def test_an_aborted_load_is_still_reported(fake_manager):
    publish(fake_manager, prompt(4))
    engine = engine_of(fake_manager)
    fake_manager.held = True
    request = Request("r", prompt(4))
    engine.admit(request)
    assert engine.step().ended == set()
    engine.scheduler.finished("r")
    fake_manager.finish()
    assert engine.step().ended == {"r"}
    assert engine.step().ended == set()


def test_one_failing_worker_fails_the_load_after_all_have_ended(fake_manager):
    engine = engine_of(fake_manager, b"p" * 16, workers=2)
    request = Request("p", prompt(2))
    engine.admit(request)
    engine.step([(request, 0, request.num_tokens)])
    again = Request("r", prompt(2))
    assert engine.admit(again) == 2 * BLOCK
    engine.workers[1]._registration = 12345  # its session knows no such registration
    engine.workers[1]._client._registered[12345] = engine.workers[1]._client._registered.popitem()[1]
    fake_manager.fail_restores = "broken"
    done = engine.step()
    assert done.counts == {"r": 2} and done.failed == {"r"}


def test_unknown_requests_are_tolerated(fake_manager):
    engine = engine_of(fake_manager)
    engine.scheduler.finished("never seen")
    stranger = Request("stranger", prompt(2))
    engine.tables["stranger"] = [1, 2, 3]
    assert engine.step([(stranger, 0, stranger.num_tokens)]).tasks is NOTHING
    other = type("O", (), {"finished_recving": {"someone"}, "failed_recving": {"someone"}})()
    engine.scheduler.worker_output(other)


# ---- Manager away ----


def test_the_engine_serves_on_without_a_manager_and_says_so_once(fake_manager, caplog):
    fake_manager.down = True
    caplog.set_level(logging.INFO, logger="vllm.orbitkv")
    engine = engine_of(fake_manager)
    for number in range(20):
        request = Request(f"r{number}", prompt(2, seed=number))
        assert engine.admit(request) == 0
        engine.step([(request, 0, request.num_tokens)])
        engine.step()
        engine.finish(request)
        engine.clock.now += 0.3
    assert not engine.scheduler.has_open_saves()
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "serves on" in caplog.text and "orbitkv serve" in caplog.text


def test_it_comes_back_by_itself(fake_manager, caplog):
    caplog.set_level(logging.INFO, logger="vllm.orbitkv")
    fake_manager.down = True
    engine = engine_of(fake_manager)
    first = Request("first", prompt(2))
    engine.admit(first)
    engine.step([(first, 0, first.num_tokens)])
    fake_manager.down = False
    engine.clock.now += 10
    second = Request("second", prompt(3, seed=2))
    engine.admit(second)
    engine.step([(second, 0, second.num_tokens)])
    engine.step()
    engine.clock.now += 10
    assert engine.admit(Request("third", prompt(3, seed=2))) == 3 * BLOCK
    assert "answers again" in caplog.text


def test_calls_pause_while_the_manager_is_away(fake_manager):
    fake_manager.down = True
    engine = engine_of(fake_manager)
    fake_manager.calls.clear()
    for _ in range(1000):
        engine.scheduler.matched_tokens(Request("r", prompt(2)), 0)
        engine.clock.now += 0.0006
    assert len(fake_manager.calls) < 10


def test_pages_lost_with_the_manager_are_computed(fake_manager):
    publish(fake_manager, prompt(4))
    engine = engine_of(fake_manager)
    request = Request("r", prompt(4))
    engine.admit(request)
    fake_manager.down = True
    done = engine.step()
    assert (done.ended, done.failed) == ({"r"}, {"r"})


# ---- bounds ----


# ---- external reset ----


def serve(engine, name, tokens):
    """One request from its arrival to its end; the tokens that were loaded for it."""
    request = Request(name, list(tokens))
    loaded = engine.admit(request)
    done = engine.step([(request, loaded, request.num_tokens - loaded)])
    engine.step()
    if loaded:
        assert engine.loaded_pages_are_right(request, loaded)
    engine.finish(request)
    return loaded, [h for task in done.tasks.saves for h in FakeClient.hashes(task.hashes)]


def test_after_a_reset_the_engine_finds_only_what_it_stored_since(fake_manager):
    publish(fake_manager, prompt(2))
    engine = engine_of(fake_manager)
    assert serve(engine, "before", prompt(2))[0] == 2 * BLOCK
    assert engine.scheduler.reset() is True
    loaded, saved = serve(engine, "first", prompt(2))
    assert (loaded, len(saved)) == (0, 2)
    assert serve(engine, "second", prompt(2)) == (2 * BLOCK, [])
    assert engine.scheduler.reset() is True
    again = serve(engine, "third", prompt(2))
    assert again[0] == 0 and not set(again[1]) & set(saved), "each generation has a salt of its own"


def test_a_reset_leaves_other_engines_and_the_next_start_alone(fake_manager):
    publish(fake_manager, prompt(2))
    engine, other = engine_of(fake_manager), engine_of(fake_manager, b"o" * 16)
    engine.scheduler.reset()
    serve(engine, "salted", prompt(3, seed=1))
    assert serve(other, "old", prompt(2))[0] == 2 * BLOCK
    assert serve(other, "new", prompt(3, seed=1))[0] == 0
    restarted = engine_of(fake_manager, b"n" * 16)
    assert serve(restarted, "old", prompt(2))[0] == 2 * BLOCK, "generation 0 again"


def test_a_reset_lets_go_of_what_waiting_requests_have_looked_up(fake_manager):
    publish(fake_manager, prompt(2))
    engine = engine_of(fake_manager)
    request = Request("r", prompt(2))
    assert engine.scheduler.matched_tokens(request, 0) == (2 * BLOCK, True)
    assert len(fake_manager.leases) == 1
    assert engine.scheduler.reset() is True
    assert not fake_manager.leases
    assert engine.scheduler.matched_tokens(request, 0) == (0, False)


@pytest.mark.parametrize("busy", ["computed", "loading", "saving", "layers"])
def test_a_reset_of_an_engine_at_work_is_refused_with_the_reason(fake_manager, caplog, busy):
    publish(fake_manager, prompt(2))
    engine = engine_of(fake_manager, load="layers" if busy == "layers" else "async")
    request = Request("r", prompt(2, seed=busy == "saving"))
    fake_manager.held = busy == "saving"
    engine.admit(request)
    if busy == "saving":
        engine.step([(request, 0, request.num_tokens)])
        engine.scheduler.finished("r")
    elif busy == "computed":
        engine.step()
        request.num_computed_tokens = 2 * BLOCK
    assert engine.scheduler.reset() is False
    assert ("saves" if busy == "saving" else "requests with computed or loading blocks") in caplog.text
    assert "idle" in caplog.text
    if busy == "saving":  # as soon as the last one has ended it may
        fake_manager.held = False
        fake_manager.finish()
        engine.step()
        assert engine.scheduler.reset() is True


def test_different_hashing_in_scheduler_and_worker_turns_it_off(fake_manager, caplog):
    publish(fake_manager, prompt(2))
    engine = engine_of(fake_manager)
    engine.scheduler.check_hashes_with(lambda: "scheduler and worker differ")
    request = Request("r", prompt(2))
    assert engine.admit(request) == 0
    assert engine.step([(request, 0, request.num_tokens)]).tasks is NOTHING
    assert "scheduler and worker differ" in caplog.text


def test_an_idle_step_carries_next_to_nothing():
    assert len(pickle.dumps(NOTHING)) < 120
