"""Engines by the dozen: vLLM is imported once, an engine is built once per shape, and
every test forks a ready engine of its own. A fork is a process of its own with empty
pages and no client yet; it opens its clients after the fork.

    zygote ── template (one engine shape) ── engine (one job, may be killed)

Each level serves requests, one JSON object a connection, on a Unix socket. Only for the
in-process layout: the engine is one process and one thread when it is forked.
"""

import functools
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback

import engine_run
import jobs
import processes

PRELOAD = (
    "vllm.entrypoints.llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.executor.uniproc_executor",
    "vllm.model_executor.models.llama",
)


def ask(path, **request):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(300)
        connection.connect(path)
        connection.sendall(json.dumps(request).encode())
        connection.shutdown(socket.SHUT_WR)
        reply = b""
        while part := connection.recv(65536):
            reply += part
    return json.loads(reply)


def reaped(pid):
    """Exit code of a child, None while it runs."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def serve(path, handle):
    """Answers until a request says stop."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".part")
    listener.listen(8)
    os.rename(path + ".part", path)
    while True:
        connection, _ = listener.accept()
        with connection:
            request = b""
            while part := connection.recv(65536):
                request += part
            request = json.loads(request)
            if request["op"] == "stop":
                connection.sendall(b"{}")
                return
            if request["op"] == "reap":
                reply = {"code": reaped(request["pid"])}
            else:
                reply = {"pid": fork(functools.partial(handle, request), request["log"], listener, connection)}
            connection.sendall(json.dumps(reply).encode())


def fork(work, log, *close):
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        processes.die_with(parent)
        for inherited in close:
            inherited.close()
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def freeze():
    """Children share these objects: keep the collector away from them."""
    gc.collect()
    gc.freeze()


def template(request):
    os.environ.update(request.get("env", {}))
    llm = engine_run.build(request["model"], **request["engine"])
    if "job" in request:  # an engine for one job, which may have opened its clients already
        return engine(llm, request)
    freeze()
    return serve(request["socket"], lambda job: engine(llm, job))


def engine(llm, request):
    os.environ.update(request.get("env", {}))
    job = request["job"]
    if job.get("socket"):
        from dump_connector import DumpConnector

        DumpConnector.wake_all(job["socket"])
    engine_run.write_report(job["report"], jobs.JOBS[job.get("kind", "generate")](llm, job))
    if job.get("hold"):
        signal.pause()


def main():
    processes.die_with(int(sys.argv[2]))
    os.environ.update(engine_run.ENVIRONMENT)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name in PRELOAD:
        importlib.import_module(name)
    freeze()
    serve(sys.argv[1], template)


class Engine:
    """One forked engine: its report, its exit code."""

    def __init__(self, server, pid, report, log):
        self.server, self.pid, self.report, self.log = server, pid, report, log
        self.code = None

    def poll(self):
        if self.code is None:
            self.code = ask(self.server, op="reap", pid=self.pid)["code"]
        return self.code

    def wait(self, seconds=60):
        deadline = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError(f"engine {self.pid} hangs; its log ends: {self.text()[-3000:]}")
            time.sleep(0.01)
        return self.code

    def result(self, seconds=60):
        code = self.wait(seconds)
        assert code == 0, f"engine ended with {code}; its log ends: {self.text()[-3000:]}"
        return self.read()

    def read(self):
        with open(self.report) as file:
            return json.load(file)

    def kill(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return self.wait()

    def text(self):
        with open(self.log, errors="replace") as file:
            return file.read()


if __name__ == "__main__":
    main()
