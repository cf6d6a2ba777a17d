"""What is decided at start: settings, refusals, namespace, geometry, API differences."""

import json
import types

import pytest
import torch
from orbitkv.vllm import config, geometry, namespace


def test_settings_have_defaults_and_take_their_keys():
    assert config.Settings.parse({"someone_else": 1}).mode == "read_write"
    parsed = config.Settings.parse({"orbitkv.bootstrap_socket": "/s", "orbitkv.mode": "save_only"})
    assert (parsed.bootstrap_socket, parsed.mode) == ("/s", "save_only")


@pytest.mark.parametrize(
    "extra, says",
    [
        ({"orbitkv.sokcet": "/s"}, "orbitkv.bootstrap_socket"),
        ({"orbitkv.mode": "both"}, "read_write"),
        ({"orbitkv.timeout_ms": "5"}, "orbitkv.timeout_ms"),
        ({"orbitkv.spin_iterations": -1}, "orbitkv.spin_iterations"),
    ],
)
def test_wrong_settings_are_named(extra, says):
    with pytest.raises(ValueError, match=says):
        config.Settings.parse(extra)


def test_instance_ids_are_the_engines_uuid_or_a_digest():
    text = "12345678-1234-5678-1234-567812345678"
    assert config.instance_of(text).hex() == text.replace("-", "")
    assert len(config.instance_of("decode-1")) == 16
    assert config.instance_of("decode-1") != config.instance_of("decode-2")


# ---- refusals ----


def vllm_config(**changes):
    parts = {
        "parallel_config": types.SimpleNamespace(pipeline_parallel_size=1, decode_context_parallel_size=1),
        "device_config": types.SimpleNamespace(device_type="cpu"),
        "cache_config": types.SimpleNamespace(prefix_caching_hash_algo="sha256_cbor"),
        "speculative_config": None,
        "lora_config": None,
    }
    parts.update(changes)
    return types.SimpleNamespace(**parts)


def cache_config(*specs, hash_block_size=None):
    groups = [types.SimpleNamespace(kv_cache_spec=s, layer_names=["l0"]) for s in specs]
    return types.SimpleNamespace(kv_cache_groups=groups, hash_block_size=hash_block_size)


def full(**options):
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    return FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=64, dtype=torch.float32, **options)


def sliding():
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    return SlidingWindowSpec(block_size=32, num_kv_heads=2, head_size=64, dtype=torch.float32, sliding_window=64)


def test_a_dense_engine_is_accepted():
    assert config.refusals(vllm_config(), cache_config(full(), hash_block_size=32)) == []


@pytest.mark.parametrize(
    "engine, caches, says",
    [
        ({"device_config": types.SimpleNamespace(device_type="cuda")}, [full], "cuda"),
        ({"speculative_config": object()}, [full], "speculative"),
        ({"lora_config": object()}, [full], "LoRA"),
        ({"parallel_config": types.SimpleNamespace(pipeline_parallel_size=2)}, [full], "pipeline_parallel_size=2"),
        ({"parallel_config": types.SimpleNamespace(nnodes_within_dp=2)}, [full], "at 2 hosts .*one Manager"),
        ({"cache_config": types.SimpleNamespace(prefix_caching_hash_algo="xxhash")}, [full], "xxhash"),
        ({}, [full, sliding], "2 KV cache groups .FullAttentionSpec, SlidingWindowSpec"),
        ({}, [sliding], "SlidingWindowSpec"),
        ({}, [lambda: full(sliding_window=64)], "sliding-window"),
    ],
)
def test_everything_else_is_refused_by_name(engine, caches, says):
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    with pytest.raises(ValueError, match=says):
        config.check_engine(KVConnectorBase_V1, vllm_config(**engine), cache_config(*[c() for c in caches]))


@pytest.mark.parametrize("sleeps, says", [(False, []), (True, ["sleep mode"])])
def test_engines_on_nvidia_gpus_are_accepted_unless_they_sleep(monkeypatch, sleeps, says):
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_cuda", lambda self: True)
    engine = vllm_config(
        device_config=types.SimpleNamespace(device_type="cuda"),
        model_config=types.SimpleNamespace(enable_sleep_mode=sleeps),
    )
    reasons = config.refusals(engine, cache_config(full()))
    assert [reason[: len(text)] for reason, text in zip(reasons, says, strict=True)] == says


def test_the_installed_connector_api_is_the_expected_one():
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    assert config.api_differences(KVConnectorBase_V1) == []


def test_a_changed_connector_api_is_named():
    class Other:
        def wait_for_save(self, step):
            pass

    found = config.api_differences(Other)
    assert "wait_for_save(step) instead of ()" in found and "get_transfer_results() is missing" in found


def test_ranks_at_another_host_are_named():
    assert config.host() == config.host() != ""
    config.check_one_host({0: "a", 1: "a", 2: ""}, "a")
    config.check_one_host({0: "a"}, "")
    with pytest.raises(ValueError, match="ranks 1, 3 stand at another host .*one Manager"):
        config.check_one_host({0: "a", 1: "b", 2: "a", 3: "c"}, "a")


