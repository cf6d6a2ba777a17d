#!/usr/bin/env python3
"""Time to first token of a real vLLM on one GPU, with and without an outside KV cache.

    vllm_peers.py MODE [options]      one engine      MODE: none | native | orbitkv | lmcache | pega
    vllm_peers.py compare [MODES]     one engine after another, and a table (default: none orbitkv native none)

    cold   prompts that nobody has computed, one at a time
    hbm    the same prompts again, from the engine's own GPU cache
    warm   the same prompts after reset_prefix_cache(): from the outside cache
    burst  all prompts at once: warm, then hbm
The model is a Llama with weights that are not loaded (vLLM's load_format=dummy): times are
real, text is not. KV per token: 4 KiB a layer (32 layers: that of Llama-3.1-8B).
orbitkv starts its Manager itself (--orbitkv BIN) and, with --trace, prints a table of where
its restores and saves spent their time. lmcache and pega need their servers running:
    lmcache server --port 5555 --l1-size-gb 24 --eviction-policy LRU --disable-observability
    pegaflow-server --addr 127.0.0.1:50055 --pool-size 24gb
The last line is JSON.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "python"))

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "CUDA_MODULE_LOADING": "LAZY",
    "PYTHONHASHSEED": "0",
    "LMCACHE_DISABLE_BANNER": "1",
    "ORBITKV_MODEL_FINGERPRINT": "vllm_peers: a model without weights",
}
MODES = ("none", "native", "orbitkv", "lmcache", "pega")
BYTES_A_TOKEN = 4096  # and layer
VOCABULARY = 32000
LINK_BYTES = 1 << 30
LAND_S = 60  # for saves to end


# ---- one engine ----


def model_directory(arguments, directory):
    """config.json alone: no weights are read."""
    hidden, inner, heads = (4096, 14336, 32) if arguments.size == "8b" else (2048, 5632, 16)
    fields = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": arguments.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 65536,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    pathlib.Path(directory, "config.json").write_text(json.dumps(fields))
    return directory


def connector(arguments, socket):
    """kv_transfer_config of a mode; None: without."""
    both = {"kv_role": "kv_both"}
    if arguments.mode == "none":
        return None
    if arguments.mode == "native":
        size = {"cpu_bytes_to_use": int(arguments.gib * 2**30)}
        return {**both, "kv_connector": "OffloadingConnector", "kv_connector_extra_config": size}
    if arguments.mode == "lmcache":
        where = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": 5555}
        return {**both, "kv_connector": "LMCacheMPConnector", "kv_connector_extra_config": where}
    if arguments.mode == "pega":
        return {**both, "kv_connector": "PegaKVConnector"}
    extra = {
        "orbitkv.bootstrap_socket": socket,
        "orbitkv.load": arguments.load,
        "orbitkv.copy_method": arguments.copy_method,
        "orbitkv.copy_pace": arguments.copy_pace,
    }
    # Layer-ready loads need an engine that ends the requests of a failed load.
    policy = "recompute" if arguments.load == "async" else "fail"
    return {
        **both,
        "kv_connector": "OrbitKVConnector",
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": extra,
    }


def engine_of(arguments, directory, socket):
    from vllm import LLM

    options = {}
    if (outside := connector(arguments, socket)) is not None:
        options["kv_transfer_config"] = outside
    if not arguments.overlap:
        options["async_scheduling"] = False
    return LLM(
        model=model_directory(arguments, directory),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        enforce_eager=not arguments.graphs,
        seed=0,
        max_model_len=arguments.tokens + 64,
        gpu_memory_utilization=arguments.utilization,
        enable_prefix_caching=True,
        prefix_caching_hash_algo="sha256_cbor",
        attention_config={"backend": arguments.backend},
        **options,
    )


class Bench:
    def __init__(self, arguments, llm):
        from vllm import SamplingParams

        self.arguments, self.llm = arguments, llm
        self.sampling = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
        self.first = {}  # prompt -> first token of its cold run
        self.result = {"same_first_token": True}

    def prompts(self, count, seed):
        import torch

        generator = torch.Generator().manual_seed(seed)
        shape = (count, self.arguments.tokens)
        return torch.randint(3, VOCABULARY - 1, shape, generator=generator).tolist()

    def generate(self, prompts):
        """(milliseconds, outputs) of one call."""
        from vllm import TokensPrompt

        ids = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
        start = time.perf_counter()
        outputs = self.llm.generate(ids, self.sampling, use_tqdm=False)
        return (time.perf_counter() - start) * 1e3, outputs

    def serial(self, name, prompts, check=True):
        times, cached = [], []
        for number, prompt in enumerate(prompts):
            milliseconds, (output,) = self.generate([prompt])
            times.append(milliseconds)
            cached.append(output.num_cached_tokens)
            if check:
                token = output.outputs[0].token_ids[0]
                self.result["same_first_token"] &= self.first.setdefault(number, token) == token
            time.sleep(self.arguments.pause)
        found = {"p50": statistics.median(times), "min": min(times), "max": max(times), "cached": min(cached)}
        self.add(name, found)

    def burst(self, name, prompts):
        milliseconds, outputs = self.generate(prompts)
        self.add(name, {"ms": milliseconds, "cached": min(o.num_cached_tokens for o in outputs)})

    def add(self, name, found):
        found = {key: round(value, 2) for key, value in found.items()}
        self.result[name] = found
        print(json.dumps({name: found}), flush=True)

    def reset(self):
        """Empties the engine's own cache, once the blocks of running saves are free."""
        deadline = time.monotonic() + LAND_S
        time.sleep(self.arguments.land)
        while not self.llm.reset_prefix_cache():
            if time.monotonic() > deadline:
                raise SystemExit(f"blocks are still held after {LAND_S} s")
            time.sleep(0.1)

    def run(self):
        a = self.arguments
        self.generate([[5] * 512])
        self.generate(self.prompts(1, 999))  # its shapes, too
        self.reset()
        self.serial("cold_extra", self.prompts(a.cold, 7), check=False)
        self.reset()
        prompts = self.prompts(a.prompts, 1)
        self.serial("cold", prompts)
        self.serial("hbm", prompts)
        for number in range(a.rounds):
            self.reset()
            self.serial(f"warm_{number + 1}", prompts)
        self.reset()
        self.burst("burst_warm", prompts)
        self.burst("burst_hbm", prompts)
        return self.result


