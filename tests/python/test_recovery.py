"""RecoveryContract: the rules by example, what it refuses, and groups that register with rules."""

import os

import numpy as np
import pytest
from manager_process import ManagerProcess
from orbitkv import CacheManagerClient, Group, Layer, RecoveryContract, RejectedError

GROUPS = [(0, "prefix", None), (1, "window", 100), (2, "checkpoint", None)]


@pytest.fixture
def contract():
    return RecoveryContract("ns", 64, groups=GROUPS)


def test_required_ranges(contract):
    assert contract.required_ranges("ns", 128, 512) == [(0, 128, 512), (1, 384, 512), (2, 448, 512)]


def test_boundaries_of_one_shard(contract):
    coverage = {0: [(128, 512)], 1: [(128, 192), (256, 512)], 2: [(128, 192), (256, 448)]}
    assert contract.restorable_boundaries("ns", 128, 512, coverage) == [192, 384, 448]
    assert contract.restorable_boundaries("ns", 128, 512, {0: [], 1: [], 2: []}) == []


def test_shards_intersect_sets():
    contract = RecoveryContract("ns", 64, [(0, "prefix", None), (1, "checkpoint", None)])
    shards = [
        {0: [(0, 512)], 1: [(64, 128), (448, 512)]},
        {0: ((0, 512),), 1: ((64, 128), (320, 384))},
    ]
    assert contract.common_boundaries("ns", 0, 512, shards) == [128]
    assert contract.select_boundary("ns", 0, 512, shards, 512) == 128
    assert contract.select_boundary("ns", 0, 512, shards, 127) is None
    assert contract.select_boundary("ns", 0, 512, shards[:1], 2**63) == 512


def test_any_iterables_will_do(contract):
    coverage = {group: iter([iter((128, 512))]) for group in (0, 1, 2)}
    boundaries = contract.restorable_boundaries("ns", 128, 512, coverage)
    assert boundaries == [192, 256, 320, 384, 448, 512]
    one = {group: [np.array([128, 512])] for group in (0, 1, 2)}
    assert contract.common_boundaries("ns", np.int64(128), 512, iter([one])) == boundaries
    assert contract.select_boundary("ns", 128, 512, iter([one, one]), 500) == 448


def test_tokens_up_to_2_63(contract):
    end = 2**63
    coverage = {group: [(end - 128, end)] for group in (0, 1, 2)}
    assert contract.restorable_boundaries("ns", end - 128, end, coverage) == [end - 64, end]


@pytest.mark.parametrize(
    "page, groups, text",
    [
        (0, GROUPS, "page_tokens is 0"),
        (64, [], "count of groups is 0; it must be 1..16"),
        (64, GROUPS + GROUPS[1:2], "group 1 is declared twice"),
        (64, GROUPS[1:], "group 0 is missing"),
        (64, [(0, "window", 64)], "group 0 must be a prefix group"),
        (64, [(0, "prefix", None), (1, "window", None)], "group 1.window_tokens is 0"),
        (64, [(0, "prefix", None), (1, "checkpoint", 64)], "only a window group has one"),
        (64, [(0, "suffix", None)], "prefix, window or checkpoint, not 'suffix'"),
    ],
)
def test_contracts_that_are_refused(page, groups, text):
    with pytest.raises(ValueError, match=text):
        RecoveryContract("ns", page, groups)


@pytest.mark.parametrize(
    "coverage, text",
    [
        ({0: [], 1: []}, "coverage: group 2 is missing"),
        ({0: [], 1: [], 2: [], 3: []}, "coverage: group 3 is not declared"),
        ({0: [(128, 200)], 1: [], 2: []}, r"group 0 has \[128, 200\), which is not of whole pages of 64"),
        ({0: [(64, 192)], 1: [], 2: []}, r"group 0 has \[64, 192\), which is not inside the tail"),
        ({0: [], 1: [(192, 192)], 2: []}, r"group 1 has \[192, 192\), which is empty"),
        ({0: [], 1: [(192, 256), (128, 192)], 2: []}, r"\[128, 192\), but stands behind \[192, 256\)"),
    ],
)
def test_coverage_that_is_refused(contract, coverage, text):
    with pytest.raises(ValueError, match=text):
        contract.restorable_boundaries("ns", 128, 512, coverage)
    with pytest.raises(ValueError, match=text.replace("coverage", "coverage of shard 0")):
        contract.select_boundary("ns", 128, 512, [coverage], 512)


