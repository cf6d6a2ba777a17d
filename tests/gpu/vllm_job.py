#!/usr/bin/env python3
"""The main job on a GPU: a real vLLM publishes its KV pages and is killed; a new one
restores them byte-exact and generates the same tokens.

    vllm_job.py --orbitkv BIN [--load async|layers|auto] [--graphs]    (PYTHONPATH: vLLM, the package)

1. an engine computes the prompts, publishes, then answers them again from its own cache:
   the tokens that restored pages must give as well
2. its processes get SIGKILL and are seen gone
3. a new engine restores and generates
Pages are compared by bytes that were read from the engines' own tensors, not through the
client. Weights are seeded and random. Importing vLLM takes longer than all of this, so
each engine's process begins to import at once, beside the others, and waits for its turn.
Lines begin with the seconds since the start. The last line is JSON; exit status 0 only if
all is well.
"""

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "e2e"), str(HERE.parent / "python")]

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONHASHSEED": "0",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",  # what is imported need not be imported again
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # looking for a GPU must not open it before the fork
    "CUDA_MODULE_LOADING": "LAZY",
}
PROMPTS, PROMPT_TOKENS, NEW_TOKENS, BLOCK_TOKENS = 3, 1000, 16, 16
WHOLE = PROMPT_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS
LIMIT_S = 400
BEGIN = time.monotonic()
# What an engine's processes import after `import vllm`.
PRELOAD = (
    "vllm.entrypoints.llm",
    "vllm.model_executor.models.llama",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu.model_runner",
)
MODES = {  # how loads run -> the failure policy under which vLLM can do that
    "async": "recompute",
    "layers": "fail",
    "auto": "fail",
}


def say(text):
    print(f"{time.monotonic() - BEGIN:7.1f} s  {text}", flush=True)


# ---- in the engine's process ----


def engine_arguments(job):
    arguments = {
        "model": job["model"],
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "enforce_eager": not job["graphs"],
        "max_model_len": 2048,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 8,
        "block_size": BLOCK_TOKENS,
        "kv_cache_memory_bytes": 256 << 20,
        "gpu_memory_utilization": 0.1,
        "prefix_caching_hash_algo": "sha256_cbor",
        "disable_log_stats": False,
        "seed": 0,
        "attention_config": {"backend": job["backend"]},
    }
    if job["connector"]:
        arguments["kv_transfer_config"] = job["connector"]
    return arguments


def passes(llm, job):
    """Tokens and cached tokens of each pass; one request at a time, so that a pass from
    the engine's own cache and one from restored pages run the same shapes."""
    import engine_run

    found = []
    for _ in range(job["passes"]):
        outputs = []
        for prompt in engine_run.prompts(PROMPTS, PROMPT_TOKENS):
            start = time.perf_counter()
            ids = [{"prompt_token_ids": prompt}]
            done = llm.generate(ids, engine_run.sampling(NEW_TOKENS), use_tqdm=False)
            outputs.append({**engine_run.describe(done[0]), "seconds": time.perf_counter() - start})
        found.append(outputs)
    return found


def preload():
    for name in PRELOAD:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever it is, the engine says it better
            say(f"{name} is imported later: {error!r}")
    # vLLM looks at a model's class in a process of its own, which imports everything again,
    # lest the class opens the GPU. This one does not.
    from vllm.model_executor.models import registry

    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda look: look()


def turn(path, parent):
    """The job, once it is there; ends with the parent."""
    while not path.exists():
        if os.getppid() != parent:
            raise SystemExit("the parent is gone")
        time.sleep(0.02)
    return json.loads(path.read_text())


def engine(path):
    parent = os.getppid()
    import engine_run
    from vllm import LLM

    preload()
    say("imported")
    job = turn(pathlib.Path(path), parent)
    say("the engine starts")
    begin = time.monotonic()
    llm = LLM(**engine_arguments(job))
    started = time.monotonic() - begin
    say("the engine is up")
    found = passes(llm, job)
    say("generated")
    report = {"passes": found, "counters": engine_run.counters(llm), "seconds_to_start": started}
    engine_run.write_report(job["report"], report)
    if job["hold"]:
        signal.pause()  # until killed
    llm.llm_engine.engine_core.shutdown()


