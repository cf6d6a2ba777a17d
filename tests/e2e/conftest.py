"""One zygote a session; engines of a shape are built when a test first asks."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

import engine_run  # noqa: E402
import reports  # noqa: E402
import zygote  # noqa: E402
from manager_process import ManagerProcess  # noqa: E402

SHAPES = {
    # the engine's arguments, environment of the template
    "plain": ({}, {}),
    "main": ({"kv_transfer_config": engine_run.transfer_config("DumpConnector", None, "dump_connector")}, {}),
    "small": (
        {
            "kv_transfer_config": engine_run.transfer_config("DumpConnector", None, "dump_connector"),
            "num_gpu_blocks_override": 36,
            "max_num_seqs": 6,
        },
        {},
    ),
    "layers": (
        {
            "kv_transfer_config": engine_run.transfer_config(
                "DumpConnector", None, "dump_connector", **{"orbitkv.load": "layers"}
            )
        },
        {},
    ),
}


class Bed:
    """Starts the zygote and its templates, and engines from them."""

    def __init__(self, directory):
        self.directory = directory
        self.sockets = tempfile.TemporaryDirectory(prefix="okz-")
        self.model = str(directory / "model")
        self.templates = {}
        self.counter = 0
        self.environment = {
            **os.environ,
            **engine_run.ENVIRONMENT,
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        }
        subprocess.run(
            [sys.executable, str(HERE / "tiny_model.py"), self.model], check=True, env=self.environment
        )
        self.root = os.path.join(self.sockets.name, "zygote")
        self.log = open(directory / "zygote.log", "wb")
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py"), self.root, str(os.getpid())],
            stdout=self.log, stderr=self.log, env=self.environment,
        )  # fmt: skip
        self._appears(self.root, directory / "zygote.log")

    def _appears(self, path, log, seconds=300):
        deadline = time.monotonic() + seconds
        while not os.path.exists(path):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no engine template; its log ends: {pathlib.Path(log).read_text()[-3000:]}")
            time.sleep(0.05)

    def template(self, shape):
        if shape not in self.templates:
            engine, environment = SHAPES[shape]
            path, log = os.path.join(self.sockets.name, shape), str(self.directory / f"{shape}.log")
            zygote.ask(
                self.root, op="template", socket=path, log=log, model=self.model, engine=engine,
                env={"ORBITKV_TEST_LATE": "1", **environment},
            )  # fmt: skip
            self._appears(path, log)
            self.templates[shape] = path
        return self.templates[shape]

    def start(self, prompts, manager=None, shape="main", env=None, **job):
        """Forks an engine; manager None: it runs without one."""
        server = self.template(shape)
        self.counter += 1
        base = self.directory / f"engine-{self.counter:03}"
        job = {"prompts": prompts, "socket": manager.socket if manager else None, **job}
        job["report"] = f"{base}.json"
        log = f"{base}.log"
        pid = zygote.ask(server, op="run", job=job, log=log, env=env or {})["pid"]
        return zygote.Engine(server, pid, job["report"], log)

    def build_and_run(self, engine, prompts, **job):
        """An engine of its own arguments, built for this one job."""
        self.counter += 1
        base = self.directory / f"engine-{self.counter:03}"
        job = {"prompts": prompts, "report": f"{base}.json", **job}
        pid = zygote.ask(self.root, op="build", model=self.model, engine=engine, job=job, log=f"{base}.log")["pid"]
        return zygote.Engine(self.root, pid, job["report"], f"{base}.log").result(300)

    def run(self, prompts, manager=None, **job):
        return self.start(prompts, manager, **job).result()

    def close(self):
        for path in [*self.templates.values(), self.root]:
            zygote.ask(path, op="stop")
        self.process.wait(20)
        self.log.close()
        self.sockets.cleanup()


@pytest.fixture(scope="session")
def bed(tmp_path_factory):
    bed = Bed(tmp_path_factory.mktemp("engines"))
    yield bed
    bed.close()


@pytest.fixture(scope="session")
def reference(bed):
    """Tokens of prompts from an engine without connector; each question is asked once."""
    known = {}

    def tokens_of(prompts, max_tokens=8):
        name = json.dumps([prompts, max_tokens])
        if name not in known:
            known[name] = reports.tokens(bed.run(prompts, shape="plain", max_tokens=max_tokens))
        return known[name]

    return tokens_of


@pytest.fixture
def manager():
    with ManagerProcess(pool="128MiB") as manager:
        yield manager
