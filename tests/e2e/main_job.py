#!/usr/bin/env python3
"""The main job: an engine publishes its KV pages and is killed; a new engine process
restores them byte-exact and generates the same tokens.

    main_job.py --orbitkv build/release/bin/orbitkv     with PYTHONPATH=build/release/python

1. a reference: the prompts in an engine without connector
2. an engine in its multi-process layout computes and publishes; when the Manager holds
   every page, engine core and worker get SIGKILL and are seen gone
3. a new engine restores and generates
Then tokens, page bytes (dumped from the engines' tensors, not through our client) and the
engine's own counters are compared. A table for a person, then JSON on the last line; exit
status 0 only if all is well.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

import pages  # noqa: E402
import processes  # noqa: E402
from engine_run import BLOCK_TOKENS, prompts, transfer_config  # noqa: E402
from manager_process import ManagerProcess  # noqa: E402
from reports import tokens  # noqa: E402

PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 3, 300, 16
LIMIT_S = 600


class Job:
    def __init__(self, arguments, work):
        self.model = arguments.model_dir or str(work / "model")
        self.work = work
        self.python_path = arguments.python_path
        self.manager = ManagerProcess(pool="256MiB", log=str(work / "manager.log"))

    def environment(self, **extra):
        paths = [self.python_path, str(HERE), os.environ.get("PYTHONPATH")]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p), **extra}

    def make_model(self):
        if not pathlib.Path(self.model, "config.json").exists():
            subprocess.run(
                [sys.executable, str(HERE / "tiny_model.py"), self.model], check=True, env=self.environment()
            )

    def start(self, name, connector=True, hold=False):
        """An engine process of its own; its report appears when it has generated."""
        report = self.work / f"{name}.json"
        job = {
            "prompts": prompts(PROMPTS, PROMPT_TOKENS),
            "max_tokens": NEW_TOKENS,
            "report": str(report),
            "hold": hold,
        }
        path = self.work / f"{name}.job"
        path.write_text(json.dumps(job))
        command = [sys.executable, str(HERE / "engine_run.py"), "--model", self.model, "--job", str(path)]
        if connector:
            engine = {"kv_transfer_config": transfer_config("DumpConnector", self.manager.socket, "dump_connector")}
            command += ["--multiprocess", "--engine", json.dumps(engine)]
        with open(self.work / f"{name}.log", "wb") as log:
            environment = self.environment(ORBITKV_TEST_DUMP=str(self.work / name))
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment), report

    def result(self, name, process, report):
        """The report, as soon as it is there; the log's end if the engine failed."""
        deadline = time.monotonic() + LIMIT_S
        while not report.exists():
            if process.poll() not in (None, 0) or time.monotonic() > deadline:
                log = (self.work / f"{name}.log").read_text(errors="replace")
                raise SystemExit(f"engine '{name}' gave no report; its log ends:\n{log[-4000:]}")
            time.sleep(0.05)
        return json.loads(report.read_text())

    def run_to_end(self, name, **options):
        process, report = self.start(name, **options)
        result = self.result(name, process, report)
        if process.wait(LIMIT_S) != 0:
            raise SystemExit(f"engine '{name}' ended with {process.returncode}; see {self.work}/{name}.log")
        return result

    def publish_and_kill(self):
        process, report = self.start("published", hold=True)
        result = self.result("published", process, report)
        want = len(pages.read_pages(self.work / "published" / "published"))
        self.manager.wait_for(lambda status: status["blocks"] >= want, f"{want} blocks in the Manager", 60)
        engine = processes.descendants(process.pid)
        if len(engine) < 2:
            raise SystemExit(f"expected engine core and worker below {process.pid}, found {engine}")
        processes.kill_all([*engine, process.pid])
        process.wait()
        print(f"killed with SIGKILL and seen gone: {len(engine) + 1} processes of the first engine", flush=True)
        return result


def summarise(job, reference, first, second):
    run = second["runs"][0]
    _, total, wrong = pages.compare([job.work / "published" / "published"], job.work / "restored" / "loaded")
    return {
        "restored_tokens": int(run["counters"].get("vllm:external_prefix_cache_hits", 0)),
        "restored_bytes": total,
        "tokens_equal": tokens(reference) == tokens(first) == tokens(second),
        "wrong_bytes": wrong,
        "seconds": {
            "cold": round(first["runs"][0]["seconds"], 3),
            "restored": round(run["seconds"], 3),
        },
    }


def is_well(result):
    expected = PROMPTS * (PROMPT_TOKENS // BLOCK_TOKENS) * BLOCK_TOKENS
    return (
        result["restored_tokens"] == expected
        and result["restored_bytes"] > 0
        and result["tokens_equal"]
        and result["wrong_bytes"] == 0
    )


def table(result):
    rows = [
        ("tokens restored", result["restored_tokens"]),
        ("bytes restored", result["restored_bytes"]),
        ("wrong bytes", result["wrong_bytes"]),
        ("same tokens as without OrbitKV", "yes" if result["tokens_equal"] else "NO"),
        ("seconds, cold / restored", f"{result['seconds']['cold']} / {result['seconds']['restored']}"),
    ]
    return "\n".join(f"  {name:<32}{value}" for name, value in rows)


def run(arguments, work):
    if arguments.orbitkv:
        os.environ["ORBITKV_BIN"] = os.path.abspath(arguments.orbitkv)
    processes.adopt_orphans()
    job = Job(arguments, work)
    job.make_model()
    reference = job.run_to_end("reference", connector=False)
    with job.manager:
        first = job.publish_and_kill()
        second = job.run_to_end("restored")
    result = summarise(job, reference, first, second)
    print(table(result))
    print(json.dumps(result), flush=True)
    return 0 if is_well(result) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--orbitkv", "--binary", help="the Manager's binary (default: build/release/bin/orbitkv)")
    parser.add_argument("--python-path", help="directory of the orbitkv package (default: as PYTHONPATH says)")
    parser.add_argument("--workdir", help="keeps logs and dumps there (default: a temporary directory)")
    parser.add_argument("--model-dir", help="a model directory; made if it is not there")
    arguments = parser.parse_args()
    if arguments.workdir:
        work = pathlib.Path(arguments.workdir).resolve()
        work.mkdir(parents=True, exist_ok=True)
        return run(arguments, work)
    with tempfile.TemporaryDirectory(prefix="orbitkv-main-job-") as work:
        return run(arguments, pathlib.Path(work))


if __name__ == "__main__":
    sys.exit(main())
