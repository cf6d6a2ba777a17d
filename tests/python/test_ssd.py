"""A Manager with an SSD, without an engine: what leaves memory comes back, also after a kill."""

import contextlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import tempfile
import time

import numpy as np
import pytest
from manager_process import ManagerProcess, binary
from orbitkv import CacheManagerClient, Layer, QueryLoading, QueryReady

BLOCK = 64 << 10
ROOM = 32  # blocks of the client's memory
SPACE = '{"v":1,"model":"ssd"}'


def key(number):
    return number.to_bytes(32, "big")


def content(number):
    return np.random.default_rng(number).integers(0, 256, BLOCK, dtype=np.uint8)


def manager_on(directory, pool="8MiB", policy="all", extra=()):
    options = ["--ssd-path", str(directory / "store"), "--ssd-size", "128MiB", "--ssd-segment-size", "4MiB"]
    return ManagerProcess(pool=pool, extra=[*options, "--ssd-write-policy", policy, *extra])


@pytest.fixture
def manager(tmp_path):
    with manager_on(tmp_path) as started:
        yield started


class Engine:
    def __init__(self, manager, namespace=SPACE, early=False):
        self.client = CacheManagerClient(manager.socket, os.urandom(16), early_leases=early)
        self.client.wait_connected(10)
        self.memory = np.zeros((ROOM, BLOCK), np.uint8)
        layer = Layer("layer", 0, 0, self.memory, BLOCK, 1, BLOCK)
        self.registered = self.client.register(namespace, 0, 1, "cpu:0", [layer], ROOM, 16)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.client.close()

    def save(self, numbers):
        for slot, number in enumerate(numbers):
            self.memory[slot] = content(number)
        save = self.client.save(self.registered, [(0, range(len(numbers)), [key(n) for n in numbers])])
        assert self.client.wait_save(save, 10).success

    def publish(self, manager, numbers):
        """In pieces that the Manager's queue of writes takes."""
        for at in range(0, len(numbers), 8):
            piece = numbers[at : at + 8]
            before = manager.status()["ssd"]["records"]
            self.save(piece)
            after = before + len(piece)
            manager.wait_for(lambda s, n=after: s["ssd"]["records"] >= n, "the blocks on SSD")

    def ask(self, numbers, request):
        return self.client.query_prefetch(self.client.instance_id, [key(n) for n in numbers], request)

    def lease(self, numbers, request):
        deadline = time.monotonic() + 10
        while isinstance(hit := self.ask(numbers, request), QueryLoading):
            assert time.monotonic() < deadline, "it loads for ever"
            time.sleep(0.001)
        return hit

    def restored(self, numbers, request="r"):
        """How many of the blocks came back; all of them are compared."""
        hit = self.lease(numbers, request)
        if hit.hit_blocks:
            self.memory[:] = 0
            load = self.client.start_restore(self.registered, [(hit.lease, [range(hit.hit_blocks)])])
            status = self.client.wait_restore(load, 10)
            assert status.success, status.message
            for slot, number in enumerate(numbers[: hit.hit_blocks]):
                assert np.array_equal(self.memory[slot], content(number)), number
        return hit.hit_blocks


@pytest.mark.parametrize("early", [False, True])
def test_four_times_the_memory_comes_back_and_survives_a_kill(manager, early):
    everything = range(512)
    with Engine(manager, early=early) as engine:
        engine.publish(manager, everything)
        for at in range(0, 512, ROOM):
            assert engine.restored(everything[at : at + ROOM], f"first-{at}") == ROOM
    manager.kill()
    manager.start()
    assert manager.status()["ssd"]["recovered"] == 512
    with Engine(manager, early=early) as engine:
        for at in range(0, 512, ROOM):
            assert engine.restored(everything[at : at + ROOM], f"second-{at}") == ROOM
    status = manager.wait_for(lambda s: s["leases"] == 0 and s["operations"] == 0, "nothing held")
    assert status["ssd"]["reads"] >= 512 and status["failed_verifications"] == 0


def test_a_query_says_loading_and_is_given_up_by_name(manager):
    with Engine(manager) as engine:
        engine.publish(manager, range(32))
        manager.command("evict")
        found = engine.client.query_candidates(engine.client.instance_id, [key(n) for n in range(34)], "c")
        assert (found.hit_blocks, found.hit_positions) == (32, ())
        assert found.stored_positions == tuple(range(32))
        assert engine.ask(range(32), "r") == QueryLoading(32)
        engine.client.cancel_query(engine.client.instance_id, "r")
        assert engine.ask(range(32), "gone") == QueryLoading(32)
    manager.wait_for(lambda s: s["loads"]["now"] == 0 and s["pool"]["leased"] == 0, "nothing on its way")


