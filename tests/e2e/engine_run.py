#!/usr/bin/env python3
"""Runs one vLLM engine offline on the CPU and writes what it generated as JSON.

    engine_run.py --model DIR --job FILE [--engine JSON] [--multiprocess]

The job file (JSON) says what to do, see run_job(). Only float32 gives tokens that do
not depend on batch composition and process layout.
"""

import argparse
import gc
import json
import os
import signal
import sys
import time

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
BLOCK_TOKENS = 32


def prompts(count, length, seed=0, shared=0, vocabulary=512):
    """Token ids that look random and are the same everywhere; the first `shared` are common."""

    def token(stream, position):
        x = (stream * 1000003 + position * 7919 + seed * 104729 + 12345) & 0xFFFFFFFF
        x = ((x ^ (x >> 15)) * 2246822519) & 0xFFFFFFFF
        return 3 + (x ^ (x >> 13)) % (vocabulary - 3)

    return [[token(0 if i < shared else p + 1, i) for i in range(length)] for p in range(count)]


def transfer_config(connector, socket=None, module=None, **extra):
    """kv_transfer_config of an engine that uses the Manager at `socket`."""
    return {
        "kv_connector": connector,
        "kv_connector_module_path": module,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"orbitkv.bootstrap_socket": socket, **extra},
    }


def build(model, **options):
    from vllm import LLM

    settings = {
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 1024,
        "max_num_seqs": 4,
        "block_size": BLOCK_TOKENS,
        "kv_cache_memory_bytes": 64 << 20,
        "prefix_caching_hash_algo": "sha256_cbor",
        "disable_log_stats": False,
        "seed": 0,
    }
    return LLM(model=model, **{**settings, **options})


def sampling(max_tokens):
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)


def counters(llm):
    """Totals of the engine's own cache counters."""
    total = {}
    for metric in llm.get_metrics():
        if getattr(metric, "value", None) is not None:
            total[metric.name] = total.get(metric.name, 0) + metric.value
    keep = ("prefix_cache", "preemption", "prompt_tokens")
    return {name: value for name, value in total.items() if any(part in name for part in keep)}


def describe(output):
    done = output.outputs[0]
    return {
        "tokens": list(done.token_ids),
        "cached": output.num_cached_tokens,
        "finish": done.finish_reason,
    }


def settle(llm, seconds=20):
    """In the in-process layout nobody steps an idle engine: step until it has no open
    saves. Returns whether it got there."""
    scheduler = getattr(getattr(llm.llm_engine.engine_core, "engine_core", None), "scheduler", None)
    deadline = time.monotonic() + seconds
    while scheduler is not None and scheduler.has_requests():
        if time.monotonic() > deadline:
            return False
        llm.llm_engine.step()
    return True


def pass_numbers(job):
    left = job.get("passes", 1)
    number = 0
    while left:
        if not job.get("until") or os.path.exists(job["until"]):
            left -= 1
        yield number
        number += 1


def run_job(llm, job):
    """passes of generate over job["prompts"]; between them the engine's own prefix cache
    is emptied if job["reset"]; before those in job["reset_connector"] the connector is reset, too.
    job["one_by_one"]: a request at a time, so that there are
    many operations. job["until"]: pass after pass until that file exists, and then as
    many as job["passes"] says."""
    ids = [{"prompt_token_ids": x} for x in job["prompts"]]
    report, before = {"runs": []}, counters(llm)
    for number in pass_numbers(job):
        if number and job.get("reset"):
            with_connector = number in job.get("reset_connector", ())
            assert llm.reset_prefix_cache(reset_connector=with_connector), "blocks are still held"
        start = time.monotonic()
        batches = [[x] for x in ids] if job.get("one_by_one") else [ids]
        outputs = []
        for batch in batches:
            outputs += llm.generate(batch, sampling(job.get("max_tokens", 8)), use_tqdm=False)
        seconds = time.monotonic() - start
        settled = settle(llm)
        after = counters(llm)
        change = {name: value - before.get(name, 0) for name, value in after.items()}
        before = after
        report["runs"].append(
            {"seconds": seconds, "outputs": [describe(o) for o in outputs], "counters": change, "settled": settled}
        )
    return report


def write_report(path, report):
    with open(path + ".part", "w") as file:
        json.dump(report, file)
    os.rename(path + ".part", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--job", required=True, help="JSON file; its 'report' is written")
    parser.add_argument("--engine", default="{}", help="further arguments of the engine, as JSON")
    parser.add_argument("--multiprocess", action="store_true", help="engine core and worker in processes of their own")
    arguments = parser.parse_args()
    with open(arguments.job) as file:
        job = json.load(file)
    os.environ.update(ENVIRONMENT)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if arguments.multiprocess else "0"
    begin = time.monotonic()
    llm = build(arguments.model, **json.loads(arguments.engine))
    started = time.monotonic()
    report = run_job(llm, job)
    report["seconds_to_start"] = started - begin
    write_report(job["report"], report)
    if job.get("hold"):
        signal.pause()  # until killed
    gc.collect = lambda *_: 0  # the process ends: vLLM need not collect its heap first
    llm.llm_engine.engine_core.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