def link_milliseconds(size):
    """One copy of `size` bytes from pinned memory, by the measured rate of a large one."""
    import torch

    host = torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(LINK_BYTES, dtype=torch.uint8, device="cuda")
    best = float("inf")
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        device.copy_(host, non_blocking=True)
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end))
    return best * size / LINK_BYTES


def link_in_a_process(size):
    """So that no CUDA context stays in this one."""
    code = f"import vllm_peers; print(vllm_peers.link_milliseconds({size}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=HERE)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


# ---- where the time goes ----


STAGES = ("readiness", "dispatched", "dequeued", "claimed", "enqueued", "drained")


def stage_table(path):
    """Median milliseconds since the call at each stage, for restores and saves of a trace."""
    lines = []
    for line in pathlib.Path(path).read_text().splitlines():
        with contextlib.suppress(ValueError):  # cut off by the engine's end
            lines.append(json.loads(line))
    table = {}
    for kind in ("restore", "save"):
        of = [x for x in lines if x.get("kind") == kind and x.get("success") and x.get("bytes")]
        if not of:
            continue
        row = {s: round(statistics.median(x["stages_ns"].get(s, 0) for x in of) / 1e6, 3) for s in STAGES}
        seconds = [(x["stages_ns"]["drained"] - x["stages_ns"]["claimed"]) / 1e9 for x in of]
        rates = [x["bytes"] / s / 1e9 for x, s in zip(of, seconds, strict=True) if s > 0]
        row["operations"], row["MiB"] = len(of), round(statistics.median(x["bytes"] for x in of) / 2**20, 1)
        row["GB/s"] = round(statistics.median(rates), 2) if rates else None
        row["method"] = sorted({x.get("method", "") for x in of})
        table[kind] = row
    return table


def print_stages(table):
    for kind, row in table.items():
        stages = "  ".join(f"{stage} {row[stage]}" for stage in STAGES)
        print(f"  {kind:<8} n={row['operations']} {row['MiB']} MiB {row['GB/s']} GB/s {row['method']}  ms: {stages}")


# ---- runs ----


def run_one(arguments):
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        socket = trace = None
        if arguments.mode == "orbitkv":
            from manager_process import ManagerProcess

            if arguments.orbitkv:
                os.environ["ORBITKV_BIN"] = os.path.abspath(arguments.orbitkv)
            socket = stack.enter_context(ManagerProcess(pool=f"{int(arguments.gib * 1024)}MiB")).socket
            if arguments.trace:
                trace = os.environ["ORBITKV_TRACE_TRANSFERS"] = os.path.abspath(arguments.trace)
                pathlib.Path(trace).unlink(missing_ok=True)
        size = arguments.tokens * arguments.layers * BYTES_A_TOKEN
        link = link_in_a_process(size)
        llm = engine_of(arguments, directory, socket)
        result = {"mode": arguments.mode, **versions(), "mib": size / 2**20, "link_ms": link and round(link, 2)}
        if arguments.mode == "orbitkv":
            result.update(load=arguments.load, copy_method=arguments.copy_method, copy_pace=arguments.copy_pace)
        result.update(Bench(arguments, llm).run())
        bars(arguments, result)
        llm.llm_engine.engine_core.shutdown()
        if trace and os.path.exists(trace):
            result["stages"] = stage_table(trace)
            print_stages(result["stages"])
    print(json.dumps(result), flush=True)
    return 0