def test_a_poll_needs_no_hashes_and_touches_no_newer_list(manager):
    with Engine(manager) as engine:
        engine.publish(manager, range(32))
        manager.command("evict")
        client, name = engine.client, engine.client.instance_id
        old = engine.ask(range(8), "r")
        loading = engine.ask(range(32), "r")
        assert loading.revision > old.revision
        assert client.poll_query(name, "r", old) == QueryReady(0, bytes(16), why="unknown")
        client.cancel_query(name, "r", revision=old.revision)
        deadline = time.monotonic() + 20
        answer = loading
        while isinstance(answer, QueryLoading) and time.monotonic() < deadline:
            time.sleep(0.002)
            answer = client.poll_query(name, "r", answer)
        assert answer.hit_blocks == 32
        assert engine.ask(range(32), "r") == answer
        client.cancel_query(name, "r", revision=answer.revision)
        assert client.poll_query(name, "r", loading).why == "unknown"


def test_eviction_says_what_it_did(manager):
    with Engine(manager) as engine:
        engine.publish(manager, range(32))
        hit = engine.lease(range(4), "r")
        answer = manager.command("evict")
        assert answer["evicted"] == 28 and answer["referenced"] == 4
        assert answer["evicted_bytes"] >= 28 * BLOCK
        engine.client.release(hit.lease)
        assert manager.command("evict", "--bytes", "1KiB")["evicted"] == 1
        assert engine.restored(range(32)) == 32


def test_namespaces_are_listed_in_pieces_and_dropped_for_good(manager):
    names = [f'{{"v":1,"model":"{n}"}}' for n in range(40)]
    for number, name in enumerate(names):
        with Engine(manager, name) as engine:
            engine.publish(manager, [number])
    listed = manager.command("ssd", "list")["namespaces"]
    assert sorted(space["namespace"] for space in listed) == sorted(names)
    one = next(space for space in listed if space["namespace"] == names[7])
    assert manager.command("ssd", "drop", one["digest"][:20])["records"] == 1
    manager.kill()
    manager.start()
    with Engine(manager, names[3]) as engine:
        assert engine.restored([3]) == 1
        dropped = manager.command("ssd", "drop", "--unasked")
        assert dropped["namespaces"] == 38
        assert len(dropped["names"]) == 32  # what one answer holds
        assert {each["namespace"] for each in dropped["names"]} < set(names) - {names[3], names[7]}
        (left,) = manager.command("ssd", "list")["namespaces"]
        assert left["namespace"] == names[3] and left["asked"]
    with Engine(manager, names[7]) as engine:
        assert engine.restored([7]) == 0


