"""A group over several hosts: the page's carrier, over TCP, to other processes; and carriers that are no good."""

import pathlib
import random
import re
import subprocess
import sys
import threading
import time

import pytest
from orbitkv import PrefixGroup, RejectedError
from tp_hosts import TOKENS, Host, key

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "tp.md"
KEY = b"a key of the engine's"
ACCEPT = """
import sys
from multiprocessing.connection import Listener
with Listener(("127.0.0.1", 0), authkey=bytes.fromhex(sys.argv[2])) as listener:
    print(listener.address[1], flush=True)
    while True:
        with listener.accept() as connection:
            serve(connection, sys.argv[1])
            print("served", flush=True)
"""


def example(naming):
    (found,) = [e for e in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if naming in e]
    return found


class FarEnd:
    """A process beside a host's ranks, which runs the page's other end."""

    def __init__(self, host):
        command = [sys.executable, "-c", example("def serve") + ACCEPT, host.manager.socket, KEY.hex()]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.address = ("127.0.0.1", int(self.process.stdout.readline()))

    def served(self):
        return self.process.stdout.readline().strip() == "served"

    def close(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def hosts():
    made = [Host(0, groups=2), Host(1, groups=2)]
    for host, count in zip(made, (6, 4), strict=True):
        host.save(count)
    yield made
    for host in made:
        host.close()


@pytest.fixture
def far(hosts):
    made = [FarEnd(host) for host in hosts]
    yield made
    for end in made:
        end.close()


class Lossy:
    """Over another carrier: some frames are lost, some go twice, some are spoilt."""

    def __init__(self, inner):
        self.inner, self.random, self.done = inner, random.Random(3), []

    def chance(self, what, percent):
        if self.random.random() * 100 >= percent:
            return False
        self.done.append(what)
        return True

    def send(self, participant, token, frame):
        if self.chance("lost", 15):
            return
        for _ in range(2 if self.chance("doubled", 25) else 1):
            self.inner.send(participant, token, frame)

    def receive(self, timeout):
        answer = self.inner.receive(timeout)
        if answer is None or self.chance("lost", 15):
            return None
        if self.chance("spoilt", 15):
            participant, token, frame = answer
            spoilt = [(participant, token, frame[:-1] + b"x"), (9, token, frame), (participant, 1, b"")]
            return self.random.choice(spoilt)
        return answer


def restore_everywhere(hosts, claim, found):
    for host in hosts:
        for rank in range(2):
            claim.restored(2 * host.number + rank, host.restore(rank, found.leases[host.number]))
    end = claim.wait(30)
    assert end.done and end.success and end.quiet, end.message


def run_near_end(hosts, far, timeout, wrapped):
    made = []

    def group_of(participants, carrier):
        made.append(wrapped(carrier))
        return PrefixGroup(participants, timeout, carrier=made[0])

    names = {
        "PrefixGroup": group_of,
        "hosts": [end.address for end in far],
        "key": KEY,
        "instance_a": hosts[0].instance,
        "instance_b": hosts[1].instance,
    }
    exec(example("class Channel"), names)
    return names["group"], made[0]


def test_the_pages_carrier_over_tcp_with_loss_and_doubling(hosts, far):
    group, lossy = run_near_end(hosts, far, 30.0, Lossy)
    for _ in range(3):
        with group.begin([key(block) for block in range(8)]) as claim:
            found = claim.poll(60)
            assert found.blocks == 4, found.message
            restore_everywhere(hosts, claim, found)
    with group.begin([key(block) for block in range(3)] * 2, boundary=3 * TOKENS) as claim:
        found = claim.poll(60)
        assert found.blocks == 6, found.message
        restore_everywhere(hosts, claim, found)
    group.close()
    assert {"lost", "doubled"} <= set(lossy.done)
    for host in hosts:
        host.manager.wait_for(lambda s: s["leases"] == 0 and s["interests"]["open"] == 0, "nothing held")


def test_what_a_coordinator_held_goes_back_when_its_channel_ends(hosts, far):
    group, channel = run_near_end(hosts, far, 5.0, lambda carrier: carrier)
    claim = group.begin([key(0)])
    assert claim.poll(60).blocks == 1
    for connection in channel.connections:
        connection.close()
    for host, end in zip(hosts, far, strict=True):
        assert end.served()
        host.manager.wait_for(lambda s: s["leases"] == 0 and s["interests"]["open"] == 0, "nothing held")
    group.close()


class Queues:
    """The far ends in this process, a thread each, over carry_interest of a client."""

    def __init__(self, hosts):
        self.clients = [host.scheduler for host in hosts]
        self.answers = []
        self.came = threading.Condition()

    def send(self, participant, token, frame):
        threading.Thread(target=self.ask, args=(participant, token, frame)).start()

    def ask(self, participant, token, frame):
        answer = self.clients[participant].carry_interest(frame)
        with self.came:
            self.answers.append((participant, token, answer))
            self.came.notify()

    def receive(self, timeout):
        with self.came:
            self.came.wait_for(lambda: self.answers, timeout)
            return self.answers.pop(0) if self.answers else None


def seats_of(hosts):
    return [(None, host.instance, [2 * host.number, 2 * host.number + 1]) for host in hosts]


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError("not even that")


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt, SystemExit, Unspeakable])
def test_what_a_carrier_raises_is_a_lost_frame(hosts, kind):
    class Raises(Queues):
        sent = received = 0

        def send(self, participant, token, frame):
            self.sent += 1
            if self.sent % 2:
                raise kind("the line is down")
            super().send(participant, token, frame)

        def receive(self, timeout):
            self.received += 1
            if self.received % 3 == 1:
                raise kind("the line is down")
            return super().receive(timeout)

    with PrefixGroup(seats_of(hosts), 30.0, carrier=Raises(hosts)) as group:
        claim = group.begin([key(0), key(1)])
        assert claim.poll(60).blocks == 2


