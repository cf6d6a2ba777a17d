"""Loads that run with the step that uses them: what waits for what, and what a failed
verdict takes back."""

import pathlib
import pickle
import re
import weakref
from types import SimpleNamespace

import pytest
import torch
from fake_client import FakeClient
from orbitkv.vllm import loading
from orbitkv.vllm.config import Settings
from orbitkv.vllm.device import pages_of
from orbitkv.vllm.metadata import LoadTask, StepTasks, WorkerReport
from small_engine import BLOCK, LAYERS, Engine, FakeCuda, Request

INSTANCE = bytes(range(16))


def prompt(blocks, extra=5, seed=0):
    return [seed * 1000 + i for i in range(blocks * BLOCK + extra)]


def engine_of(manager, load="layers", cuda=None, **options):
    cuda = cuda or FakeCuda()
    engine = Engine(lambda: FakeClient(manager, INSTANCE), load=load, cuda=cuda, **options)
    engine.cuda = cuda
    return engine


@pytest.fixture
def manager(fake_manager):
    """With a prompt of four blocks, published by an engine that is gone."""
    engine = Engine(lambda: FakeClient(fake_manager, b"p" * 16))
    request = Request("p", prompt(4))
    engine.admit(request)
    engine.step([(request, 0, request.num_tokens)])
    fake_manager.calls.clear()
    fake_manager.orders.clear()
    return fake_manager


def admit_and_step(engine, request, **options):
    tokens = engine.admit(request, **options)
    return tokens, engine.step([(request, tokens, request.num_tokens - tokens)])


def test_the_step_waits_for_each_layer_and_its_pages_are_right(manager):
    engine = engine_of(manager)
    request = Request("r", prompt(4))
    tokens, done = admit_and_step(engine, request)
    assert tokens == 4 * BLOCK and not done.tasks.loads
    (order,) = [o for o in manager.orders if o[0] == "restore"]
    names, events = zip(*order[2], strict=True)
    assert order[1] == 77 and names == tuple(f"l{i}" for i in range(LAYERS)) and len(set(events)) == LAYERS
    assert [entry for entry in engine.cuda.log if entry[0] == "wait"] == [("wait", event) for event in events]
    assert engine.loaded_pages_are_right(request, tokens)
    assert (done.ended, done.failed, done.bad) == (set(), set(), set())
    assert engine.scheduler.matched_tokens(request, 0) == (4 * BLOCK, False)


def test_events_are_made_once_and_used_again(manager):
    engine = engine_of(manager)
    for name in "ab":
        request = Request(name, prompt(4))
        admit_and_step(engine, request)
        engine.finish(request)
    assert [entry[0] for entry in engine.cuda.log].count("made") == LAYERS
    assert [entry[0] for entry in engine.cuda.log].count("wait") == 2 * LAYERS


def test_the_step_computes_at_least_one_token(manager):
    request = Request("r", prompt(4, extra=0))
    engine = engine_of(manager)
    tokens, done = admit_and_step(engine, request)
    assert tokens == 3 * BLOCK
    (task,) = done.tasks.layered.loads
    assert task.blocks == (*engine.tables["r"][:3], None)  # the lease ends all the same
    assert not manager.leases


@pytest.mark.parametrize("load", ["async", "layers"])
def test_a_hit_of_the_last_block_alone_is_not_worth_a_question(manager, load):
    request = Request("r", prompt(4, extra=0))
    engine = engine_of(manager, load=load)
    assert engine.scheduler.matched_tokens(request, 3 * BLOCK) == (0, False)
    assert "query_prefetch" not in manager.calls


def test_requests_of_one_step_are_one_restore(manager):
    engine = engine_of(manager)
    requests = [Request(name, prompt(4)) for name in "abc"]
    for request in requests:
        assert engine.admit(request) == 4 * BLOCK
    done = engine.step([(r, 4 * BLOCK, 5) for r in requests])
    assert manager.calls.count("start_restore") == 1 and len(done.tasks.layered.loads) == 3
    assert all(engine.loaded_pages_are_right(r, 4 * BLOCK) for r in requests)


def test_hooks_of_steps_without_loads_do_nothing(manager):
    engine = engine_of(manager)
    request = Request("r", prompt(2, seed=9))
    admit_and_step(engine, request)
    assert not engine.workers[0].layers.active and not engine.cuda.log
    assert "wait_restore_enqueued" not in manager.calls