def test_the_scheduler_refuses_workers_of_another_host(monkeypatch):
    from orbitkv.vllm.connector import OrbitKVConnector
    from orbitkv.vllm.metadata import Handshake

    connector = OrbitKVConnector.__new__(OrbitKVConnector)
    connector._scheduler = None
    workers = {0: Handshake("c", False, config.host()), 1: Handshake("c", False, "elsewhere")}
    with pytest.raises(ValueError, match="ranks 1 stand at another host"):
        connector.set_xfer_handshake_metadata(workers)
    connector.set_xfer_handshake_metadata({0: workers[0]})


# ---- namespace ----


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def test_the_fingerprint_follows_every_byte_of_the_model(model, monkeypatch):
    monkeypatch.delenv(namespace.FINGERPRINT_VARIABLE, raising=False)
    seen = {namespace.model_fingerprint(str(model), {})}
    (model / "model.safetensors").write_bytes(b"weightz")
    seen.add(namespace.model_fingerprint(str(model), {}))
    (model / "config.json").write_text("{ }")
    seen.add(namespace.model_fingerprint(str(model), {}))
    seen.add(namespace.model_fingerprint(str(model), {"rope": 1}))
    (model / "config.json").rename(model / "old.json")
    assert len(seen) == 4
    with pytest.raises(FileNotFoundError):
        namespace.model_fingerprint(str(model), {})


def test_a_model_without_local_files_needs_the_operators_word(monkeypatch):
    monkeypatch.delenv(namespace.FINGERPRINT_VARIABLE, raising=False)
    with pytest.raises(ValueError, match=namespace.FINGERPRINT_VARIABLE):
        namespace.model_fingerprint("org/model", {})
    monkeypatch.setenv(namespace.FINGERPRINT_VARIABLE, "release 7")
    assert namespace.model_fingerprint("org/model", {}).startswith("env-")


