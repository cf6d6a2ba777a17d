"""The steps of scripts/gpu-check (its help says what they are for)."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import gpu_bars
from gpu_machine import ROOT, SKIPPED, Failed, Machine, Missing, json_lines

QUERY = "name,driver_version,uuid,pcie.link.gen.current,pcie.link.width.current,memory.total"
WAITS_S = 60  # of the Manager's check
SOAK_PROCESSES = 12  # at most; they take turns on the device
NUMBER = re.compile(r"\d+(?:\.\d+)?")


# ---- steps: each returns its JSON lines ----


def driver(machine):
    if shutil.which("nvidia-smi") is None:
        raise Missing("no nvidia-smi on this machine")
    text = machine.run("driver", ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"])
    return [dict(zip(QUERY.split(","), line.split(", "), strict=False)) for line in text.strip().splitlines()]


def build(machine):
    if machine.arguments.build:
        machine.binary("orbitkv")
        return [{"build": str(machine.build)}]
    for tool in ("cmake", "ninja"):
        if shutil.which(tool) is None:
            raise Failed(f"no {tool} on this machine: install it, or give --build DIR")
    base = ["cmake", "-S", str(ROOT), "-B", str(machine.build), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]
    tests = True
    try:
        machine.run("build", [*base, "-DORBITKV_TESTS=ON"])
    except Failed:
        tests = False
        machine.run("build", [*base, "-DORBITKV_TESTS=OFF"])
    targets = ["orbitkv", *(["gpu_copier_test", "gpu_retire_test", "gpu_upgrade_test"] if tests else [])]
    machine.run("build", ["ninja", "-C", str(machine.build), *targets])
    note = python_module(machine, base)
    return [{"build": str(machine.build), "tests": tests, "python": note or "built"}]


def python_module(machine, base):
    """Needs nanobind in this Python; without it the torch steps are left out."""
    try:
        machine.run("build", [*base, "-DORBITKV_PYTHON=ON", f"-DPython_EXECUTABLE={sys.executable}"])
        machine.run("build", ["ninja", "-C", str(machine.build), "orbitkv_python"])
    except Failed as error:
        return f"not built: {error}"
    return ""


def copier_test(machine, step, cases, environment=None):
    command = [machine.binary("gpu_copier_test"), f"--gtest_filter={cases}", "--gtest_brief=1"]
    text = machine.run(step, command, environment)
    if "nothing tested" in text:
        raise Missing(text.strip())
    return text.splitlines()


def suites(machine):
    lines = copier_test(machine, "suites", "-GpuSoak.*")
    return [{"suites": line} for line in lines if "PASSED" in line]


def soak_share(machine, seed, rounds):
    """The last word of one process."""
    step = f"soak-{seed}"
    asked = {"ORBITKV_SOAK_ROUNDS": str(rounds), "ORBITKV_SOAK_SEED": str(seed)}
    found = [line for line in copier_test(machine, step, "GpuSoak.*", asked) if line.startswith("soak: ")]
    if len(found) != 1 or not found[0].startswith(f"soak: {rounds} rounds"):
        raise Failed(f"seed {seed} did not tell of {rounds} rounds; see {machine.out / step}.log")
    return found[0]


def sum_of(lines):
    """One line with the numbers of all added up."""
    sums = iter([sum(column) for column in zip(*(map(float, NUMBER.findall(line)) for line in lines), strict=True)])
    return NUMBER.sub(lambda number: f"{next(sums):.{3 if '.' in number[0] else 0}f}", lines[0])


def soak(machine):
    """Processes side by side, with a seed each, that make the rounds together."""
    rounds = machine.arguments.soak or (1000 if machine.arguments.quick else 10000)
    count = min(SOAK_PROCESSES, os.cpu_count() or 1, rounds)
    shares = [rounds // count + (i < rounds % count) for i in range(count)]
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        lines = list(pool.map(lambda i: soak_share(machine, i + 1, shares[i]), range(count)))
    return [{"soak": sum_of(lines), "processes": count}]


def rounds_of(machine, step, rounds):
    """What a program made of engines and Managers that end, in rounds, tells in its last word."""
    program = machine.binary(f"gpu_{step}_test")
    text = machine.run(step, [program], {f"ORBITKV_{step.upper()}_ROUNDS": str(rounds)})
    if "nothing tested" in text:
        raise Missing(text.strip())
    found = [line for line in text.splitlines() if line.startswith(f"{step}: ")]
    if len(found) != 1:
        raise Failed(f"it did not tell what it hit; see {machine.out / step}.log")
    return [{step: found[0]}]


def retire(machine):
    """Engines that are killed while the device writes into slabs; what takes their place keeps its bytes."""
    return rounds_of(machine, "retire", 6 if machine.arguments.quick else 30)


def upgrade(machine):
    """Managers that are upgraded and killed while the device copies; blocks and engines go on."""
    return rounds_of(machine, "upgrade", 6 if machine.arguments.quick else 30)


def bench(machine, name, extra=()):
    runs = "3" if machine.arguments.quick else "5"
    command = [machine.binary("orbitkv"), "bench", name, "--json", "--device", machine.arguments.device, "--runs", runs]
    return json_lines(machine.run(name, [*command, *extra]))


def copy(machine):
    if not machine.arguments.quick:
        return bench(machine, "copy")
    lines = []
    for size in ("2KiB", "4KiB", "16KiB", "64KiB", "2MiB"):
        for way in ("h2d", "d2h", "both"):
            lines += bench(machine, "copy", ["--case", f"{way}_{size}_split_auto*"])
    return lines + bench(machine, "copy", ["--case", "h2d_36x128x4KiB_split_auto*"])


def restore(machine):
    return bench(machine, "restore")


def publish(machine):
    return bench(machine, "publish")


def replay(machine):
    """What a bench moved, traced and run again."""
    trace = machine.out / "transfers.trace"
    trace.unlink(missing_ok=True)
    command = [machine.binary("orbitkv"), "bench", "restore", "--device", machine.arguments.device, "--runs", "1"]
    machine.run("replay", [*command, "--case", "36x128x4KiB_split"], {"ORBITKV_TRACE_TRANSFERS": str(trace)})
    return json_lines(machine.run("replay", [
        machine.binary("orbitkv"), "bench", "replay", str(trace), "--json", "--device", machine.arguments.device,
        "--runs", "3",
    ]))  # fmt: skip


def children_of(pid):
    try:
        return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def traces_of_cuda(pid):
    """Libraries and device files of the driver that a process holds."""
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text(errors="replace")
    held = {word for word in maps.split() if "libcuda" in word or "/dev/nvidia" in word}
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(fd)
        if "/dev/nvidia" in target:
            held.add(target)
    return sorted(held)


def compute_apps(machine):
    text = machine.run("manager", ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"])
    return {int(line.split(",")[0]): line.split(",")[1].strip() for line in text.splitlines() if line[:1].isdigit()}


def manager(machine):
    """A bench's own Manager while its engine copies: nothing of the driver is in it."""
    command = [machine.binary("orbitkv"), "bench", "restore", "--device", machine.arguments.device, "--json"]
    if shutil.which("nvidia-smi") is None:
        raise Missing("no nvidia-smi on this machine")
    engine = subprocess.Popen(
        [*command, "--case", "1MiB", "--runs", "50"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT,
        env=machine.environment,
    )  # fmt: skip
    try:
        limit = time.monotonic() + min(WAITS_S, machine.left())
        while not children_of(engine.pid) or not traces_of_cuda(engine.pid):
            if engine.poll() is not None or time.monotonic() > limit:
                raise Failed("the bench's Manager and its engine were not seen")
            time.sleep(0.05)
        pid = children_of(engine.pid)[0]
        time.sleep(2)
        apps, held = compute_apps(machine), traces_of_cuda(pid)
        if pid in apps or held:
            raise Failed(f"the Manager holds {apps.get(pid, 'no')} device memory and {held}")
        shown = {"nvidia_smi_shows_engine": engine.pid in apps, "engines": list(apps.values())}
        return [{"manager_device_memory": 0, **shown}]
    finally:
        engine.terminate()
        engine.wait()


def python_program(machine, step, program, extra=()):
    path = ROOT / program
    if not path.exists():
        raise Missing(f"{program} is not there")
    machine.put_build_first()  # a build here made it just now
    if machine.arguments.engine:
        use_engine(machine)
    try:
        machine.run(step, [machine.arguments.python, "-c", "import torch, orbitkv"])
    except Failed as error:
        raise Missing(f"{machine.arguments.python} cannot import torch and orbitkv: {error}") from None
    command = [machine.arguments.python, str(path), "--orbitkv", machine.binary("orbitkv"), *extra]
    return json_lines(machine.run(step, command))


def torch(machine):
    extra = ["--device", machine.arguments.device, "--replays", "100" if machine.arguments.quick else "1000"]
    return python_program(machine, "torch", "tests/gpu/torch_roundtrip.py", extra)[-1:]


def interference(machine):
    extra = ["--device", machine.arguments.device, *(["--quick"] if machine.arguments.quick else [])]
    return python_program(machine, "interference", "bench/interference.py", extra)


def use_engine(machine):
    """The environment in which vLLM can be imported; this build stays in front."""
    if machine.has_engine:
        return
    if not machine.arguments.engine:
        raise Missing("no --engine DIR was given")
    machine.has_engine = True
    directory = pathlib.Path(machine.arguments.engine).resolve()
    install = directory / "install.sh"
    if not install.exists():
        machine.prepend("PYTHONPATH", str(directory))
        return
    text = machine.run("engine", ["bash", "-c", f". {install} >&2 && env -0"])
    machine.environment.update(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
    machine.put_build_first()


def vllm(machine):
    use_engine(machine)
    found = []
    for load in ("async", "layers"):
        found += python_program(machine, "vllm", "tests/gpu/vllm_job.py", ["--load", load])[-1:]
    return found


def peers(machine):
    use_engine(machine)
    extra = ["--cold", "4", "--rounds", "2"] if machine.arguments.quick else []
    path = ROOT / "bench/vllm_peers.py"
    command = [machine.arguments.python, str(path), "compare", "--orbitkv", machine.binary("orbitkv"), *extra]
    return json_lines(machine.run("peers", command))[-1:]


# In this order; the seconds that each is worth starting with.
STEPS = {
    "driver": (driver, 1), "build": (build, 5), "suites": (suites, 30), "soak": (soak, 30), "retire": (retire, 120),
    "upgrade": (upgrade, 60),
    "copy": (copy, 30), "restore": (restore, 30), "publish": (publish, 20), "replay": (replay, 15),
    "manager": (manager, 10), "torch": (torch, 20), "interference": (interference, 30), "vllm": (vllm, 120),
    "peers": (peers, 200),
}  # fmt: skip
ALWAYS = ("driver", "build")


# ---- the round ----


def run_step(machine, name):
    """{"step", "state": ok | missing | failed, "seconds", "why", "lines", "rows"}"""
    function, least = STEPS[name]
    result = {"step": name, "state": "ok", "why": "", "lines": [], "rows": []}
    started = time.monotonic()
    try:
        if machine.left() < least:
            raise Missing(f"{int(machine.left())} s are left of --limit; run it with --only {name}")
        result["lines"] = function(machine)
        result["rows"] = gpu_bars.rows_of(name, result["lines"])
    except Missing as error:
        result.update(state="missing", why=str(error))
    except (Failed, OSError, ValueError, KeyError) as error:
        result.update(state="failed", why=str(error) or repr(error))
    result["seconds"] = round(time.monotonic() - started, 1)
    return result


def print_table(results):
    for result in results:
        print(f"{result['step']:<14}{result['state']:<9}{result['seconds']:>7.1f} s  {result['why']}")
        for r in result["rows"]:
            print(f"    {'  ' if r['met'] else '! '}{r['what']:<68}{r['found']:>10}  {r['bar']}")


def summary(results):
    rows = [r for result in results for r in result["rows"]]
    return {
        "ok": all(result["state"] != "failed" for result in results),
        "missing": {r["step"]: r["why"] for r in results if r["state"] == "missing"},
        "failed": {r["step"]: r["why"] for r in results if r["state"] == "failed"},
        "bars_met": sum(r["met"] for r in rows),
        "bars_missed": [f"{r['what']}: {r['found']} ({r['bar']})" for r in rows if not r["met"]],
        "steps": {r["step"]: {"state": r["state"], "seconds": r["seconds"], "lines": r["lines"]} for r in results},
    }


def parse(argv=None):
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description="The whole round on a machine with a GPU.")
    parser.add_argument("--build", help="a build made elsewhere (default: builds here)")
    parser.add_argument("--only", help="steps, separated by commas")
    parser.add_argument("--list", action="store_true", help="names the steps")
    parser.add_argument("--quick", action="store_true", help="fewer runs and cases")
    parser.add_argument("--engine", help="for the vLLM steps: Python packages, or a folder with install.sh")
    parser.add_argument("--python", default=sys.executable, help="that imports torch")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--soak", type=int, default=0, help="rounds of the soak [10000; quick: 1000]")
    parser.add_argument("--out", default=str(ROOT / "build" / "gpu-check-results"))
    parser.add_argument("--limit", type=float, default=3600, help="seconds for all steps")
    arguments = parser.parse_args(argv)
    arguments.steps = list(STEPS)
    if arguments.only:
        wanted = arguments.only.split(",")
        unknown = [name for name in wanted if name not in STEPS]
        if unknown:
            parser.error(f"no step is called {unknown[0]}; there are: {', '.join(STEPS)}")
        arguments.steps = [name for name in STEPS if name in wanted or name in ALWAYS]
    return arguments


def main(argv=None):
    arguments = parse(argv)
    if arguments.list:
        print("\n".join(STEPS))
        return 0
    machine, results = Machine(arguments), []
    for name in arguments.steps:
        results.append(run_step(machine, name))
        print_table(results[-1:])
        sys.stdout.flush()
        if name in ALWAYS and results[-1]["state"] != "ok":
            break
    found = summary(results)
    (machine.out / "gpu-check.json").write_text(json.dumps(found, indent=1))
    for missed in found["bars_missed"]:
        print(f"bar missed: {missed}")
    print(json.dumps(found), flush=True)
    if not found["ok"]:
        return 1
    return SKIPPED if "driver" in found["missing"] else 0


if __name__ == "__main__":
    sys.exit(main())