def test_questions_that_are_refused(contract):
    nothing = {0: [], 1: [], 2: []}
    with pytest.raises(ValueError, match="the namespace is another one"):
        contract.required_ranges("other", 128, 512)
    with pytest.raises(ValueError, match=r"the tail \[100, 512\) is not of whole pages"):
        contract.restorable_boundaries("ns", 100, 512, nothing)
    with pytest.raises(ValueError, match="count of shards is 0"):
        contract.common_boundaries("ns", 128, 512, [])
    with pytest.raises(ValueError, match="start is 0 to 18446744073709551615, not -64"):
        contract.required_ranges("ns", -64, 512)


RULE = r"groups\[0\] is \(group, rule, window\), not "


@pytest.mark.parametrize(
    "given, kind, text",
    [
        ((7, 64, GROUPS), TypeError, "namespace is a str, not 7"),
        (("ns", 2**32, GROUPS), ValueError, "page_tokens is 0 to 4294967295"),
        (("ns", 64, 5), TypeError, "groups is a list, not 5"),
        (("ns", 64, [0]), ValueError, RULE + "0"),
        (("ns", 64, ["abc"]), ValueError, RULE + "'abc'"),
        (("ns", 64, [(0, "prefix")]), ValueError, RULE),
        (("ns", 64, [(70000, "prefix", None)]), ValueError, r"groups\[0\]: group is 0 to 65535, not 70000"),
        (("ns", 64, [(0, None, None)]), TypeError, r"groups\[0\]: rule is a str, not None"),
        (("ns", 64, [*GROUPS[:1], (1, "window", -1)]), ValueError, r"groups\[1\]: window is 0 to 4294967295, not -1"),
    ],
)
def test_arguments_of_a_contract_are_named(given, kind, text):
    with pytest.raises(kind, match=text):
        RecoveryContract(*given)


SHARD = r"coverages\[0\]\[2\]"


@pytest.mark.parametrize(
    "question, given, kind, text",
    [
        ("required_ranges", (0, 1.5), TypeError, r"end is a whole number, not 1\.5"),
        ("restorable_boundaries", (0, 64, [1]), TypeError, r"coverage is a dict, not \[1\]"),
        ("restorable_boundaries", (0, 64, {-1: []}), ValueError, "a group of coverage is 0 to 65535, not -1"),
        ("restorable_boundaries", (0, 64, {0: 3}), TypeError, r"coverage\[0\] is a list, not 3"),
        ("common_boundaries", (0, 64, None), TypeError, "coverages is a list, not None"),
        ("common_boundaries", (0, 64, [{2: [1]}]), ValueError, rf"a range in {SHARD} is \(start, end\), not 1"),
        ("common_boundaries", (0, 64, [{2: [(-1, 2)]}]), ValueError, f"a start in {SHARD} is 0 to 1844674407370955161"),
        ("common_boundaries", (0, 64, [{2: [(1, "2")]}]), TypeError, f"an end in {SHARD} is a whole number, not '2'"),
        ("select_boundary", (0, 64, [], 2**64), ValueError, "limit is 0 to 18446744073709551615"),
    ],
)
def test_arguments_of_a_question_are_named(contract, question, given, kind, text):
    with pytest.raises(kind, match=text):
        getattr(contract, question)("ns", *given)


def test_groups_register_with_their_rules():
    def register(client, *groups):
        layers = [Layer(f"layer{g.id}", g.id, 0, np.zeros((4, 4096), np.uint8), 4096, 1, 4096) for g in groups]
        return client.register("ns", 0, 1, "cpu:0", layers, 4, 64, groups)

    window = Group(1, rule="window", window_tokens=100)
    with ManagerProcess() as manager, CacheManagerClient(manager.socket, os.urandom(16)) as client:
        client.wait_connected(10)
        for second in (window, Group(1, rule="checkpoint"), Group(1)):
            client.unregister(register(client, Group(0), second))
        with pytest.raises(RejectedError, match=r"groups\[0\].rule is checkpoint; group 0 must be a prefix"):
            register(client, Group(0, rule="checkpoint"))
        with pytest.raises(RejectedError, match="the first group must be 0"):
            register(client, Group(1))