# ---- the parent ----


class Job:
    def __init__(self, arguments, work):
        from manager_process import ManagerProcess

        self.arguments, self.work = arguments, work
        self.model = arguments.model_dir or str(work / "model")
        self.manager = ManagerProcess(pool="256MiB", log=str(work / "manager.log"))
        self.engines = {}  # name -> process

    def environment(self, **extra):
        paths = [str(HERE.parent / "e2e"), os.environ.get("PYTHONPATH")]
        return {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(p for p in paths if p), **extra}

    def make_model(self):
        if not pathlib.Path(self.model, "config.json").exists():
            script = str(HERE.parent / "e2e" / "tiny_model.py")
            subprocess.run([sys.executable, script, self.model], check=True, env=self.environment())

    def connector(self):
        import engine_run

        load = self.arguments.load
        extra = {"orbitkv.load": load, "orbitkv.copy_method": self.arguments.copy_method}
        config = engine_run.transfer_config("DumpConnector", self.manager.socket, "dump_connector", **extra)
        return {**config, "kv_load_failure_policy": MODES[load]}

    def launch(self, name):
        """A process that imports vLLM and waits for start()."""
        for suffix in (".job", ".json"):
            (self.work / (name + suffix)).unlink(missing_ok=True)
        trace = str(self.work / f"{name}.trace")
        environment = self.environment(ORBITKV_TEST_DUMP=str(self.work / name), ORBITKV_TRACE_TRANSFERS=trace)
        with open(self.work / f"{name}.log", "wb") as log:
            command = [sys.executable, str(HERE / "vllm_job.py"), "--engine", str(self.work / f"{name}.job")]
            self.engines[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def start(self, name, connected=True, hold=False, passes=1):
        import engine_run

        say(f"engine '{name}' has its turn")
        job = {
            "model": self.model,
            "graphs": self.arguments.graphs,
            "backend": self.arguments.backend,
            "connector": self.connector() if connected else None,
            "report": str(self.work / f"{name}.json"),
            "passes": passes,
            "hold": hold,
        }
        engine_run.write_report(str(self.work / f"{name}.job"), job)
        return self.engines[name]

    def end(self):
        """What still runs, of the engines."""
        import processes

        for process in self.engines.values():
            if process.poll() is None:
                processes.kill_all([*processes.descendants(process.pid), process.pid])

    def report(self, name, process):
        """As soon as it is there; the log's end if the engine failed."""
        path, deadline = self.work / f"{name}.json", time.monotonic() + LIMIT_S
        while not path.exists():
            if process.poll() not in (None, 0) or time.monotonic() > deadline:
                raise SystemExit(f"engine '{name}' gave no report; its log ends:\n{self.log(name)[-6000:]}")
            time.sleep(0.05)
        found = json.loads(path.read_text())
        say(f"engine '{name}' was up after {found['seconds_to_start']:.1f} s, and has generated")
        return found

    def log(self, name):
        return (self.work / f"{name}.log").read_text(errors="replace")

    def run_to_end(self, name, **options):
        process = self.start(name, **options)
        report = self.report(name, process)
        if process.wait(LIMIT_S) != 0:
            raise SystemExit(f"engine '{name}' ended with {process.returncode}:\n{self.log(name)[-6000:]}")
        return report

    def publish_and_kill(self):
        import pages
        import processes

        process = self.start("published", hold=True, passes=2)
        report = self.report("published", process)
        want = len(pages.read_pages(self.work / "published" / "published"))
        self.manager.wait_for(lambda status: status["blocks"] >= want, f"{want} blocks in the Manager", 60)
        say(f"{want} blocks are in the Manager")
        engine = [*processes.descendants(process.pid), process.pid]
        processes.kill_all(engine)
        say(f"killed with SIGKILL and seen gone: {len(engine)} processes of the first engine")
        return report


def tokens(report, number=0):
    return [output["tokens"] for output in report["passes"][number]]


def cached(report, number=0):
    return [output["cached"] for output in report["passes"][number]]


def summarise(job, alone, first, second):
    import pages

    published, loaded = job.work / "published" / "published", job.work / "restored" / "loaded"
    count, total, wrong = pages.compare([published], loaded)
    reference = tokens(first, 1)
    result = {
        "load": job.arguments.load,
        "graphs": job.arguments.graphs,
        "backend": job.arguments.backend,
        "restored_tokens": int(second["counters"].get("vllm:external_prefix_cache_hits", 0)),
        "restored_pages": count,
        "restored_bytes": total,
        "wrong_bytes": wrong,
        "tokens_equal_to_own_cache": tokens(second) == reference,
        "tokens_equal_to_cold_run": tokens(first) == reference,
        "own_cache_hits": cached(first, 1),
        "restored_hits": cached(second),
        "seconds_to_start": round(second["seconds_to_start"], 1),
    }
    if alone:
        result["tokens_equal_without_connector"] = tokens(alone, 1) == reference
    # A run ahead of its verdict shows in the log only when it fails.
    result["log_complaints"] = job.log("restored").count("OrbitKV:")
    result["ok"] = (
        result["tokens_equal_to_own_cache"]
        and result["restored_hits"] == result["own_cache_hits"] == [WHOLE] * PROMPTS
        and count >= PROMPTS * WHOLE // BLOCK_TOKENS
        and wrong == 0
        and result["log_complaints"] == 0
    )
    return result


def run(arguments, work):
    import processes

    if arguments.orbitkv:
        os.environ["ORBITKV_BIN"] = os.path.abspath(arguments.orbitkv)
    processes.adopt_orphans()
    job = Job(arguments, work)
    with contextlib.ExitStack() as stack:
        stack.callback(job.end)
        for name in ("published", "restored", *(["alone"] if arguments.reference else [])):
            job.launch(name)
        job.make_model()
        say("the model is made, the engines import vLLM")
        alone = job.run_to_end("alone", connected=False, passes=2) if arguments.reference else None
        stack.enter_context(job.manager)
        say("the Manager is ready")
        first = job.publish_and_kill()
        second = job.run_to_end("restored")
    say("all engines have ended")
    result = summarise(job, alone, first, second)
    for name, value in result.items():
        print(f"  {name:<32}{value}")
    if not result["ok"]:
        print(job.log("restored")[-3000:], file=sys.stderr)
    print(json.dumps(result), flush=True)
    return 0 if result["ok"] else 1


def parse(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--orbitkv", help="the Manager's binary (default: build/release/bin/orbitkv)")
    parser.add_argument("--load", default="async", choices=list(MODES), help="how hits are loaded (orbitkv.load)")
    parser.add_argument("--graphs", action="store_true", help="with torch.compile and CUDA graphs; default: eager")
    parser.add_argument("--backend", default="FLASH_ATTN", help="attention backend (TRITON_ATTN, ...)")
    parser.add_argument("--copy-method", default="auto", choices=["auto", "direct", "kernel"])
    parser.add_argument("--reference", action="store_true", help="also run an engine without the connector")
    parser.add_argument("--workdir", help="keeps logs, traces and dumps there (default: a temporary directory)")
    parser.add_argument("--model-dir", help="a model directory; made if it is not there")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main():
    arguments = parse()
    missing = [name for name in ("torch", "vllm") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"vllm_job: this Python has no {' and no '.join(missing)}; nothing was tried", file=sys.stderr)
        return 77
    if arguments.engine:
        engine(arguments.engine)
        return 0
    if arguments.workdir:
        work = pathlib.Path(arguments.workdir).resolve()
        work.mkdir(parents=True, exist_ok=True)
        return run(arguments, work)
    with tempfile.TemporaryDirectory(prefix="orbitkv-gpu-job-") as work:
        return run(arguments, pathlib.Path(work))


if __name__ == "__main__":
    sys.exit(main())
