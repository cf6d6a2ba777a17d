"""`orbitkv drop` against a Manager: by digest, scope and age, from memory and from SSD."""

import re
import subprocess

import pytest
from manager_process import ROOT, ManagerProcess, binary
from orbitkv import RejectedError
from test_ssd import Engine, manager_on

TENANTS = {scope: f'{{"model":"m","scope":"{scope}","v":1}}' for scope in ("a", "b")}
PLAIN = '{"model":"m","v":1}'


def said(manager, *words):
    """What it refuses, and why."""
    done = subprocess.run(
        [binary(), "drop", *words, "--bootstrap-socket", manager.socket], capture_output=True, text=True, timeout=60
    )
    assert done.returncode in (1, 2), done.stdout
    return done.stderr


def by_scope(answer):
    return {each["scope"]: each for each in answer["names"]}


@pytest.fixture
def filled():
    """Two tenants and one engine without a scope, each with its blocks in memory."""
    with ManagerProcess(pool="8MiB") as manager:
        engines = {}
        for blocks, (scope, text) in enumerate([*TENANTS.items(), ("", PLAIN)], 2):
            engines[scope] = Engine(manager, text)
            engines[scope].save(range(blocks))
        yield manager, engines
        for engine in engines.values():
            engine.client.close()


def test_a_dry_run_shows_what_there_is_and_takes_nothing(filled):
    manager, engines = filled
    shown = manager.command("drop", "--dry-run")
    assert shown["dry_run"] and shown["namespaces"] == 3 and shown["evicted"] == 9 and shown["records"] == 0
    assert {scope: each["blocks"] for scope, each in by_scope(shown).items()} == {"a": 2, "b": 3, "": 4}
    assert by_scope(shown)["b"]["namespace"] == TENANTS["b"] and by_scope(shown)["b"]["bytes"] > 3 * 65536
    assert manager.status()["blocks"] == 9
    text = subprocess.run(
        [binary(), "drop", "--dry-run", "--bootstrap-socket", manager.socket], capture_output=True, text=True
    ).stdout
    assert "would drop 3 namespaces" in text and "scope a" in text and TENANTS["a"] in text


def test_a_scope_goes_and_the_others_stay(filled):
    manager, engines = filled
    dropped = manager.command("drop", "--scope", "a")
    assert dropped["namespaces"] == 1 and dropped["evicted"] == 2 and not dropped["dry_run"]
    assert engines["a"].restored(range(2)) == 0
    assert engines["b"].restored(range(3)) == 3 and engines[""].restored(range(4)) == 4
    engines["a"].save(range(2))
    assert engines["a"].restored(range(2)) == 2


def test_digests_name_one_namespace_each(filled):
    manager, engines = filled
    spaces = by_scope(manager.command("drop", "--dry-run"))
    both = [spaces[scope]["digest"][:12] for scope in ("a", "b")]
    assert manager.command("drop", *both, "--dry-run")["evicted"] == 5
    assert manager.command("drop", *both)["evicted"] == 5
    assert manager.status()["blocks"] == 4


def test_without_an_ssd_force_drops_everything(filled):
    manager, _ = filled
    assert manager.command("drop", "--all-unasked", "--force", "--dry-run")["evicted"] == 9
    assert manager.status()["blocks"] == 9
    assert manager.command("drop", "--all-unasked", "--force")["evicted"] == 9
    assert manager.status()["blocks"] == 0


def test_what_was_just_used_is_not_old(filled):
    manager, engines = filled
    assert manager.command("drop", "--older-than", "1m")["evicted"] == 0
    assert manager.status()["blocks"] == 9