def test_a_full_graph_starts_behind_all_layers(manager):
    engine = engine_of(manager)
    engine.hooked = False
    request = Request("r", prompt(4))
    _, done = admit_and_step(engine, request)
    assert [entry[0] for entry in engine.cuda.log].count("wait") == LAYERS
    assert not engine.workers[0].layers.active and not done.bad


def test_a_layer_that_does_not_wait_makes_the_step_bad_and_later_steps_wait_up_front(manager):
    engine = engine_of(manager)
    engine.skipped = (1,)
    request = Request("r", prompt(4))
    _, done = admit_and_step(engine, request)
    assert done.bad == set(engine.tables["r"][:4])
    engine.finish(request)
    engine.cuda.log.clear()
    again = Request("again", prompt(4))
    _, done = admit_and_step(engine, again)
    assert [entry[0] for entry in engine.cuda.log].count("wait") == LAYERS and not done.bad


# ---- failures ----


@pytest.mark.parametrize("how", ["verdict", "enqueue"])
def test_a_failed_restore_gives_the_blocks_and_publishes_nothing(manager, how):
    engine = engine_of(manager)
    setattr(manager, "fail_restores" if how == "verdict" else "fail_enqueue", "block 0: checksum of l1 differs")
    request = Request("r", prompt(4, extra=BLOCK + 3))  # the step fills a block of its own
    tokens, done = admit_and_step(engine, request)
    assert tokens == 4 * BLOCK and done.bad == set(engine.tables["r"][:4])
    assert done.tasks.saves and "save" not in manager.calls
    assert not engine.scheduler.has_open_saves()  # its pins are gone all the same
    assert engine.step().bad == set()
    if how == "enqueue":
        assert not [entry for entry in engine.cuda.log if entry[0] == "wait"]


def test_a_step_scheduled_before_the_failure_was_known_publishes_nothing(manager):
    engine = engine_of(manager)
    manager.fail_restores = "broken"
    request = Request("r", prompt(4))
    admit_and_step(engine, request)
    manager.fail_restores = ""
    other = Request("o", prompt(2, seed=3))
    engine.admit(other)
    late = engine.scheduler._saves(output_of(engine, other))
    engine.workers[0].start_saves(late, known_failures=0)
    assert "save" not in manager.calls
    engine.workers[0].report()
    engine.step([(other, 0, other.num_tokens)])
    assert "save" in manager.calls


def output_of(engine, request):
    entry = SimpleNamespace(req_id=request.request_id, num_computed_tokens=0)
    return SimpleNamespace(
        scheduled_new_reqs=[entry],
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[]),
        num_scheduled_tokens={request.request_id: request.num_tokens},
        kv_connector_block_state=SimpleNamespace(get_block_ids=lambda req_id: (engine.tables[req_id],)),
    )


def test_after_a_failure_nothing_stays_in_the_engines_prefix_cache(manager):
    engine = engine_of(manager)
    evicted = []
    engine.pool.evict_blocks = evicted.append
    request = Request("r", prompt(4))
    admit_and_step(engine, request)
    assert not evicted
    engine.finish(request)
    manager.fail_restores = "broken"
    admit_and_step(engine, Request("again", prompt(4)))
    assert evicted == [set(range(32))]


def test_a_failed_key_is_not_offered_to_the_request_again(manager):
    engine = engine_of(manager)
    manager.fail_restores = "broken"
    request = Request("r", prompt(4))
    admit_and_step(engine, request)
    manager.fail_restores = ""
    assert engine.scheduler.matched_tokens(request, 0) == (0, False)


def test_a_lease_that_is_gone_fails_its_own_request_only(manager):
    engine = engine_of(manager)
    requests = [Request(name, prompt(4)) for name in "abc"]
    for request in requests:
        engine.admit(request)
    manager.leases.pop(engine.scheduler._layered[1].lease)
    done = engine.step([(r, 4 * BLOCK, 5) for r in requests])
    assert done.bad == set(engine.tables["b"][:4])
    assert all(engine.loaded_pages_are_right(r, 4 * BLOCK) for r in (requests[0], requests[2]))
    assert not [entry for entry in engine.cuda.log if entry[0] == "wait"]


def test_a_failed_restore_fails_all_that_it_loaded_and_nobody_else(manager):
    engine = engine_of(manager)
    manager.fail_restores = "block 0: checksum of l1 differs"
    loaded = [Request(name, prompt(4)) for name in "ab"]
    computed = Request("c", prompt(2, seed=3))
    for request in (*loaded, computed):
        engine.admit(request)
    done = engine.step([*((r, 4 * BLOCK, 5) for r in loaded), (computed, 0, computed.num_tokens)])
    assert done.bad == {block for name in "ab" for block in engine.tables[name][:4]}
    assert "save" not in manager.calls
    manager.fail_restores = ""
    assert all(engine.scheduler.matched_tokens(r, 0) == (0, False) for r in loaded)