def connected(pid, seconds=20):
    """The process has a socket: the command has found its Manager."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for each in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(each).startswith("socket:"):
                    return
        time.sleep(0.01)
    raise AssertionError("the command does not connect")


def reading(manager):
    """Killed, and started again with an SSD that is read no further for now."""
    manager.kill()
    manager.environment["ORBITKV_FAULT"] = "manager_opening:fail:*"
    manager.start(ready=False)
    manager.wait_for(lambda s: s["pool"]["largest_free"] > 0, "the Manager")


def test_it_serves_while_its_ssd_is_being_read(manager):
    with Engine(manager) as engine:
        engine.publish(manager, range(64))
    reading(manager)
    with Engine(manager) as engine:
        assert engine.restored(range(ROOM), "on SSD") == 0
        engine.save(range(100, 108))
        assert engine.restored(range(100, 108), "in memory") == 8
        status = manager.status()
        assert status["ssd"]["state"] == "reading" and not status["ssd"]["opening"]["ready"]
        assert status["ssd"]["opening"]["missed"] >= ROOM and status["ssd"]["refused"]["opening"] > 0
        assert status["ssd"]["opening"]["segments"] == 31
        asks = [binary(), "status", "--bootstrap-socket", manager.socket]
        text = subprocess.run(asks, capture_output=True, text=True)
        assert "BEING READ (reading): 0 of 31 segments" in text.stdout
        assert "0 of 31 segments" in manager.command("ssd", "list")["reading"]
        assert manager.command("drop", "--memory-only", "--older-than", "1h")["evicted"] == 0
        evict = [binary(), "evict", "--wait", "--bootstrap-socket", manager.socket]
        with subprocess.Popen(evict, stdout=subprocess.PIPE) as waits:
            connected(waits.pid)
            assert manager.status() is not None and waits.poll() is None, "nothing can leave yet"
            waits.kill()
        drop = [binary(), "drop", "--older-than", "1h", "--bootstrap-socket", manager.socket]
        with subprocess.Popen(drop, stderr=subprocess.PIPE, text=True) as waits:
            connected(waits.pid)
            # The next question is answered, that one is not.
            assert manager.status() is not None and waits.poll() is None
            manager.stop()
            assert manager.process.returncode == 0, manager.text()
            assert waits.wait(10) != 0
    assert "what is on the SSD was still being read" in manager.text()
    manager.environment.clear()
    manager.start()
    assert manager.status()["ssd"]["recovered"] == 64
    with Engine(manager) as engine:
        for at in range(0, 64, ROOM):
            assert engine.restored(range(at, at + ROOM), f"all-{at}") == ROOM


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_drop_while_the_ssd_is_read_holds_for_all_of_it(manager, step):
    names = ['{"v":1,"model":"kept"}', '{"v":1,"model":"gone"}']
    for name in names:
        with Engine(manager, name) as engine:
            engine.publish(manager, range(16))
    listed = manager.command("ssd", "list")["namespaces"]
    digest = next(space["digest"] for space in listed if space["namespace"] == names[1])
    manager.kill()
    manager.environment["ORBITKV_FAULT"] = f"manager_opening:stop:{step}"
    manager.start(ready=False)
    os.waitid(os.P_PID, manager.process.pid, os.WSTOPPED | os.WNOWAIT)
    drop = [binary(), "ssd", "drop", digest, "--json", "--bootstrap-socket", manager.socket]
    with subprocess.Popen(drop, stdout=subprocess.PIPE) as asked:
        connected(asked.pid)  # the socket of a Manager that stands still takes it
        manager.process.send_signal(signal.SIGCONT)
        assert asked.wait(30) == 0
        assert json.loads(asked.stdout.read())["records"] == 16
    manager.kill()
    manager.environment.clear()
    manager.start()
    for name, blocks in zip(names, (16, 0), strict=True):
        with Engine(manager, name) as engine:
            assert engine.restored(range(16)) == blocks


def test_nothing_is_unasked_before_an_engine_has_registered(manager):
    with Engine(manager) as engine:
        engine.publish(manager, range(4))
    manager.kill()
    manager.start()
    line = [line for line in manager.text().splitlines() if "SSD store: " in line and "policy" in line][-1]
    assert "/store, 124 MiB; policy all" in line and "segments are read while the Manager serves" in line
    assert "SSD store: 4 blocks found in 31 segments" in manager.text()
    done = subprocess.run(
        [binary(), "ssd", "drop", "--unasked", "--bootstrap-socket", manager.socket], capture_output=True, text=True
    )
    assert done.returncode != 0 and "--force" in done.stderr
    assert manager.status()["ssd"]["records"] == 4
    assert manager.command("ssd", "drop", "--unasked", "--force")["records"] == 4


def test_an_eviction_that_waits_leaves_nothing_that_is_being_written(tmp_path):
    """What is worth keeping is written first: without waiting it is still there."""
    with manager_on(tmp_path, pool="16MiB", policy="auto") as manager:
        with Engine(manager) as engine:
            for at in range(0, 192, ROOM):
                engine.save(range(at, at + ROOM))
            answer = manager.command("evict", "--wait")
            assert (answer["evicted"], answer["being_written"], answer["kept"]) == (192, 0, 0)
            status = manager.status()
            assert status["blocks"] == 0 and status["ssd"]["records"] == 192
            assert engine.restored(range(160, 192)) == ROOM


def test_a_budget_that_no_block_fits_is_said_with_the_remedy(tmp_path):
    with manager_on(tmp_path, extra=["--ssd-daily-write-budget", "500KiB"]) as manager:
        with Engine(manager) as engine:
            engine.save(range(8))
            status = manager.wait_for(lambda s: s["blocks"] == 8, "the blocks")
            assert status["ssd"]["admission"]["over_budget"] == 8 and status["ssd"]["records"] == 0
        (line,) = [line for line in manager.text().splitlines() if "--ssd-daily-write-budget" in line]
        assert "give at least 5" in line  # eight blocks of 64 KiB and their headers


@pytest.mark.parametrize(
    "words, says",
    [
        (["ssd", "drop", "ffffffff"], "no stored namespace begins with"),
        (["ssd", "drop", "fffffff"], "at least 8 digits"),
        (["ssd", "drop", "--unasked"], "no engine has registered"),
        (["ssd", "drop", "ffffffff", "--force"], "--force is for --unasked"),
        (["ssd", "drop"], "name one namespace"),
        (["evict", "--bytes", "much"], "is not a size"),
        (["evict", "--bytes", "9" * 9000], "999...' is not a size"),
        (["evict", "--bytes", "0x10"], "'0x10' is not a size"),
        (["evict", "--bytes", "1e5"], "'1e5' is not a size"),
        (["pool", "drain", "0x1"], "'0x1' is not a size"),
        (["pool", "drain", "4294967296"], "no slab has that number"),
        (["pool", "drain", "99999999999999999999"], "no slab has that number"),
    ],
)
def test_commands_that_cannot_be_say_why(manager, words, says):
    done = subprocess.run(
        [binary(), *words, "--bootstrap-socket", manager.socket], capture_output=True, text=True, timeout=30
    )
    asked = words[:3] == ["ssd", "drop", "ffffffff"] and words[3:] == [] or words[2:] == ["--unasked"]
    assert done.returncode == (1 if asked else 2) and says in done.stderr, "2: no Manager was asked"


@pytest.mark.parametrize(
    "options, says",
    [
        (["--ssd-size", "1GiB"], "--ssd-size needs --ssd-path"),
        (["--load-wait", "10"], "--load-wait needs --ssd-path"),
        (["--ssd-path", "STORE", "--ssd-write-policy", "some"], "auto, reuse or all"),
        (["--ssd-path", "STORE", "--ssd-segment-size", "5000"], "whole pages of 4096 bytes"),
    ],
)
def test_options_that_cannot_be_say_why(tmp_path, options, says):
    options = [option.replace("STORE", str(tmp_path / "store")) for option in options]
    done = subprocess.run(
        [binary(), "serve", "--bootstrap-socket", str(tmp_path / "s"), *options],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 2 and says in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("keep", [[], ["--keep"]])
@pytest.mark.parametrize(
    "options, says",
    [
        (["--ssd-path", "DIR/store", "--ssd-size", "1MiB"], "too small"),
        (["--ssd-path", "DIR/store", "--ssd-path", "DIR/no/such", "--ssd-size", "128MiB"], "make its directory"),
        (["--ssd-path", "DIR/store", "--ssd-path", "DIR/old", "--ssd-size", "128MiB"], "not empty and no OrbitKV"),
        (["--ssd-path", "DIR/store", "--ssd-size", "128MiB"], "it does not start (ORBITKV_FAULT)"),
    ],
)
def test_a_start_that_is_refused_leaves_nothing_behind(tmp_path, options, says, keep):
    (tmp_path / "old").write_bytes(b"needed" * 4096)
    options = [option.replace("DIR", str(tmp_path)) for option in [*options, "--ssd-segment-size", "4MiB"]]
    with tempfile.TemporaryDirectory(prefix="okv-") as above:
        done = subprocess.run(
            [binary(), "serve", "--bootstrap-socket", f"{above}/a/b/s", "--pool-size", "8MiB", *keep, *options],
            capture_output=True, text=True, timeout=60,
            env={**os.environ, "ORBITKV_FAULT": "manager_not_ready:fail:1"} if "FAULT" in says else None,
        )  # fmt: skip
        assert done.returncode == 1 and says in done.stderr, done.stderr
        assert os.listdir(above) == [] and os.listdir(tmp_path) == ["old"]


def test_a_path_that_a_refused_start_has_added_is_there_for_the_next(tmp_path):
    options = ["--ssd-path", str(tmp_path / "store"), "--ssd-path", str(tmp_path / "added")]
    options += ["--ssd-size", "256MiB", "--ssd-segment-size", "4MiB", "--pool-size", "8MiB"]
    with manager_on(tmp_path) as manager:
        with Engine(manager) as engine:
            engine.save(range(ROOM))
            manager.wait_for(lambda s: s["ssd"]["records"] == ROOM, "all blocks on SSD")
    for _ in range(2):
        done = subprocess.run(
            [binary(), "serve", "--bootstrap-socket", str(tmp_path / "s"), *options],
            capture_output=True, text=True, timeout=60, env={**os.environ, "ORBITKV_FAULT": "manager_not_ready:fail:1"},
        )  # fmt: skip
        assert done.returncode == 1 and "ORBITKV_FAULT" in done.stderr, done.stderr
        assert sorted(os.listdir(tmp_path)) == ["added", "store"]
    with ManagerProcess(pool="8MiB", extra=options[:-2]) as manager:
        manager.wait_for(lambda s: s["ssd"]["recovered"] == ROOM, "all blocks found again")
        assert "of which are there" not in manager.text()


def test_a_start_that_is_refused_takes_nothing_of_another(manager, tmp_path):
    other = ["--ssd-path", str(tmp_path / "other"), "--ssd-size", "64MiB"]
    done = subprocess.run(
        [binary(), "serve", "--bootstrap-socket", manager.socket, *other], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1 and "another Manager" in done.stderr
    assert manager.status() and os.path.exists(manager.socket + ".lock") and os.listdir(tmp_path) == ["store"]


def test_without_an_ssd_the_commands_say_so():
    with ManagerProcess() as manager:
        assert "ssd" not in manager.status()
        done = subprocess.run(
            [binary(), "ssd", "list", "--bootstrap-socket", manager.socket], capture_output=True, text=True
        )
        assert done.returncode != 0 and "--ssd-path" in done.stderr
        assert manager.command("evict")["evicted"] == 0


def test_a_stop_writes_what_only_memory_holds(tmp_path):
    """With the default policy blocks are written when memory lets them go: a stop does."""
    with manager_on(tmp_path, policy="auto") as manager:
        with Engine(manager) as engine:
            for at in range(0, 96, ROOM):
                engine.save(range(at, at + ROOM))
            manager.wait_for(lambda s: s["blocks"] == 96, "all blocks in memory")
        manager.stop()
        assert manager.process.returncode == 0, manager.text()
        manager.start()
        assert manager.status()["ssd"]["recovered"] == 96
        with Engine(manager) as engine:
            assert engine.restored(range(64, 96)) == ROOM


def free_bytes(directory):
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 40 MiB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", disk], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {done.stderr}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_stop_does_not_wait_for_a_disk_that_is_full(small_disk):
    """A store with holes, as a copied one has, on a file system that fills up."""
    options = ["--ssd-path", str(small_disk / "store"), "--ssd-segment-size", "1MiB", "--ssd-write-policy", "all"]
    with ManagerProcess(pool="8MiB", extra=[*options, "--ssd-size", "20MiB"]):
        pass
    (small_disk / "store").rename(small_disk / "whole")
    subprocess.run(["cp", "--sparse=always", small_disk / "whole", small_disk / "store"], check=True)
    (small_disk / "whole").unlink()
    with ManagerProcess(pool="8MiB", extra=options) as manager:
        deadline = time.monotonic() + 20
        while (free := free_bytes(small_disk)) < 38 << 20:  # the kernel lets go of the old file later
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (small_disk / "filler").write_bytes(bytes(free - (1 << 20)))
        with Engine(manager) as engine:
            at, path = 0, {"state": "ok"}
            while path["state"] == "ok" and at < 256:  # 16 MiB
                engine.save(range(at, at + 8))
                path = manager.wait_for(lambda s: s["ssd"]["queued_bytes"] == 0, "an empty queue")["ssd"]["paths"][0]
                at += 8
            assert path["state"] == "writes stopped" and "space" in path["why"]
            engine.save(range(at, at + 8))
        manager.process.terminate()
        assert manager.process.wait(15) == 0  # far below --drain-timeout
        assert "are given up" in manager.text()


def test_a_limit_of_file_sizes_stops_the_writes_and_not_the_manager(manager):
    with Engine(manager) as engine:
        engine.save(range(8))
        manager.wait_for(lambda s: s["ssd"]["queued_bytes"] == 0, "an empty queue")
        assert manager.status()["ssd"]["paths"][0]["state"] == "ok"
        # The store has its length already: what lies behind the limit cannot be written any more.
        _, hard = resource.prlimit(manager.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(manager.process.pid, resource.RLIMIT_FSIZE, (1 << 20, hard))
        engine.save(range(8, 40))
        manager.wait_for(lambda s: s["ssd"]["queued_bytes"] == 0, "an empty queue")
        assert "File too large" in manager.text()
        assert engine.restored(range(8, 16)) == 8
        resource.prlimit(manager.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
    manager.stop()
    assert manager.process.returncode == 0, manager.text()


def test_a_store_that_became_shorter_is_told(tmp_path):
    manager = manager_on(tmp_path)
    with manager as started, Engine(started) as engine:
        engine.save(range(8))
    os.truncate(tmp_path / "store", 64 << 20)
    manager = manager_on(tmp_path)
    with manager as started:
        path = str(tmp_path / "store")
        assert f"SSD path {path} is shorter than its store was; what is missing is lost" in started.text()
        assert os.path.getsize(path) > 64 << 20