def test_the_commands_of_the_page_are_understood(filled):
    page = (ROOT / "docs/eviction.md").read_text()
    commands = re.findall(r"^orbitkv drop (.*?) *(?:#.*)?$", page, re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        done = subprocess.run(
            [binary(), "drop", *command.split(), "--dry-run", "--bootstrap-socket", filled[0].socket],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        refused = re.search("begins with|has the scope|no engine has registered|an SSD store", done.stderr)
        assert done.returncode == 0 or (done.returncode == 1 and refused), (command, done.stderr)


@pytest.mark.parametrize(
    "words, says",
    [
        ([], "name what is to go"),
        (["--scope", "c"], 'no namespace has the scope "c"'),
        (["--scope", "a", "--all-unasked", "--force"], "name one of them"),
        (["ffffffff"], "no stored namespace begins with"),
        (["fffffff"], "at least 8 digits"),
        (["--all-unasked"], "known of an SSD store"),
        (["ffffffff", "--force"], "--force is for --all-unasked"),
        (["--scope", "a", "--memory-only", "--ssd-only"], "exclude each other"),
        (["--older-than", "2"], "'2' is not an age"),
        (["--older-than", "0h"], "is not an age"),
        (["--older-than", "-1h"], "is not an age"),
        (["--older-than", "59s"], "counted in minutes"),
        (["--older-than", "46d"], "remember their last use for 45 days"),
        (["--older-than", "x" * 9000], "xxx...' is not an age"),
    ],
)
def test_what_cannot_be_dropped_says_why(filled, words, says):
    assert says in said(filled[0], *words)
    assert filled[0].status()["blocks"] == 9


@pytest.mark.parametrize("scope", ['"a b"', f'"{"a" * 65}"', '""', "7"])
def test_a_scope_that_no_drop_could_name_does_not_register(filled, scope):
    with pytest.raises(RejectedError, match="1 to 64 of A-Z a-z 0-9"):
        Engine(filled[0], f'{{"model":"m","scope":{scope}}}')


def test_a_dropped_scope_does_not_come_back_from_ssd(tmp_path):
    with manager_on(tmp_path) as manager:
        for text in TENANTS.values():
            with Engine(manager, text) as engine:
                engine.publish(manager, range(8))
        dropped = manager.command("drop", "--scope", "a")
        assert (dropped["evicted"], dropped["records"]) == (8, 8) and dropped["stored_bytes"] > 8 * 65536
        manager.kill()
        manager.start()
        for scope, blocks in (("a", 0), ("b", 8)):
            with Engine(manager, TENANTS[scope]) as engine:
                assert engine.restored(range(8)) == blocks


def test_one_place_may_be_spared(tmp_path):
    with manager_on(tmp_path) as manager, Engine(manager, TENANTS["a"]) as engine:
        engine.publish(manager, range(8))
        dropped = manager.command("drop", "--scope", "a", "--memory-only")
        assert (dropped["evicted"], dropped["records"]) == (8, 0)
        assert engine.restored(range(8)) == 8, "from SSD"
        dropped = manager.command("drop", "--scope", "a", "--ssd-only")
        assert (dropped["evicted"], dropped["records"]) == (0, 8)
        assert manager.status()["blocks"] == 8  # which may be written to SSD again at any time
        assert engine.restored(range(8), "again") == 8, "from memory"


def test_status_tells_classes_and_publishes(filled):
    manager, engines = filled
    assert engines["a"].restored(range(2)) == 2
    status = manager.status()
    classes = status["eviction"]
    assert classes["retained"]["blocks"] == 2 and classes["probationary"]["blocks"] == 7
    assert classes["reclaimable"]["blocks"] == 0
    assert 0 < classes["protected_bytes"] <= status["pool"]["capacity"] * 0.21
    for instance in status["instances"]:
        assert instance["publishes"] == {"open": 0, "waiting": 0, "lent_bytes": 0, "dropped": 0, "oldest_s": 0.0}


def test_a_client_reads_the_activity_of_its_instance(filled):
    manager, engines = filled
    activity = engines["a"].client.publish_activity()
    assert (activity.open, activity.waiting, activity.lent_bytes, activity.dropped) == (0, 0, 0, 0)
    assert activity == engines["b"].client.publish_activity(engines["a"].client.instance_id)
    for n in range(0, 320, 32):  # more than the pool holds while all of it is leased
        engines[""].save(range(1000 + n, 1032 + n))
        engines[""].ask(range(1000 + n, 1032 + n), f"hold {n}")
    assert engines[""].client.publish_activity().dropped > 0
    assert engines["b"].client.publish_activity().dropped == 0
    with pytest.raises(RejectedError, match="not registered"):
        engines["a"].client.publish_activity(bytes(15) + b"x")


def test_the_protected_share_may_be_off_but_not_more_than_all():
    with ManagerProcess(pool="8MiB", extra=["--cache-protected-percent", "0"]) as manager, Engine(manager) as engine:
        engine.save(range(4))
        assert engine.restored(range(4)) == 4
        assert manager.status()["eviction"]["probationary"]["blocks"] == 4
    done = subprocess.run([binary(), "serve", "--cache-protected-percent", "101"], capture_output=True, text=True)
    assert done.returncode == 2 and "0 to 100" in done.stderr


def test_an_empty_value_does_not_widen_what_goes(filled):
    manager, _ = filled
    assert "--scope: is empty" in said(manager, "--scope", "", "--older-than", "1h")
    assert "--older-than: is empty" in said(manager, "--scope", "a", "--older-than", "")
    assert manager.status()["blocks"] == 9


def test_a_digest_that_is_named_twice_is_dropped_once(filled):
    manager, _ = filled
    shown = by_scope(manager.command("drop", "--dry-run"))["b"]
    digest = shown["digest"]
    dropped = manager.command("drop", digest, digest[:12])
    assert dropped["namespaces"] == 1 and dropped["evicted"] == 3
