"""The namespace: canonical text of everything that changes the meaning of page bytes.

Two engines share blocks only if their texts are equal, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
from typing import Any

FINGERPRINT_VARIABLE = "ORBITKV_MODEL_FINGERPRINT"
SCOPE_VARIABLE = "ORBITKV_CACHE_SCOPE"
_SCOPE = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_VERSION = 1
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def model_fingerprint(model: str, overrides: Any, revision: str | None = None) -> str:
    """SHA-256 over the model's configuration and weights, or the operator's word for it."""
    given = os.environ.get(FINGERPRINT_VARIABLE)
    if given:
        return "env-" + hashlib.sha256(given.encode()).hexdigest()
    directory = pathlib.Path(model)
    if not directory.is_dir():
        raise ValueError(
            f"OrbitKV cannot fingerprint model {model!r} (revision {revision}): it is not a local directory. "
            f"Give a directory, or set {FINGERPRINT_VARIABLE} to a text that changes with the weights."
        )
    weights = sorted(p for p in directory.iterdir() if p.suffix in _WEIGHTS)
    if not weights:
        raise ValueError(
            f"OrbitKV found no weight files in {model!r}; set {FINGERPRINT_VARIABLE} to a text that "
            "changes with the weights."
        )
    digest = hashlib.sha256()
    for path in [directory / "config.json", *weights]:
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, hashlib.sha256).hexdigest()
        digest.update(f"{path.name}\0{content}\0".encode())
    digest.update(repr(overrides).encode())
    return digest.hexdigest()


def cache_scope(option: str | None = None) -> str:
    """The tenant whose pages these are: orbitkv.cache_scope, else the environment. Empty: none."""
    name = "orbitkv.cache_scope" if option is not None else SCOPE_VARIABLE
    scope = option if option is not None else os.environ.get(SCOPE_VARIABLE, "")
    if scope != "" and not (isinstance(scope, str) and _SCOPE.fullmatch(scope)):
        raise ValueError(
            f"{name} is {scope!r}; a cache scope has 1 to 64 letters, digits, dots, underscores or dashes"
        )
    return scope


def canary_of(hash_function: Any, none_hash: bytes) -> str:
    """The engine's hash of a known first block: differs if seed, algorithm or encoding do."""
    return hash_function((none_hash, (1, 2, 3, 4), None)).hex()


def worker_canary(algorithm: str) -> str:
    """The canary in a process where the engine has not set its own none-hash up."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils

    function = get_hash_fn_by_name(algorithm)
    return canary_of(function, function(kv_cache_utils.resolve_none_hash_seed(function)))


def scheduler_canary(algorithm: str) -> str:
    """The canary under the none-hash that this engine's requests are hashed with."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils

    return canary_of(get_hash_fn_by_name(algorithm), kv_cache_utils.NONE_HASH)


def instruction_set(vllm_config: Any, spec: Any) -> str:
    """CPU pages are packed for the instruction set in use; GPU pages are not packed."""
    import torch

    if vllm_config.device_config.device_type != "cpu":
        return "none"
    capability = torch.backends.cpu.get_cpu_capability()
    try:
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        kind = _get_attn_isa(
            spec.dtype, spec.block_size, spec.head_size, vllm_config.cache_config.cache_dtype
        )
    except (ImportError, TypeError):
        kind = "unknown"
    return f"{capability}/{kind}"


def attention_backend(vllm_config: Any, layer_name: str) -> str:
    layer = vllm_config.compilation_config.static_forward_context[layer_name]
    backend = getattr(layer, "attn_backend", None)
    return backend.get_name() if backend is not None else type(layer.impl).__name__


def namespace_text(vllm_config: Any, kv_cache_config: Any, scope: str = "") -> str:
    """`scope` splits what model and engine would share; without one the text is as ever."""
    import vllm

    model = vllm_config.model_config
    cache = vllm_config.cache_config
    group = kv_cache_config.kv_cache_groups[0]
    spec = group.kv_cache_spec
    fields = {
        "v": _VERSION,
        "model": model_fingerprint(model.model, model.hf_overrides, model.revision),
        "dtype": str(model.dtype).removeprefix("torch."),
        "quant": model.quantization or "none",  # of weights as they are loaded
        "kv": f"{cache.cache_dtype}/{str(spec.dtype).removeprefix('torch.')}",
        "layout": kv_cache_config.kv_cache_layout,
        "block": spec.block_size,
        "backend": attention_backend(vllm_config, group.layer_names[0]),
        "isa": instruction_set(vllm_config, spec),
        "hash": cache.prefix_caching_hash_algo,
        "canary": worker_canary(cache.prefix_caching_hash_algo),
        "tp": vllm_config.parallel_config.tensor_parallel_size,
        "engine": "vllm " + vllm.__version__,
    }
    if scope:
        fields["scope"] = scope
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))