def test_no_preemption_while_a_verdict_is_out(manager):
    engine = engine_of(manager)
    request = Request("r", prompt(4))
    engine.admit(request)
    tasks = engine.scheduler.step_tasks(output_of(engine, request))
    assert engine.scheduler.frees_soon()
    engine.load_layers(tasks)
    engine.work(tasks)
    assert not engine.scheduler.frees_soon()


def test_without_streams_the_step_begins_when_its_pages_are_there(manager):
    engine = Engine(lambda: FakeClient(manager, INSTANCE), load="layers")
    request = Request("r", prompt(4))
    tokens, done = admit_and_step(engine, request)
    assert tokens == 4 * BLOCK and engine.loaded_pages_are_right(request, tokens) and not done.bad
    assert manager.orders[0] == ("restore", 0, ())


# ---- which way ----


def asynchronous(engine):
    """Whether a request that comes now would be loaded beside the steps."""
    request = Request("asks", prompt(4))
    tokens, asynchronous = engine.scheduler.matched_tokens(request, 0)
    if tokens is None:
        engine.clock.now += 0.003
        tokens, asynchronous = engine.scheduler.matched_tokens(request, 0)
    assert tokens == 4 * BLOCK
    engine.scheduler.finished("asks")
    return asynchronous


@pytest.mark.parametrize("overlap", [False, True])
def test_auto_runs_ahead_until_somebody_generates(manager, overlap):
    engine = engine_of(manager, load="auto")
    first = Request("first", prompt(4))
    _, done = admit_and_step(engine, first)
    assert done.tasks.layered
    if overlap:  # the next step is made before the token of this one has come
        first.num_output_placeholders = 1
    else:
        first.extend([7])
    assert not asynchronous(engine)
    engine.step([(first, 4 * BLOCK + 5, 1)], new=False)
    first.extend([8])
    assert asynchronous(engine)
    engine.finish(first)
    assert not asynchronous(engine)


def test_auto_does_not_mind_prompts_that_are_computed_in_pieces(manager):
    engine = engine_of(manager, load="auto")
    long = Request("long", prompt(8, seed=5))
    engine.admit(long)
    for piece in range(3):
        engine.step([(long, piece * 2 * BLOCK, 2 * BLOCK)], new=piece == 0)
        assert not asynchronous(engine)


def test_auto_minds_who_generated_before_it_was_preempted(manager):
    engine = engine_of(manager, load="auto")
    preempted = Request("preempted", prompt(2, seed=5))
    preempted.extend([7, 8])
    assert not asynchronous(engine)  # it waits: nobody holds it up
    assert engine.scheduler.matched_tokens(preempted, 0) == (0, False)
    engine.admit(preempted)  # and now it is in the step that is being made
    assert asynchronous(engine)
    engine.step([(preempted, 0, preempted.num_tokens)])
    assert asynchronous(engine)


def test_auto_waits_a_moment_for_a_burst_and_then_runs_ahead(manager):
    engine = engine_of(manager, load="auto")
    request = Request("r", prompt(4))
    for _ in range(3):
        assert engine.scheduler.matched_tokens(request, 0) == (None, False)
    engine.clock.now += 0.0025
    assert engine.scheduler.matched_tokens(request, 0) == (4 * BLOCK, False)
    assert manager.calls.count("query_prefetch") == 1


def test_a_burst_in_auto_is_loaded_beside_the_steps(manager):
    """Nobody of it is awaited in a step, not even who came first."""
    engine = engine_of(manager, load="auto")
    burst = [Request(f"b{i}", prompt(4)) for i in range(5)]
    assert engine.scheduler.matched_tokens(burst[0], 0) == (None, False)
    for request in burst[1:]:
        assert engine.admit(request) == 4 * BLOCK
    assert engine.admit(burst[0]) == 4 * BLOCK
    done = engine.step()
    assert len(done.tasks.loads) == 5 and done.tasks.layered is None
    assert all(engine.loaded_pages_are_right(r, 4 * BLOCK) for r in burst)


# ---- how much one step takes ----