def test_a_carrier_that_never_works_is_named(hosts):
    class Down:
        def send(self, participant, token, frame):
            raise ConnectionResetError(f"no way to {participant} {'ü' * 1000} \udcff")

        def receive(self, timeout):
            time.sleep(timeout)

    with PrefixGroup(seats_of(hosts), 0.3, carrier=Down()) as group:
        claim = group.begin([key(0)])
        found = claim.poll(60)
        assert (found.blocks, found.why) == (0, "timeout")
        said = f"its carrier says: send: ConnectionResetError: no way to {found.participant}"
        while said not in found.message:  # send() may be called later than that
            assert "did not answer in time" in found.message
            time.sleep(0.01)
            found = claim.poll(60)


def test_a_carrier_that_loses_everything_and_says_nothing_is_named_and_counted(hosts):
    class Hole:
        def send(self, participant, token, frame):
            pass

        def receive(self, timeout):
            time.sleep(timeout)

    with PrefixGroup(seats_of(hosts), 0.3, carrier=Hole()) as group:
        found = group.begin([key(0)]).poll(60)
        assert (found.blocks, found.why) == (0, "timeout")
        assert "frames were sent to it" in found.message and "nothing came back; check its carrier" in found.message
        stats = group.stats()
        assert len(stats) == 2 and stats[found.participant].silent == 1
        assert all(of.sent > 0 and of.answered == of.astray == 0 for of in stats)


def test_frames_that_are_answered_are_counted(hosts):
    with PrefixGroup(seats_of(hosts), 30.0, carrier=Queues(hosts)) as group:
        assert group.begin([key(0)]).poll(60).blocks == 1
        assert all(of.sent >= of.answered >= 2 and of.silent == 0 for of in group.stats())
    with pytest.raises(RejectedError, match="closed"):
        group.stats()


