"""What help() shows: every example runs as it stands, and everything public says what it is."""

import inspect
import os
import subprocess
import sys
import textwrap

import orbitkv
import pytest
from manager_process import ManagerProcess

WITH_EXAMPLES = ("CacheManagerClient", "PrefixGroup", "RecoveryContract")


def example_of(name):
    """The indented lines of the docstring, from the first import on."""
    lines = inspect.getdoc(getattr(orbitkv, name)).splitlines()
    shown = [line for line in lines if not line or line.startswith("    ")]
    return textwrap.dedent("\n".join(shown)).strip() + "\n"


@pytest.fixture(scope="module")
def runtime_directory():
    """Of a Manager at its default path."""
    manager = ManagerProcess()
    manager.socket = os.path.join(manager.directory.name, "orbitkv", "manager.sock")
    os.mkdir(os.path.dirname(manager.socket), 0o700)
    with manager:
        yield manager.directory.name


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_an_example_runs_as_it_stands(runtime_directory, name):
    code = example_of(name)
    assert "import" in code and "assert" in code
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "XDG_RUNTIME_DIR": runtime_directory},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr


def public():
    for name in orbitkv.__all__:
        yield name, getattr(orbitkv, name)
        if inspect.isclass(getattr(orbitkv, name)):
            for member, value in vars(getattr(orbitkv, name)).items():
                if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                    yield f"{name}.{member}", value


@pytest.mark.parametrize(("name", "value"), [pytest.param(*each, id=each[0]) for each in public()])
def test_whatever_is_public_says_what_it_is(name, value):
    if name == "NO_STREAM":
        return
    own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    assert own and not own.startswith(f"{name}("), name  # what dataclass writes by itself tells nothing
