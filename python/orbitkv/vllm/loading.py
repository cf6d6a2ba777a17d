"""How a hit is loaded, decided once for an engine.

async   the request waits; it is scheduled when its pages are there and verified
layers  the request is scheduled at once: its step runs behind events, layer by layer,
        and the step's output is held until the verdict
A failed verdict takes the step's output back. Not every engine can do that: which ones
cannot, and why, is what this file knows.
"""

from __future__ import annotations

from typing import Any

ASYNC, LAYERS, AUTO = "async", "layers", "auto"
CHOICES = (AUTO, LAYERS, ASYNC)

# The native client splits a load into parts, and the Manager admits 128 parts a device. One
# step takes half: the parts of the step before it may still be counted.
_BLOCKS_A_PART = 8192
PARTS_A_STEP = 64


def parts(blocks: int) -> int:
    """Of the load of a lease of so many blocks."""
    return -(-blocks // _BLOCKS_A_PART)


def obstacles(vllm_config: Any) -> list[str]:
    """Why this engine must not let a step run ahead of its verdict. Empty: it may."""
    parallel = vllm_config.parallel_config
    found = []
    if parallel.world_size != 1:
        found.append(f"{parallel.world_size} workers (a step would need the verdict of all before any publishes)")
    if getattr(parallel, "use_ubatching", False):
        found.append("microbatches (enable_dbo): their layers run on several streams")
    if vllm_config.kv_transfer_config.kv_load_failure_policy == "recompute":
        recompute = "kv_load_failure_policy=recompute"
        if getattr(vllm_config, "use_v2_model_runner", False):
            found.append(f"{recompute} with the V2 model runner, which goes on counting from a failed step")
        if vllm_config.scheduler_config.async_scheduling:
            found.append(f"{recompute} with async scheduling, which has the next step under way by then")
    return found


def choose(setting: str, vllm_config: Any) -> str:
    """ASYNC, LAYERS or AUTO (layers unless a request is generating already) for this engine."""
    if setting == ASYNC:
        return ASYNC
    found = obstacles(vllm_config)
    if not found:
        on_gpu = vllm_config.device_config.device_type == "cuda"
        return LAYERS if setting == LAYERS else (AUTO if on_gpu else ASYNC)
    if setting == LAYERS:
        raise ValueError(
            "orbitkv.load=layers does not fit this engine: " + "; ".join(found) + ". Use kv_load_failure_policy=fail, "
            "or the V1 model runner (VLLM_USE_V2_MODEL_RUNNER=0) without async scheduling, or orbitkv.load=async."
        )
    return ASYNC


def layer_hooks_run(forward_context: Any) -> bool:
    """Whether the coming forward calls wait_for_layer_load() in every layer. A full CUDA
    graph is replayed without Python; a step without attention metadata has no layers."""
    mode = getattr(forward_context.cudagraph_runtime_mode, "name", "NONE")
    return isinstance(forward_context.attn_metadata, dict) and mode != "FULL"
