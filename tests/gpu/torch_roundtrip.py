#!/usr/bin/env python3
"""Pages of torch tensors outlive their process, byte for byte, in every engine's layout;
and a captured CUDA graph reads each layer behind its event.

    torch_roundtrip.py --orbitkv BIN [--device cuda:0|cpu] [--replays 1000]   (PYTHONPATH: the package)

A process publishes seeded random blocks of each layout and gets SIGKILL; a new process
restores them into other blocks of fresh tensors and compares all of that memory, guards
included. Then one graph, captured once, copies every layer's pages behind an external
event wait; it is replayed after each of many restores of changing content, and what it
read is compared. The last line is JSON; exit status 0 only if all is well.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import uuid

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

LIMIT_S = 300
GUARD = 0x5A
SAVED = 40  # of the blocks of a layout; the others must stay as they are
GRAPH_LAYOUT = "vllm-one-buffer"
VERSIONS = 4  # contents that the graph sees in turn


def key(layout, version, number):
    return hashlib.sha256(f"{layout}/{version}/{number}".encode()).digest()


def seed(layout, version, number):
    return int.from_bytes(key(layout, version, number)[:6], "big")


# ---- in the processes ----


class Engine:
    """Memory of one layout, registered."""

    def __init__(self, arguments, layout):
        from layouts import BLOCKS, LAYOUTS, TOKENS
        from orbitkv import CacheManagerClient, Layer

        self.layout, self.blocks = layout, BLOCKS
        self.memory = LAYOUTS[layout](arguments.device)
        self.client = CacheManagerClient(
            arguments.socket, uuid.uuid4().bytes, 30000, name=f"roundtrip-{layout}", copy_method=arguments.copy_method
        )
        self.client.wait_connected()
        layers = [
            Layer(f.layer, 0, f.component, f.tensor, f.block_stride, f.rows, f.row_bytes, f.row_stride)
            for f in self.memory.fragments
        ]
        self.registered = self.client.register(layout, 0, 1, arguments.device, layers, BLOCKS, TOKENS)
        self.layer_names = list(dict.fromkeys(f.layer for f in self.memory.fragments))

    def keys(self, version=0):
        return [key(self.layout, version, n) for n in range(SAVED)]

    def content(self, version, number):
        from layouts import content_of

        return content_of(seed(self.layout, version, number), self.memory.block_bytes)

    def fill(self, version, blocks):
        for number, block in enumerate(blocks):
            self.memory.write(block, self.content(version, number).to(self.memory.buffers[0].device))

    def lease(self, version=0):
        hit = self.client.query_prefetch(
            self.client.instance_id, self.keys(version), f"{self.layout}-{version}-{uuid.uuid4().hex}"
        )
        if hit.hit_blocks != SAVED:
            raise SystemExit(f"{self.layout}: {hit.hit_blocks} of {SAVED} blocks are there")
        return hit.lease


def stream_of(device):
    """What save() and start_restore() are ordered behind."""
    import torch

    return torch.cuda.current_stream(device).cuda_stream if device.startswith("cuda") else 0


def publish(arguments):
    """All layouts; what was made stays alive until the process is killed."""
    engines = [publish_one(arguments, layout) for layout in arguments.layout]
    print(json.dumps({"published": len(engines)}), flush=True)
    signal.pause()


def publish_one(arguments, layout):
    from layouts import shuffled

    engine = Engine(arguments, layout)
    for version in range(arguments.versions):
        blocks = shuffled(engine.blocks, 1 + version)[:SAVED]
        engine.fill(version, blocks)
        groups = [(0, blocks, engine.keys(version))]
        handle = engine.client.save(engine.registered, groups, ready_stream=stream_of(arguments.device))
        status = engine.client.wait_save(handle, LIMIT_S)
        if not status.success:
            raise SystemExit(f"{layout}: save: {status}")
    return engine


def restore(arguments):
    for layout in arguments.layout:
        print(json.dumps(restore_one(arguments, layout)), flush=True)


def restore_one(arguments, layout):
    from layouts import shuffled

    engine = Engine(arguments, layout)
    blocks = shuffled(engine.blocks, 1000)[:SAVED]
    for buffer in engine.memory.buffers:
        buffer.fill_(GUARD)
    expected = [buffer.clone() for buffer in engine.memory.buffers]
    handle = engine.client.start_restore(
        engine.registered, [(engine.lease(), [blocks])], ready_stream=stream_of(arguments.device)
    )
    status = engine.client.wait_restore(handle, LIMIT_S)
    found = [buffer.clone() for buffer in engine.memory.buffers]
    for buffer, old in zip(engine.memory.buffers, expected, strict=True):
        buffer.copy_(old)
    engine.fill(0, blocks)  # what the memory should look like, written by torch
    wrong = sum(int((a != b).sum()) for a, b in zip(found, engine.memory.buffers, strict=True))
    return {
        "bytes": SAVED * engine.memory.block_bytes,
        "compared_bytes": sum(b.numel() for b in found),
        "wrong_bytes": wrong,
        "success": status.success,
        "message": status.message,
    }


class GraphReader:
    """A graph that copies each layer's pages aside, each behind that layer's event."""

    def __init__(self, engine, blocks):
        import torch

        self.torch, self.engine = torch, engine
        self.events = {name: torch.cuda.Event(external=True) for name in engine.layer_names}
        for event in self.events.values():
            event.record()  # torch makes an event at its first record
        self.pages = {name: self._pages_of(name, blocks) for name in engine.layer_names}
        self.seen = {name: torch.zeros_like(self._gather(name)) for name in engine.layer_names}
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        # As engines capture: what other threads of this process do meanwhile must not disturb it.
        with torch.cuda.graph(self.graph):
            for name in engine.layer_names:
                torch.cuda.current_stream().wait_event(self.events[name])
                self.seen[name].copy_(self._gather(name))

    def _pages_of(self, name, blocks):
        return [
            row
            for fragment in self.engine.memory.fragments
            if fragment.layer == name
            for block in blocks
            for row in fragment.block(block)
        ]

    def _gather(self, name):
        return self.torch.cat(self.pages[name])

    def expected(self, version, blocks):
        """What the graph must have read, from contents made on the CPU."""
        self.engine.fill(version, blocks)
        return {name: self._gather(name) for name in self.engine.layer_names}


def replay(arguments):
    """Restores version after version, launches the graph as soon as the events stand, and
    looks at what it read. Pages hold other bytes before each restore."""
    import torch
    from layouts import shuffled

    engine = Engine(arguments, arguments.layout[0])
    blocks = shuffled(engine.blocks, 2000)[:SAVED]
    reader = GraphReader(engine, blocks)
    expected = [reader.expected(version, blocks) for version in range(arguments.versions)]
    events = list(reader.events.items())
    wrong, failed = 0, 0
    for turn in range(arguments.replays):
        version = turn % arguments.versions
        handle = engine.client.start_restore(
            engine.registered,
            [(engine.lease(version), [blocks])],
            ready_stream=stream_of(arguments.device),
            layer_events=events,
        )
        engine.client.wait_restore_enqueued(handle, LIMIT_S)
        reader.graph.replay()
        failed += not engine.client.wait_restore(handle, LIMIT_S).success
        engine.client.forget(handle)
        wrong += not all(torch.equal(reader.seen[n], expected[version][n]) for n in engine.layer_names)
    print(json.dumps({"replays": arguments.replays, "wrong_replays": wrong, "failed_restores": failed}), flush=True)


# ---- the parent ----


def child(arguments, what, socket, names, versions=1):
    layouts = [word for name in names for word in ("--layout", name)]
    command = [
        sys.executable, str(HERE / "torch_roundtrip.py"), "--child", what, "--socket", socket, *layouts, "--device",
        arguments.device, "--versions", str(versions), "--replays", str(arguments.replays), "--copy-method",
        arguments.copy_method,
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def answer(process, what):
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{what} ended with {process.wait(LIMIT_S)} and said nothing")
    return json.loads(line)


def published_and_killed(arguments, socket, names, versions=1):
    process = child(arguments, "publish", socket, names, versions)
    answer(process, "publishing")
    process.send_signal(signal.SIGKILL)
    if process.wait(LIMIT_S) != -signal.SIGKILL:
        raise SystemExit(f"publishing: not killed, but {process.returncode}")


def run(arguments, names):
    from manager_process import ManagerProcess

    if arguments.orbitkv:
        os.environ["ORBITKV_BIN"] = os.path.abspath(arguments.orbitkv)
    result = {"device": arguments.device, "layouts": {}}
    with ManagerProcess(pool=arguments.pool) as manager:
        published_and_killed(arguments, manager.socket, names)
        process = child(arguments, "restore", manager.socket, names)
        for name in names:
            result["layouts"][name] = found = answer(process, f"restoring {name}")
            print(f"  {name:<22}{found['bytes']:>12} bytes restored, {found['wrong_bytes']} wrong", flush=True)
        process.wait(LIMIT_S)
        if arguments.device.startswith("cuda") and arguments.replays:
            published_and_killed(arguments, manager.socket, [GRAPH_LAYOUT], VERSIONS)
            process = child(arguments, "replay", manager.socket, [GRAPH_LAYOUT], VERSIONS)
            result["graph"] = found = answer(process, "the graph")
            process.wait(LIMIT_S)
            print(f"  graph: {found['replays']} replays, {found['wrong_replays']} wrong", flush=True)
    well = all(f["success"] and f["wrong_bytes"] == 0 for f in result["layouts"].values())
    graph = result.get("graph", {"wrong_replays": 0, "failed_restores": 0})
    result["ok"] = well and graph["wrong_replays"] == 0 and graph["failed_restores"] == 0
    print(json.dumps(result), flush=True)
    return 0 if result["ok"] else 1


def parse(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--orbitkv", help="the Manager's binary (default: build/release/bin/orbitkv)")
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu:0 to try the program without a GPU")
    parser.add_argument("--layout", action="append", help="only this one; may be given again (default: all)")
    parser.add_argument("--replays", type=int, default=1000, help="of the captured graph (0: none)")
    parser.add_argument("--pool", default="256MiB", help="of the Manager")
    parser.add_argument("--copy-method", default="auto", choices=["auto", "direct", "kernel"])
    parser.add_argument("--child", choices=["publish", "restore", "replay"], help=argparse.SUPPRESS)
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    parser.add_argument("--versions", type=int, default=1, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main():
    arguments = parse()
    if importlib.util.find_spec("torch") is None:
        print("torch_roundtrip: this Python has no torch; nothing was tried", file=sys.stderr)
        return 77
    from layouts import LAYOUTS

    names = arguments.layout or list(LAYOUTS)
    unknown = [name for name in names if name not in LAYOUTS]
    if unknown:
        raise SystemExit(f"unknown layout {unknown[0]}; known: {', '.join(LAYOUTS)}")
    arguments.layout = names
    if arguments.child:
        if arguments.device.startswith("cuda"):
            import torch

            torch.cuda.set_device(arguments.device)  # whose default stream is meant
        {"publish": publish, "restore": restore, "replay": replay}[arguments.child](arguments)
        return 0
    return run(arguments, names)


if __name__ == "__main__":
    sys.exit(main())