def test_the_bounds_are_those_of_the_native_side():
    limits = (pathlib.Path(__file__).resolve().parents[2] / "src/base/limits.h").read_text()
    bound = {name: int(re.search(rf"{name} = (\d+);", limits)[1]) for name in ("kRestoresPerDevice", "kBlocksPerGrant")}
    assert 2 * loading.PARTS_A_STEP <= bound["kRestoresPerDevice"]
    largest = bound["kBlocksPerGrant"]
    assert [loading.parts(n) for n in (1, largest, largest + 1)] == [1, 1, 2]


def test_what_one_step_cannot_take_is_asked_again_for_the_next(manager, monkeypatch):
    monkeypatch.setattr(loading, "PARTS_A_STEP", 3)
    engine = engine_of(manager, num_blocks=64)
    requests = [Request(f"r{i}", prompt(4)) for i in range(5)]
    for request in requests[:3]:
        engine.admit(request)
    for request in requests[3:]:
        assert engine.scheduler.matched_tokens(request, 0) == (None, False)
    assert len(engine.step([(r, 4 * BLOCK, 5) for r in requests[:3]]).tasks.layered.loads) == 3
    for request in requests[3:]:
        assert engine.admit(request) == 4 * BLOCK
    done = engine.step([(r, 4 * BLOCK, 5) for r in requests[3:]])
    assert len(done.tasks.layered.loads) == 2 and not done.bad
    assert all(engine.loaded_pages_are_right(r, 4 * BLOCK) for r in requests)


def test_a_load_that_no_step_can_take_is_asynchronous(manager, monkeypatch):
    monkeypatch.setattr(loading, "PARTS_A_STEP", 1)
    monkeypatch.setattr(loading, "_BLOCKS_A_PART", 3)
    assert asynchronous(engine_of(manager))


def test_loads_of_a_step_wait_for_room_one_by_one(manager):
    engine = engine_of(manager)
    requests = [Request(name, prompt(4)) for name in "abc"]
    for request in requests:
        engine.admit(request)
    manager.most_restores = 2
    done = engine.step([(r, 4 * BLOCK, 5) for r in requests])
    assert not done.bad and all(engine.loaded_pages_are_right(r, 4 * BLOCK) for r in requests)


def test_asynchronous_loads_over_the_managers_bound_wait_for_others(manager):
    engine = engine_of(manager, load="async")
    manager.most_restores, manager.held = 2, True
    requests = [Request(f"r{i}", prompt(4)) for i in range(4)]
    for request in requests:
        engine.admit(request)
    assert engine.step().ended == set() and len(manager.open) == 2
    manager.finish()
    assert engine.step().ended == {"r0", "r1"}
    assert len(manager.open) == 2
    manager.finish()
    done = engine.step()
    assert (done.ended, done.failed) == ({"r2", "r3"}, set())
    assert all(engine.loaded_pages_are_right(r, 4 * BLOCK) for r in requests)


def test_a_load_that_is_not_admitted_although_none_is_open_fails(manager):
    engine = engine_of(manager, load="async")
    manager.most_restores = 0
    engine.admit(Request("r", prompt(4)))
    done = engine.step()
    assert (done.ended, done.failed) == ({"r"}, {"r"})


def test_auto_does_not_queue_behind_asynchronous_loads(manager):
    engine = engine_of(manager, load="auto")
    busy = Request("busy", prompt(1, seed=5))
    admit_and_step(engine, busy)
    busy.extend([7, 8])
    manager.held = True
    waiting = Request("waiting", prompt(4))
    engine.admit(waiting)
    engine.step()
    assert engine.scheduler.matched_tokens(Request("next", prompt(4)), 0)[1] is True
    manager.held = False
    manager.finish()
    engine.step()
    assert engine.scheduler.matched_tokens(Request("next", prompt(4)), 0)[1] is False


def config_of(policy="fail", v2=True, overlap=True, workers=1, device="cuda", dbo=False):
    return SimpleNamespace(
        parallel_config=SimpleNamespace(world_size=workers, use_ubatching=dbo),
        kv_transfer_config=SimpleNamespace(kv_load_failure_policy=policy),
        scheduler_config=SimpleNamespace(async_scheduling=overlap),
        device_config=SimpleNamespace(device_type=device),
        use_v2_model_runner=v2,
    )


@pytest.mark.parametrize(
    "config",
    [
        {"policy": "recompute"},
        {"policy": "recompute", "overlap": False},
        {"policy": "recompute", "v2": False},
        {"workers": 2},
        {"dbo": True},
    ],
)
def test_engines_that_cannot_take_a_step_back_load_asynchronously(config):
    assert loading.choose("auto", config_of(**config)) == "async"
    with pytest.raises(ValueError, match="orbitkv.load=layers does not fit"):
        loading.choose("layers", config_of(**config))


