"""Settings of the connector, and what it refuses. All of it is decided at start."""

from __future__ import annotations

import hashlib
import inspect
import pathlib
import uuid
from dataclasses import dataclass
from typing import Any

from orbitkv.vllm import loading

_PREFIX = "orbitkv."
_CHOICES = {
    "mode": ("read_write", "save_only"),
    "load": loading.CHOICES,
    "copy_method": ("auto", "direct", "kernel"),
    "copy_pace": ("full", "gentle"),
}


@dataclass(frozen=True)
class Settings:
    """kv_connector_extra_config, checked."""

    bootstrap_socket: str | None = None
    timeout_ms: int = 1000  # of a call on the engine's threads
    spin_iterations: int = 64
    mode: str = "read_write"
    load: str = loading.AUTO
    copy_method: str = "auto"
    copy_pace: str = "full"
    cache_scope: str | None = None  # None: the environment's; namespace.cache_scope() reads it

    @classmethod
    def parse(cls, extra: dict[str, Any]) -> Settings:
        values = {}
        for key, value in extra.items():
            if not key.startswith(_PREFIX):
                continue
            name = key[len(_PREFIX) :]
            if name not in cls.__dataclass_fields__:
                known = ", ".join(_PREFIX + field for field in cls.__dataclass_fields__)
                raise ValueError(f"kv_connector_extra_config: unknown key {key!r}; known keys: {known}")
            values[name] = value
        settings = cls(**values)
        for name, allowed in _CHOICES.items():
            value = getattr(settings, name)
            if value not in allowed:
                raise ValueError(f"orbitkv.{name} is {value!r}; it must be one of {', '.join(allowed)}")
        for name in ("timeout_ms", "spin_iterations"):
            value = getattr(settings, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"orbitkv.{name} is {value!r}; it must be a whole number, 0 or more")
        return settings


def instance_of(engine_id: str) -> bytes:
    """The 16 bytes that join scheduler and workers of one engine."""
    try:
        return uuid.UUID(engine_id).bytes
    except ValueError:
        return hashlib.sha256(engine_id.encode()).digest()[:16]


def refusals(vllm_config: Any, kv_cache_config: Any) -> list[str]:
    """Why this engine cannot use OrbitKV, each reason naming the setting. Empty: it can."""
    parallel = vllm_config.parallel_config
    reasons = []
    reasons += _device_refusals(vllm_config)
    if vllm_config.speculative_config is not None:
        reasons.append("speculative decoding (speculative_config)")
    if vllm_config.lora_config is not None:
        reasons.append("LoRA adapters (enable_lora): an adapter's name does not fix its weights")
    for name in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) != 1:
            reasons.append(f"{name}={getattr(parallel, name)} (must be 1)")
    if (nodes := getattr(parallel, "nnodes_within_dp", 1)) != 1:
        reasons.append(f"nnodes: the ranks of an engine stand at {nodes} hosts ({_ONE_HOST})")
    algorithm = vllm_config.cache_config.prefix_caching_hash_algo
    if algorithm not in ("sha256", "sha256_cbor"):
        reasons.append(f"prefix_caching_hash_algo={algorithm!r} (use sha256_cbor or sha256)")
    return reasons + _cache_refusals(kv_cache_config)


_ONE_HOST = "all of them, and the scheduler, must reach one Manager: keep tensor parallelism within a host"


def host() -> str:
    """The same for all processes of this host, containers included; empty: not known."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def check_one_host(ranks: dict[int, str], here: str) -> None:
    """A block counts when every rank's part of it is in one Manager: over several nothing would ever be found.

    ranks: host() of each rank's worker; here: the scheduler's. ValueError names the ranks that stand elsewhere.
    """
    elsewhere = sorted(rank for rank, there in ranks.items() if here and there and there != here)
    if elsewhere:
        listed = ", ".join(map(str, elsewhere))
        raise ValueError(f"OrbitKV cannot serve this engine: ranks {listed} stand at another host ({_ONE_HOST}).")


def _device_refusals(vllm_config: Any) -> list[str]:
    from vllm.platforms import current_platform

    kind = vllm_config.device_config.device_type
    if kind == "cpu":
        return []
    if kind != "cuda" or not current_platform.is_cuda():
        return [f"device {kind!r} on {type(current_platform).__name__} (CPU and NVIDIA GPUs so far)"]
    if getattr(vllm_config.model_config, "enable_sleep_mode", False):
        return ["sleep mode (enable_sleep_mode): it takes the pages away under a running copy"]
    return []


def _cache_refusals(kv_cache_config: Any) -> list[str]:
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups)
        return [f"{len(groups)} KV cache groups ({kinds}); only models with one group so far"]
    spec = groups[0].kv_cache_spec
    reasons = []
    if type(spec) is not FullAttentionSpec:
        reasons.append(f"KV cache spec {type(spec).__name__}; only FullAttentionSpec so far")
    elif spec.sliding_window is not None or spec.attention_chunk_size is not None:
        reasons.append("sliding-window or chunked attention layers")
    hash_block = kv_cache_config.hash_block_size
    if hash_block is not None and hash_block != spec.block_size:
        reasons.append(f"hash_block_size={hash_block} differs from the block size {spec.block_size}")
    return reasons


# What the connector overrides or relies on, and the parameters it expects.
_EXPECTED = {
    "get_num_new_matched_tokens": ("request", "num_computed_tokens"),
    "update_state_after_alloc": ("request", "blocks", "num_external_tokens"),
    "build_connector_meta": ("scheduler_output",),
    "update_connector_output": ("connector_output",),
    "bind_gpu_block_pool": ("gpu_block_pool",),
    "start_load_kv": ("forward_context",),
    "wait_for_layer_load": ("layer_name",),
    "wait_for_save": (),
    "get_transfer_results": ("finished_req_ids",),
    "get_block_ids_with_load_errors": (),
    "build_connector_worker_meta": (),
    "register_kv_caches": ("kv_caches",),
    "has_pending_push_work": (),
    "has_pending_block_frees": (),
    "reset_cache": (),
}


def api_differences(base: type) -> list[str]:
    """Where the installed connector base class is not the one this plug-in was made for."""
    found = []
    for name, parameters in _EXPECTED.items():
        method = getattr(base, name, None)
        if method is None:
            found.append(f"{name}() is missing")
            continue
        have = [p for p in inspect.signature(method).parameters if p not in ("self", "kwargs")]
        if tuple(have) != parameters:
            found.append(f"{name}({', '.join(have)}) instead of ({', '.join(parameters)})")
    return found


def check_engine(base: type, vllm_config: Any, kv_cache_config: Any) -> None:
    """Raises ValueError, naming everything that stands in the way."""
    differences = api_differences(base)
    if differences:
        raise ValueError(
            "OrbitKV does not fit this vLLM's connector API: " + "; ".join(differences) + ". "
            "Use a vLLM release that this OrbitKV names as supported."
        )
    reasons = refusals(vllm_config, kv_cache_config)
    if reasons:
        raise ValueError("OrbitKV cannot serve this engine: " + "; ".join(reasons) + ".")
