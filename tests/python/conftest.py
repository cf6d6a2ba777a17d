"""Both clients behind one fixture: `fake` needs nothing, `real` a built tree.

ORBITKV_FAKE_ONLY=1 leaves the real one out; otherwise a missing build is a failure.
"""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from fake_client import FakeClient, FakeManager  # noqa: E402
from manager_process import ManagerProcess  # noqa: E402


class Host:
    """Opens clients of one Manager, and stops that Manager."""

    def __init__(self, kind):
        self.kind = kind
        self.clients = []
        self.manager = FakeManager() if kind == "fake" else ManagerProcess().start()

    def client(self, instance_id, **options):
        if self.kind == "fake":
            client = FakeClient(self.manager, instance_id)
        else:
            from orbitkv import CacheManagerClient

            client = CacheManagerClient(self.manager.socket, instance_id, name="test", **options)
        self.clients.append(client)
        return client

    def take_down(self):
        if self.kind == "fake":
            self.manager.down = True
        else:
            self.manager.kill()

    def close(self):
        for client in self.clients:
            client.close()
        if self.kind == "real":
            self.manager.stop()
            self.manager.directory.cleanup()


@pytest.fixture(params=["fake", "real"])
def host(request):
    if request.param == "real" and os.environ.get("ORBITKV_FAKE_ONLY"):
        pytest.skip("ORBITKV_FAKE_ONLY is set")
    host = Host(request.param)
    yield host
    host.close()


@pytest.fixture
def fake_manager():
    return FakeManager()