def test_engines_that_can_take_a_step_back_may_run_ahead():
    assert loading.choose("auto", config_of()) == "auto"
    assert loading.choose("auto", config_of(policy="recompute", v2=False, overlap=False)) == "auto"
    assert loading.choose("auto", config_of(device="cpu")) == "async"
    assert loading.choose("layers", config_of(device="cpu")) == "layers"
    assert loading.choose("async", config_of()) == "async"


@pytest.mark.parametrize(
    "mode, metadata, hooks",
    [("NONE", {}, True), ("PIECEWISE", {}, True), ("FULL", {}, False), ("NONE", None, False), ("NONE", [{}], False)],
)
def test_hooks_are_expected_only_where_python_runs(mode, metadata, hooks):
    context = SimpleNamespace(cudagraph_runtime_mode=SimpleNamespace(name=mode), attn_metadata=metadata)
    assert loading.layer_hooks_run(context) is hooks


# ---- odds and ends ----


def test_a_side_that_is_closed_does_nothing_and_holds_no_client(manager):
    engine = engine_of(manager, load="auto")
    engine.hooked = False
    request = Request("r", prompt(4, extra=BLOCK))
    engine.admit(request)
    worker = engine.workers[0]
    clients = [weakref.ref(side._client) for side in (engine.scheduler, worker)]
    for side in (engine.scheduler, worker) * 2:
        side.close()
    assert [client() for client in clients] == [None, None]
    manager.calls.clear()
    done = engine.step([(request, 0, request.num_tokens)])
    assert done.bad and engine.scheduler.matched_tokens(Request("s", prompt(4)), 0) == (0, False)
    engine.finish(request)
    worker.start_loads([LoadTask("t", bytes(16), (1,))])
    assert worker.ended_loads() == ({"t"}, {"t"}) and not manager.calls


def test_saves_are_ordered_behind_the_step(manager):
    engine = engine_of(manager)
    request = Request("r", prompt(2, seed=8))
    admit_and_step(engine, request)
    assert ("save", 77, ()) in manager.orders


def test_blocks_whose_hash_comes_a_step_later_are_published_then(manager):
    """With asynchronous scheduling a block is full before its last token is known here."""
    engine = engine_of(manager, load="async")
    request = Request("r", prompt(1, extra=BLOCK - 1, seed=4))
    engine.admit(request)
    engine.step([(request, 0, request.num_tokens)])
    unknown = engine.step([(request, request.num_tokens, 1)], new=False)  # fills block 1
    assert not unknown.tasks.saves
    request.extend([7])
    engine.tables["r"] += [b.block_id for b in engine.pool.get_new_blocks(1)]
    (task,) = engine.step([(request, request.num_tokens, 1)], new=False).tasks.saves
    assert FakeClient.hashes(task.hashes) == (request.block_hashes[1],) and task.blocks == (engine.tables["r"][1],)
    request.extend([8])
    assert not engine.step([(request, request.num_tokens, 1)], new=False).tasks.saves


def test_reports_of_several_workers_are_joined():
    one, two = WorkerReport({1: 1}, {5: True}), WorkerReport({1: 1, 2: 1}, {5: False, 6: True})
    joined = one.aggregate(two)
    assert (joined.released, joined.verdicts) == ({1: 2, 2: 1}, {5: False, 6: True})


def test_tasks_travel():
    tasks = StepTasks(known_failures=3)
    assert pickle.loads(pickle.dumps(tasks)) == tasks


def test_settings_are_checked():
    parsed = Settings.parse({"orbitkv.load": "layers", "orbitkv.copy_method": "kernel", "orbitkv.copy_pace": "gentle"})
    assert (parsed.load, parsed.copy_method, parsed.copy_pace) == ("layers", "kernel", "gentle")
    for key in ("load", "copy_method", "copy_pace"):
        with pytest.raises(ValueError, match=f"orbitkv.{key} is 'fast'"):
            Settings.parse({f"orbitkv.{key}": "fast"})


def test_pages_lie_on_one_device():
    def tensors(*names):
        return [SimpleNamespace(device=torch.device(name)) for name in names]

    assert pages_of(tensors("cpu", "cpu")).name == "cpu:0"
    assert pages_of(tensors("cuda:3")).name == "cuda:3"
    with pytest.raises(ValueError, match="several devices"):
        pages_of(tensors("cuda:0", "cuda:1"))
    with pytest.raises(ValueError, match="knows cpu and cuda"):
        pages_of(tensors("meta"))