@pytest.mark.parametrize(
    "answer",
    [5, (1,), "abc", (0, -1, b""), (7, 1, b"x"), (0, 1, "text"), (0, 2**70, b""), (0, 1, bytes(70_000)), (0, 1, None)],
    ids=["number", "short", "text", "token", "stranger", "letters", "wide", "long", "none"],
)
def test_what_a_carrier_must_not_answer_is_lost(hosts, answer):
    class Odd(Queues):
        asked = 0

        def receive(self, timeout):
            self.asked += 1
            return answer if self.asked % 2 else super().receive(timeout)

    with PrefixGroup(seats_of(hosts), 30.0, carrier=Odd(hosts)) as group:
        assert group.begin([key(0)]).poll(60).blocks == 1


def test_a_carrier_may_use_the_group(hosts):
    class Curious(Queues):
        group, seen = None, ()

        def send(self, participant, token, frame):
            if self.group and len(self.seen) < 3:
                self.seen = (*self.seen, self.group.begin([key(0)]).poll(0))
            super().send(participant, token, frame)

    carrier = Curious(hosts)
    with PrefixGroup(seats_of(hosts), 30.0, carrier=carrier) as group:
        carrier.group = group
        assert group.begin([key(0), key(1)]).poll(60).blocks == 2
        carrier.group = None
    assert carrier.seen == (None, None, None)


def test_a_carrier_that_does_not_return_holds_up_no_close(hosts):
    free = threading.Event()

    class Stuck:
        def send(self, participant, token, frame):
            free.wait()

        def receive(self, timeout):
            free.wait()

    group = PrefixGroup(seats_of(hosts), 0.2, carrier=Stuck())
    claim = group.begin([key(0)])
    assert claim.poll(60).why == "timeout"
    group.close()
    with pytest.raises(RejectedError, match="closed"):
        group.begin([key(0)])
    free.set()


@pytest.mark.parametrize("waits", ["time.sleep(timeout)", "threading.Event().wait()"])
def test_a_group_that_is_left_open_lets_its_process_end(waits):
    code = f"""
import threading, time
from orbitkv import PrefixGroup
class Idle:
    def send(self, participant, token, frame): pass
    def receive(self, timeout): {waits}
group = PrefixGroup([(None, bytes(16), [0])], 600.0, carrier=Idle())
claim = group.begin([bytes(32)])
print("left", flush=True)
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr


@pytest.mark.parametrize("ends", ["group.close()", "del claim, group", "pass", "claim.close()"])
def test_a_forked_child_ends_without_a_wait(ends):
    code = f"""
import os, signal, threading, time
from orbitkv import PrefixGroup, RejectedError
class Idle:
    def send(self, participant, token, frame): pass
    def receive(self, timeout): time.sleep(timeout)
group = PrefixGroup([(None, bytes(16), [0])], 600.0, carrier=Idle())
claim = group.begin([bytes(32)])
threading.Thread(target=claim.poll, args=(600,), daemon=True).start()
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        group.begin([bytes(32)])
    except RejectedError as error:
        assert "forked" in str(error), error
    else:
        raise AssertionError("a child began")
    try:
        {ends}
    except RejectedError:
        pass
else:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def nothing_is_held(hosts):
    return all(host.manager.status()["interests"]["open"] == 0 for host in hosts)


