"""The programs that need a GPU, as far as they go without one: their arguments, their
layouts (on CPU tensors) and what they read out of a trace."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROUNDTRIP = ROOT / "tests/gpu/torch_roundtrip.py"
VLLM_JOB = ROOT / "tests/gpu/vllm_job.py"
PEERS = ROOT / "bench/vllm_peers.py"


def run(*command):
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("program", [ROUNDTRIP, VLLM_JOB, PEERS], ids=lambda path: path.stem)
def test_help_says_what_the_program_does(program):
    done = run(program, "--help")
    assert done.returncode == 0 and "--orbitkv" in done.stdout
    assert run(program, "--no-such-option").returncode == 2


@pytest.mark.skipif(bool(os.environ.get("ORBITKV_FAKE_ONLY")), reason="ORBITKV_FAKE_ONLY is set")
def test_pages_survive_their_process_on_cpu_tensors():
    done = run(ROUNDTRIP, "--device", "cpu:0")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["ok"] and len(result["layouts"]) == 7
    assert all(f["bytes"] > 10**6 and f["wrong_bytes"] == 0 for f in result["layouts"].values())


def test_layouts_give_every_block_bytes_of_its_own():
    layouts = load(ROOT / "tests/gpu/layouts.py")
    for name, make in layouts.LAYOUTS.items():
        memory = make("cpu")
        contents = [layouts.content_of(number, memory.block_bytes) for number in range(layouts.BLOCKS)]
        for number, content in enumerate(contents):
            memory.write(number, content)
        assert all(bool((memory.read(n) == c).all()) for n, c in enumerate(contents)), name
        assert memory.block_bytes * layouts.BLOCKS == sum(b.numel() for b in memory.buffers), name


def test_an_unknown_layout_is_named():
    done = run(ROUNDTRIP, "--layout", "vllm-spiral")
    assert done.returncode != 0 and "vllm-spiral" in done.stderr and "sglang-pools" in done.stderr


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_engine_waits_for_its_turn_and_ends_with_its_parent(tmp_path):
    job, path = load(VLLM_JOB), tmp_path / "job"
    with pytest.raises(SystemExit, match="parent"):
        job.turn(path, os.getppid() + 1)
    (tmp_path / "part").write_text('{"model": "m"}')
    threading.Timer(0.1, lambda: (tmp_path / "part").rename(path)).start()
    assert job.turn(path, os.getppid()) == {"model": "m"}


def line(kind, drained, **changes):
    stages = {"readiness": 1000, "dispatched": 2000, "dequeued": 3000, "claimed": 1_000_000, "enqueued": 2_000_000}
    fields = {"kind": kind, "success": True, "bytes": 50_000_000, "method": "kernel"}
    return json.dumps({**fields, "stages_ns": {**stages, "drained": drained}, **changes})


def test_stages_of_a_trace_are_medians_of_what_succeeded(tmp_path):
    trace = tmp_path / "trace"
    lines = [line("restore", 2_000_000), line("restore", 4_000_000), line("restore", 3_000_000)]
    lines += [line("restore", 99_000_000, success=False), line("save", 6_000_000), '{"full":true}', '{"ki']
    trace.write_text("\n".join(lines))
    table = load(PEERS).stage_table(trace)
    assert table["restore"]["operations"] == 3 and table["restore"]["drained"] == 3.0
    assert table["restore"]["GB/s"] == 25.0 and table["restore"]["method"] == ["kernel"]
    assert table["save"]["GB/s"] == 10.0 and table["save"]["claimed"] == 1.0


def test_a_policy_that_fits_the_way_of_loading_is_chosen():
    module = load(PEERS)
    parse = module.parser_of_options().parse_args
    chosen = {load: module.connector(parse(["orbitkv", "--load", load]), "/s") for load in ("auto", "layers", "async")}
    assert [c["kv_load_failure_policy"] for c in chosen.values()] == ["fail", "fail", "recompute"]
    assert module.connector(parse(["none"]), None) is None