def test_the_canary_follows_seed_and_algorithm(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    found = {namespace.worker_canary("sha256_cbor"), namespace.worker_canary("sha256")}
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    found.add(namespace.worker_canary("sha256_cbor"))
    assert len(found) == 3
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    golden = "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb"
    assert namespace.worker_canary("sha256_cbor") == golden


def test_the_text_fits_the_wire_and_is_canonical(model, monkeypatch):
    monkeypatch.delenv(namespace.FINGERPRINT_VARIABLE, raising=False)
    backend = types.SimpleNamespace(get_name=lambda: "CPU_ATTN")
    engine = vllm_config(
        model_config=types.SimpleNamespace(
            model=str(model), hf_overrides={}, revision=None, dtype=torch.float32, quantization=None
        ),
        cache_config=types.SimpleNamespace(prefix_caching_hash_algo="sha256_cbor", cache_dtype="auto"),
        parallel_config=types.SimpleNamespace(tensor_parallel_size=64),
        compilation_config=types.SimpleNamespace(
            static_forward_context={"l0": types.SimpleNamespace(attn_backend=backend)}
        ),
    )
    caches = cache_config(full())
    caches.kv_cache_layout = "LBHNC"
    text = namespace.namespace_text(engine, caches)
    assert len(text.encode()) <= 512
    fields = json.loads(text)
    assert text == json.dumps(fields, sort_keys=True, separators=(",", ":"))
    assert fields["v"] == 1 and fields["layout"] == "LBHNC" and fields["tp"] == 64
    scoped = namespace.namespace_text(engine, caches, "s" * 64)
    assert len(scoped.encode()) <= 512
    assert json.loads(scoped) == {**fields, "scope": "s" * 64}
    engine.model_config.quantization = "fp8"
    assert namespace.namespace_text(engine, caches) != text


def test_the_cache_scope_is_the_options_else_the_environments(monkeypatch):
    monkeypatch.delenv(namespace.SCOPE_VARIABLE, raising=False)
    assert namespace.cache_scope() == "" and namespace.cache_scope("") == ""
    monkeypatch.setenv(namespace.SCOPE_VARIABLE, "tenant-a.1_B")
    assert namespace.cache_scope() == "tenant-a.1_B"
    assert namespace.cache_scope("other") == "other" and namespace.cache_scope("") == ""
    assert config.Settings.parse({"orbitkv.cache_scope": "x"}).cache_scope == "x"


@pytest.mark.parametrize("scope", ["a b", "s" * 65, "a/b", "a\n", "\u00e9", '"', 7])
def test_a_scope_that_cannot_be_says_so(monkeypatch, scope):
    with pytest.raises(ValueError, match="orbitkv.cache_scope is .* 1 to 64 letters"):
        namespace.cache_scope(scope)
    if isinstance(scope, str) and scope.isprintable() and scope.isascii():
        monkeypatch.setenv(namespace.SCOPE_VARIABLE, scope)
        with pytest.raises(ValueError, match=namespace.SCOPE_VARIABLE):
            namespace.cache_scope()


# ---- geometry ----

BLOCKS, HEADS, TOKENS, WIDTH = 8, 2, 4, 16
PAGE = HEADS * TOKENS * WIDTH * 4


def caches_of(layers=2, offset=0, block_stride=PAGE, view_of=None):
    """One storage; layer l block b at l * BLOCKS * PAGE + b * PAGE."""
    storage = torch.zeros(layers * BLOCKS * PAGE, dtype=torch.int8)
    names = [f"l{i}" for i in range(layers)]
    views = {}
    for i, name in enumerate(names):
        part = storage[i * BLOCKS * PAGE : (i + 1) * BLOCKS * PAGE].view(torch.float32)
        views[name] = (view_of or (lambda t: t.view(BLOCKS, HEADS, TOKENS, WIDTH)))(part)
    tensor = types.SimpleNamespace(
        layers=names, layer_stride=BLOCKS * PAGE, block_stride=block_stride, offset=offset
    )
    spec = types.SimpleNamespace(page_size_bytes=PAGE)
    group = types.SimpleNamespace(layer_names=names, kv_cache_spec=spec)
    engine = types.SimpleNamespace(num_blocks=BLOCKS, kv_cache_tensors=[tensor], kv_cache_groups=[group])
    return engine, views


def check(engine, views):
    layers = geometry.describe_layers(engine, views)
    geometry.check_pages(layers, views, engine.num_blocks)
    return layers


def test_pages_are_found_where_the_configuration_says():
    engine, views = caches_of()
    views["l1"].fill_(3.0)
    before = views["l1"].clone()
    layers = check(engine, views)
    assert [layer.name for layer in layers] == ["l0", "l1"]
    assert layers[1].tensor.data_ptr() - layers[0].tensor.data_ptr() == BLOCKS * PAGE
    assert torch.equal(views["l1"], before) and not views["l0"].any()


def test_views_in_kernel_blocks_are_grouped():
    engine, views = caches_of(view_of=lambda t: t.view(BLOCKS * 2, HEADS, TOKENS // 2, WIDTH))
    assert check(engine, views)[0].row_bytes == PAGE


@pytest.mark.parametrize(
    "options, says",
    [
        ({"offset": 64}, "l0 starts at byte"),
        ({"block_stride": PAGE // 2}, "not where"),
        ({"view_of": lambda t: t.view(HEADS, BLOCKS, TOKENS, WIDTH).transpose(0, 1)}, "not one run"),
        ({"view_of": lambda t: t.view(BLOCKS, -1)[:, : PAGE // 8]}, "not one run"),
        ({"view_of": lambda t: t.view(BLOCKS, -1)[:7]}, "7 blocks for 8"),
    ],
)
def test_other_layouts_are_refused(options, says):
    engine, views = caches_of(**options)
    with pytest.raises(geometry.GeometryError, match=says):
        check(engine, views)


def engine_views(layout, layers=3, blocks=8):
    """Views as the engine makes them for this layout, and its configuration of them."""
    from vllm.v1.kv_cache_interface import KVCacheTensor, create_kv_cache_views

    spec = full()
    page, names = spec.page_size_bytes, [f"l{i}" for i in range(layers)]
    strides = {
        "LHBNC": (blocks * page, page // spec.num_kv_heads),
        "BHLNC": (page // spec.num_kv_heads, layers * page),
    }.get(layout.name, (blocks * page, page) if layout.is_layer_compact else (page, layers * page))
    size = layers * blocks * page
    tensor = KVCacheTensor(size=size, layers=names, layer_stride=strides[0], block_stride=strides[1], offset=0)
    made = create_kv_cache_views(torch.zeros(size, dtype=torch.int8), spec, blocks, layout, tensor)
    group = types.SimpleNamespace(layer_names=names, kv_cache_spec=spec)
    engine = types.SimpleNamespace(num_blocks=blocks, kv_cache_tensors=[tensor], kv_cache_groups=[group])
    return engine, dict(zip(names, made, strict=True))


@pytest.mark.parametrize("layout", ["LBNHC", "LBHNC", "BLNHC", "BLHNC"])
def test_the_engines_layouts_of_whole_pages_are_known_by_their_strides(layout):
    from vllm.v1.kv_cache_layout import KVCacheLayout

    engine, views = engine_views(KVCacheLayout[layout])
    for number, layer in enumerate(check(engine, views)):
        views[layer.name][5] = number + 1.0
        page = layer.tensor[5 * layer.block_stride :][: layer.row_bytes].view(torch.float32)
        assert bool((page == number + 1.0).all())


@pytest.mark.parametrize("layout", ["LHBNC", "BHLNC"])
def test_layouts_that_split_a_page_by_heads_are_refused(layout):
    from vllm.v1.kv_cache_layout import KVCacheLayout

    with pytest.raises(geometry.GeometryError, match="not one run"):
        check(*engine_views(KVCacheLayout[layout]))


def test_a_layer_that_is_missing_is_named():
    engine, views = caches_of()
    del views["l1"]
    with pytest.raises(geometry.GeometryError, match="l1"):
        check(engine, views)
