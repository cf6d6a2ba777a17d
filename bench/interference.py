#!/usr/bin/env python3
"""What copies cost the GEMMs beside them, on one GPU, in one process.

    interference.py --orbitkv BIN [--quick] [--methods auto kernel direct] [--paces full gentle]

Two GEMM streams in turn: large (8192 x 8192 x 8192, bf16) and decode (m = 32, 8192 x 8192),
each replayed as a CUDA graph beside endless restores, saves, and both, of 16 KiB and 64 KiB
fragments through the client. Phases alternate (alone, beside, alone, ...), because clocks
drift: a change is the time beside over the mean of the two phases around it. One JSON line
a combination: gemm_change_percent (median, least, most), copy_gb_per_s; the last line is the
whole table. Restored pages are compared. Exit status 0, 1 on a failed copy or a wrong byte,
77 without a GPU.
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import sys
import threading
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "python"))

SKIPPED = 77
LAYERS = 32
OPERATION_BYTES = 64 << 20
DEPTH = 2  # operations of one direction under way
DIRECTIONS = {"restores": ("restore",), "saves": ("save",), "both": ("restore", "save")}
TIMEOUT_S = 60


# ---- compute ----


class Gemm:
    """A GEMM over and over; run() says the mean time of one, in microseconds."""

    def __init__(self, torch, device, rows, size, calls):
        self.torch, self.calls = torch, calls
        self.cuda = device.startswith("cuda")
        kind = torch.bfloat16 if self.cuda else torch.float32
        self.a = torch.randn(rows, size, device=device, dtype=kind)
        self.b = torch.randn(size, size, device=device, dtype=kind)
        self.out = torch.empty(rows, size, device=device, dtype=kind)
        if not self.cuda:
            return
        self.stream = torch.cuda.Stream()
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                self._call()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            for _ in range(calls):
                self._call()

    def _call(self):
        self.torch.mm(self.a, self.b, out=self.out)

    def _burst(self):
        if self.cuda:
            self.graph.replay()
        else:
            for _ in range(self.calls):
                self._call()

    def run(self, seconds):
        """Bursts for so long; two are enqueued at any time, so that the device never waits."""
        if not self.cuda:
            started, bursts = time.perf_counter(), 0
            while time.perf_counter() - started < seconds:
                self._burst()
                bursts += 1
            return (time.perf_counter() - started) / (bursts * self.calls) * 1e6
        event = self.torch.cuda.Event
        with self.torch.cuda.stream(self.stream):
            marks = [event(enable_timing=True)]
            self._burst()  # off the clock
            marks[0].record()
            ends, limit = [], time.perf_counter() + seconds
            while time.perf_counter() < limit:
                self._burst()
                ends.append(event(enable_timing=True))
                ends[-1].record()
                if len(ends) > 1:
                    ends[-2].synchronize()
            ends[-1].synchronize()
        return marks[0].elapsed_time(ends[-1]) * 1000 / (len(ends) * self.calls)


# ---- copies ----


class Pages:
    """Pages on the device under one client: those that are restored, and those that are saved."""

    def __init__(self, torch, arguments, socket, fragment, method, pace):
        from orbitkv import NO_STREAM, CacheManagerClient, Layer

        self.torch, self.no_stream = torch, NO_STREAM
        self.count = max(1, arguments.operation_bytes // (LAYERS * fragment))  # blocks of an operation
        blocks = 3 * DEPTH * self.count
        self.memory = torch.empty(LAYERS, blocks, fragment, device=arguments.device, dtype=torch.uint8)
        self.memory.random_(0, 256)
        self.client = CacheManagerClient(
            socket, uuid.uuid4().bytes, TIMEOUT_S * 1000, name="interference", copy_method=method, copy_pace=pace
        )
        self.client.wait_connected()
        layers = [Layer(f"layer {i}", 0, 0, self.memory[i], fragment, 1, fragment) for i in range(LAYERS)]
        name = f"interference {fragment} {uuid.uuid4().hex}"
        self.registered = self.client.register(name, 0, 1, arguments.device, layers, blocks, 16)
        self.bytes = self.count * LAYERS * fragment
        order = torch.randperm(blocks).tolist()
        sets = [order[i * self.count : (i + 1) * self.count] for i in range(3 * DEPTH)]
        self.source, self.saved, self.restored = sets[:DEPTH], sets[DEPTH : 2 * DEPTH], sets[2 * DEPTH :]
        self.synchronize()

    def publish(self):
        """What is restored; saves that were measured may have evicted it."""
        self.keys = [self.fresh() for _ in range(DEPTH)]
        for blocks, keys in zip(self.source, self.keys, strict=True):
            self.require(self.client.wait_save(self.client.save(self.registered, [(0, blocks, keys)]), TIMEOUT_S))

    def fresh(self):
        return self.client.hashes(os.urandom(32 * self.count))

    def synchronize(self):
        if self.memory.is_cuda:
            self.torch.cuda.synchronize()

    @staticmethod
    def require(status):
        if not (status.done and status.success):
            raise RuntimeError(f"a copy failed: {status}")

    def start(self, what, turn):
        if what == "save":
            return self.client.save(self.registered, [(0, self.saved[turn], self.fresh())], ready_stream=self.no_stream)
        hit = self.client.query_prefetch(self.client.instance_id, self.keys[turn], uuid.uuid4().hex)
        if hit.hit_blocks != self.count:
            raise RuntimeError(f"{hit.hit_blocks} of {self.count} blocks are resident; give a larger --pool")
        loads = [(hit.lease, [self.restored[turn]])]
        return self.client.start_restore(self.registered, loads, ready_stream=self.no_stream)

    def end(self, what, handle):
        wait = self.client.wait_save if what == "save" else self.client.wait_restore
        self.require(wait(handle, TIMEOUT_S))
        self.client.forget(handle)

    def wrong_bytes(self):
        """Of the restored pages, after the last restore."""
        wrong = 0
        for source, restored in zip(self.source, self.restored, strict=True):
            wrong += int((self.memory[:, source] != self.memory[:, restored]).sum())
        return wrong


class Copies:
    """Endless operations of some directions while the block lasts, a thread each."""

    def __init__(self, pages, directions):
        self.pages, self.directions = pages, directions
        self.ended, self.failures, self.stop = [], [], threading.Event()

    def __enter__(self):
        self.threads = [threading.Thread(target=self._guarded, args=(what,)) for what in self.directions]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exc):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def _guarded(self, what):
        try:
            self._run(what)
        except Exception as error:  # shown by the main thread
            self.failures.append(f"{what}: {error}")

    def _run(self, what):
        running, turn = [], 0
        while not self.stop.is_set():
            running.append(self.pages.start(what, turn % DEPTH))
            turn += 1
            if len(running) == DEPTH:
                self.pages.end(what, running.pop(0))
                self.ended.append(time.perf_counter())
        for handle in running:
            self.pages.end(what, handle)

    def rate(self, begin, end):
        """GB/s of what ended in between."""
        return sum(begin <= at <= end for at in self.ended) * self.pages.bytes / (end - begin) / 1e9


# ---- the table ----


def measure(gemm, pages, directions, arguments):
    """One combination: GEMM times alone and beside by turns."""
    alone, beside, rates = [gemm.run(arguments.seconds)], [], []
    for _ in range(arguments.rounds):
        pages.publish()
        with Copies(pages, directions) as copies:
            time.sleep(arguments.seconds / 4)  # until it flows
            begin = time.perf_counter()
            beside.append(gemm.run(arguments.seconds))
            rates.append(copies.rate(begin, time.perf_counter()))
        if copies.failures:
            raise RuntimeError("; ".join(copies.failures))
        alone.append(gemm.run(arguments.seconds))
    around = [(a + b) / 2 for a, b in itertools.pairwise(alone)]
    changes = [(there / base - 1) * 100 for there, base in zip(beside, around, strict=True)]
    return {
        "gemm_us_alone": round(statistics.median(alone), 2),
        "gemm_us_beside": round(statistics.median(beside), 2),
        "gemm_change_percent": round(statistics.median(changes), 2),
        "gemm_change_min": round(min(changes), 2),
        "gemm_change_max": round(max(changes), 2),
        "copy_gb_per_s": round(statistics.median(rates), 2),
    }


def table(torch, arguments, socket):
    size = arguments.size
    gemms = {
        "large": Gemm(torch, arguments.device, size, size, max(1, arguments.calls // 25)),
        "decode": Gemm(torch, arguments.device, 32, size, arguments.calls),
    }
    for fragment, method, pace in itertools.product(arguments.fragments, arguments.methods, arguments.paces):
        pages = Pages(torch, arguments, socket, fragment, method, pace)
        for copies, (name, gemm) in itertools.product(arguments.copies, gemms.items()):
            row = {"bench": "interference", "fragment": fragment, "method": method, "pace": pace}
            row.update({"copies": copies, "gemm": name}, **measure(gemm, pages, DIRECTIONS[copies], arguments))
            yield row
        pages.synchronize()
        wrong = pages.wrong_bytes() if arguments.copies != ["saves"] else 0
        if wrong:
            raise RuntimeError(f"{wrong} restored bytes are wrong")
        pages.client.close()
        del pages


def run(torch, arguments):
    from manager_process import ManagerProcess

    if arguments.orbitkv:
        os.environ["ORBITKV_BIN"] = os.path.abspath(arguments.orbitkv)
    rows = []
    with ManagerProcess(pool=arguments.pool) as manager:
        try:
            for row in table(torch, arguments, manager.socket):
                rows.append(row)
                print(json.dumps(row), flush=True)
        except RuntimeError as error:
            print(f"interference: {error}", file=sys.stderr)
            return 1
    print(json.dumps({"bench": "interference", "device": arguments.device, "table": rows}), flush=True)
    return 0


def parse(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--orbitkv", help="the Manager's binary (default: build/release/bin/orbitkv)")
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu:0 to try the program without a GPU")
    parser.add_argument("--fragments", type=int, nargs="+", default=[16384, 65536], help="bytes")
    parser.add_argument("--methods", nargs="+", default=["auto", "kernel", "direct"])
    parser.add_argument("--paces", nargs="+", default=["full", "gentle"])
    parser.add_argument("--copies", nargs="+", choices=list(DIRECTIONS), default=list(DIRECTIONS))
    parser.add_argument("--rounds", type=int, default=5, help="of alone and beside")
    parser.add_argument("--seconds", type=float, default=0.25, help="of one phase")
    parser.add_argument("--size", type=int, default=8192, help="of the square matrix")
    parser.add_argument("--calls", type=int, default=500, help="decode GEMMs in a graph; large ones: a 25th")
    parser.add_argument("--operation-bytes", type=int, default=OPERATION_BYTES)
    parser.add_argument("--pool", default="4GiB", help="of the Manager")
    parser.add_argument("--quick", action="store_true", help="method auto alone, three short rounds")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.methods, arguments.rounds, arguments.seconds = ["auto"], 3, 0.15
    return arguments


def main():
    arguments = parse()
    try:
        import torch
    except ImportError as error:
        print(f"interference: skipped: {error}; PYTHONPATH names torch and the orbitkv package", file=sys.stderr)
        return SKIPPED
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        print("interference: skipped: torch finds no GPU", file=sys.stderr)
        return SKIPPED
    return run(torch, arguments)


if __name__ == "__main__":
    sys.exit(main())