def versions():
    import torch
    import vllm

    return {"vllm": vllm.__version__, "torch": torch.__version__}


def bars(arguments, result):
    """Best warm round and burst beside the engine's own cache plus 1.15 x the link."""
    warm = min((result[f"warm_{n + 1}"] for n in range(arguments.rounds)), key=lambda x: x["p50"], default=None)
    if warm is None:
        return
    result["warm_ms"], result["hbm_ms"] = warm["p50"], result["hbm"]["p50"]
    if result["link_ms"]:
        count = arguments.prompts
        result["warm_bar_ms"] = round(result["hbm_ms"] + 1.15 * result["link_ms"], 2)
        result["burst_bar_ms"] = round(result["burst_hbm"]["ms"] + 1.15 * count * result["link_ms"], 2)


def compare(arguments, rest):
    """Every mode in a process of its own; the rest of the command line goes to all."""
    found = []
    for mode in arguments.modes or ["none", "orbitkv", "native", "none"]:
        command = [sys.executable, str(HERE / "vllm_peers.py"), mode, *rest]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        lines = done.stdout.splitlines()
        if done.returncode != 0 or not lines:
            print(f"{mode}: ended with {done.returncode}\n{done.stdout[-2000:]}", file=sys.stderr)
            continue
        found.append(json.loads(lines[-1]))
        print(json.dumps(found[-1]), flush=True)
    alone = [x["cold_extra"]["p50"] for x in found if x["mode"] == "none"]
    base = statistics.mean(alone) if alone else None
    print(f"{'':<10}{'cold':>9}{'over':>8}{'hbm':>9}{'warm':>9}{'bar':>9}{'burst':>9}{'hbm':>9}{'bar':>9}   ms")
    for x in found:
        cold = x["cold_extra"]["p50"]
        x["cold_over"] = round((cold / base - 1) * 100, 2) if base else None
        cells = [x.get("hbm_ms"), x.get("warm_ms"), x.get("warm_bar_ms")]
        cells += [x["burst_warm"]["ms"], x["burst_hbm"]["ms"], x.get("burst_bar_ms")]
        over = f"{x['cold_over']:+.2f}%" if base else ""
        print(f"{x['mode']:<10}{cold:>9.1f}{over:>8}" + "".join(f"{c:>9.1f}" if c else f"{'':>9}" for c in cells))
    print(json.dumps({"runs": found, "cold_noise_ms": round(max(alone) - min(alone), 2) if alone else None}))
    return 0 if found else 1


def parser_of_options():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter, epilog=__doc__
    )
    parser.add_argument("mode", choices=[*MODES, "compare"])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=10240, help="of a prompt")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2, help="of warm prompts")
    parser.add_argument("--cold", type=int, default=16, help="further prompts, computed once, for the cold time")
    parser.add_argument("--size", choices=["small", "8b"], default="8b", help="8b: 16 GB of weights")
    parser.add_argument("--gib", type=float, default=40, help="of DRAM for native and orbitkv")
    parser.add_argument("--backend", default="FLASH_ATTN")
    parser.add_argument("--utilization", type=float, default=0.5, help="of the GPU's memory")
    parser.add_argument("--graphs", action="store_true", help="torch.compile and CUDA graphs; default: eager")
    parser.add_argument("--no-overlap", dest="overlap", action="store_false", help="without async scheduling")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between prompts")
    parser.add_argument("--land", type=float, default=1.0, help="seconds before the engine's cache is emptied")
    parser.add_argument("--orbitkv", help="the Manager's binary (default: build/release/bin/orbitkv)")
    parser.add_argument("--load", default="auto", choices=["auto", "layers", "async"], help="orbitkv.load")
    parser.add_argument("--copy-method", default="auto", choices=["auto", "direct", "kernel"])
    parser.add_argument("--copy-pace", default="full", choices=["full", "gentle"])
    parser.add_argument("--trace", help="file for orbitkv's transfers; its stages are printed")
    parser.add_argument("--modes", nargs="+", choices=MODES, help="of compare, in this order")
    return parser


def main():
    parser = parser_of_options()
    arguments = parser.parse_args()
    if arguments.mode != "compare":
        return run_one(arguments)
    given = list(sys.argv[1:])
    given.remove("compare")
    if arguments.modes:
        at = given.index("--modes")
        del given[at : at + 1 + len(arguments.modes)]
    return compare(arguments, given)


if __name__ == "__main__":
    sys.exit(main())