def test_one_that_is_closed_while_others_wait_has_given_all_back(hosts):
    for _ in range(5):
        group = PrefixGroup(seats_of(hosts), 600.0, carrier=Queues(hosts))
        claim = group.begin([key(0), key(1)])
        assert claim.poll(60).blocks == 2
        told, held = [], []

        def wait(claim=claim, told=told):
            with pytest.raises(RejectedError, match="the group is closed"):
                claim.wait(600)
            told.append(True)

        def close(group=group, held=held):
            group.close()
            held.append(nothing_is_held(hosts))

        threads = [threading.Thread(target=each) for each in (wait, wait, close, close)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert (told, held) == ([True, True], [True, True])


def test_a_process_that_leaves_its_group_open_gives_all_back(hosts):
    code = """
import atexit, queue, sys
def leave():  # registered first, so called last
    print("told", flush=True)
    sys.stdin.readline()  # the sessions of `far` stay until then
atexit.register(leave)
import orbitkv._carrier
from orbitkv import CacheManagerClient, PrefixGroup
orbitkv._carrier._END = 60.0
far = [CacheManagerClient(socket) for socket in sys.argv[1:3]]
class Near:
    answers = queue.Queue()
    def send(self, participant, token, frame):
        self.answers.put((participant, token, far[participant].carry_interest(frame)))
    def receive(self, timeout):
        try:
            return self.answers.get(timeout=timeout)
        except queue.Empty:
            return None
for client in far:
    client.wait_connected(30)
seats = [(None, bytes.fromhex(instance), [2 * i, 2 * i + 1]) for i, instance in enumerate(sys.argv[3:5])]
group = PrefixGroup(seats, 600.0, carrier=Near())
claim = group.begin([bytes([1]) * 32])
assert claim.poll(60).blocks == 1
"""
    arguments = [host.manager.socket for host in hosts] + [host.instance.hex() for host in hosts]
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "told\n"
        assert nothing_is_held(hosts)
        process.communicate("go\n", timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0


def test_a_close_within_the_carrier_is_refused_by_name(hosts):
    class Closes(Queues):
        group, refused = None, 0

        def send(self, participant, token, frame):
            if self.group:
                with pytest.raises(RejectedError, match=r"close\(\) within send\(\) or receive\(\)"):
                    self.group.close()
                self.refused += 1
            super().send(participant, token, frame)

    carrier = Closes(hosts)
    group = PrefixGroup(seats_of(hosts), 30.0, carrier=carrier)
    carrier.group = group
    assert group.begin([key(0)]).poll(60).blocks == 1
    carrier.group = None
    group.close()
    assert carrier.refused >= 2
    assert nothing_is_held(hosts)


def test_a_group_that_its_carrier_drops_ends(hosts):
    class Drops(Queues):
        groups, alone, dropped = None, threading.Event(), threading.Event()

        def send(self, participant, token, frame):
            self.alone.wait()
            if self.groups:
                self.groups.clear()
                self.dropped.set()

    carrier = Drops(hosts)
    carrier.groups = [PrefixGroup(seats_of(hosts), 600.0, carrier=carrier)]
    before = carrier.groups[0]._pump._threads
    begin = carrier.groups[0].begin
    begin([key(0)])
    del begin
    carrier.alone.set()
    assert carrier.dropped.wait(60)
    for thread in before:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("answer", [5, (7, 1, b"x")], ids=["number", "stranger"])
def test_a_carrier_that_brings_junk_at_once_is_not_asked_without_a_pause(hosts, answer, monkeypatch):
    paused = []

    class Clock:  # it stands still, so every pause is due
        monotonic = staticmethod(lambda: 0.0)

        @staticmethod
        def sleep(seconds):
            paused.append(seconds)
            time.sleep(seconds)

    class Junk:
        asked, hurried = 0, False

        def send(self, participant, token, frame):
            pass

        def receive(self, timeout):
            self.asked += 1
            self.hurried |= len(paused) != self.asked - 1
            return answer

    carrier = Junk()
    monkeypatch.setattr("orbitkv._carrier.time", Clock)
    with PrefixGroup(seats_of(hosts), 0.2, carrier=carrier) as group:
        assert group.begin([key(0)]).poll(60).why == "timeout"
    assert carrier.asked > 1
    assert not carrier.hurried
    assert min(paused) >= 0.001


def test_what_is_no_carrier_is_refused(hosts):
    for wrong in (object(), 5, "channel"):
        with pytest.raises(TypeError, match="carrier"):
            PrefixGroup(seats_of(hosts), carrier=wrong)
    with pytest.raises(TypeError, match="without a client"):
        PrefixGroup(seats_of(hosts))


def test_the_far_end_of_a_manager_that_is_gone_still_answers(hosts):
    hosts[1].manager.stop()
    with PrefixGroup(seats_of(hosts), 5.0, carrier=Queues(hosts)) as group:
        found = group.begin([key(0)]).poll(60)
        assert found.blocks == 0 and found.participant == 1, found.message
