"""local: files, hashes and sentences; the child process with a stand-in for the llama.cpp library."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from structmem import local
from structmem.errors import InputError, SetupError

STAND_IN = """
    import http.server, threading, types, os, sys
    class CommonParams:
        def __init__(self):
            self.model = types.SimpleNamespace(); self.cpuparams = types.SimpleNamespace()
            self.cpuparams_batch = types.SimpleNamespace()
    class Server:
        def __init__(self, params):
            what = open(params.model.path).read()
            if what == "broken":
                raise RuntimeError("cannot load this")
            if what == "gomp":
                raise ImportError("libgomp.so.1: cannot open shared object file: No such file or directory")
            if what == "sigill":
                import signal
                os.kill(os.getpid(), signal.SIGILL)
            print("chatter of the library", flush=True)
            class Handler(http.server.BaseHTTPRequestHandler):
                def do_GET(self):
                    self.send_response(200); self.end_headers()
                    self.wfile.write(f"{os.getpid()} {os.environ['OMP_WAIT_POLICY']} {params.hostnames}".encode())
                def log_message(self, *_): pass
            self.server = http.server.HTTPServer(("127.0.0.1", params.port), Handler)
            self.listening_address = f"http://127.0.0.1:{self.server.server_port}"
            threading.Thread(target=self.server.serve_forever, daemon=True).start()
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "xllamacpp.py").write_text(textwrap.dedent(STAND_IN))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('a file of the user was imported')")
    yield tmp_path
    local.shutdown()


def model(folder: Path, content: str = "fine", name: str = "tiny.gguf") -> str:
    (folder / name).write_text(content)
    return f"local/{folder / name}"


def answer(endpoint: local.Endpoint) -> str:
    with urlopen(endpoint.api_base.removesuffix("/v1"), timeout=10) as reply:
        return reply.read().decode()


def gone(pid: int, within_s: float = 10) -> bool:
    """Whether a process ends in time; one that waits for its new parent to collect it has ended."""
    for _ in range(int(within_s / 0.05)):
        try:
            # The state is that of the first thread; the others may still be on their way out.
            ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if ended and len(list(Path(f"/proc/{pid}/task").iterdir())) <= 1:
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_server_runs_in_a_child_on_the_loopback_address_and_is_shared(library):
    name = model(library, name="a b é.gguf")
    found = []
    threads = [threading.Thread(target=lambda: found.append(local.endpoint(name))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    pid, policy, host = answer(found[0]).split(" ", 2)
    assert int(pid) != os.getpid() and policy == "passive" and host == "['127.0.0.1']"
    assert found[0].model == "a b é" and found[0].slots == local.SLOTS
    assert found[0].sha256 == hashlib.sha256(b"fine").hexdigest()


def test_relative_path_is_the_same_model(library):
    assert local.endpoint(model(library)) is local.endpoint("local/tiny.gguf")


def test_dead_server_is_started_anew(library):
    name = model(library)
    first = local.endpoint(name)
    pid = int(answer(first).split()[0])
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    second = local.endpoint(name)
    assert answer(second).split()[0] != str(pid)


def test_shutdown_ends_the_child(library):
    pid = int(answer(local.endpoint(model(library))).split()[0])
    local.shutdown()
    assert gone(pid)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_child_dies_with_its_parent(library, how):
    name = model(library)
    code = """if True:
        import signal, sys, time
        from structmem import local
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell started us in the background
        print(local.endpoint(sys.argv[1]).api_base, flush=True)
        time.sleep(60)
    """
    source = str(Path(local.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([source, str(library / "lib")])}
    parent = subprocess.Popen(
        [sys.executable, "-P", "-c", code, name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, text=True
    )
    with parent.stdout:
        address = parent.stdout.readline().strip()
        with urlopen(address, timeout=10) as reply:
            pid = int(reply.read().split()[0])
        parent.send_signal(how)
        parent.wait()
    assert gone(pid)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("broken", "GGUF format.*cannot load this"),
        ("gomp", "apt-get install libgomp1.*conda install libgomp"),
        ("sigill", "processor lacks instructions"),
    ],
)
def test_a_server_that_does_not_start_says_why(library, content, says):
    with pytest.raises(SetupError, match=says):
        local.endpoint(model(library, content))
    assert not local._servers


@pytest.mark.parametrize(
    ("code", "said", "says"),
    [
        (1, "ModuleNotFoundError: No module named 'xllamacpp'", "structmem local install"),
        (-9, "", "too little memory"),
        (3, "", "status 3.*nothing on stderr"),
    ],
)
def test_failure_sentences(code, said, says):
    assert re.search(says, local.failure_sentence(code, said, Path("m.gguf")))


@pytest.mark.parametrize("name", ["smollm2", "local/", "local/other", "openai/gpt-4o", "local/model.bin"])
def test_what_is_no_local_model_is_refused_with_the_forms(name):
    with pytest.raises(InputError, match="local/smollm2.*local/PATH.gguf"):
        local.model_path(name)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(SetupError, match="no file .*nope.gguf"):
        local.model_path(f"local/{tmp_path}/nope.gguf")


def test_missing_extra_names_the_command(monkeypatch):
    monkeypatch.setattr(local, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match="structmem local install"):
        local.model_sha256("local/smollm2")
    assert dict(local.status(reply=False))["model file"].startswith("missing")


def test_another_hash_is_refused_for_the_built_in_model_only(tmp_path, monkeypatch):
    path = tmp_path / "other.gguf"
    path.write_bytes(b"other weights")
    monkeypatch.setattr(local, "model_path", lambda model_id: path)
    with pytest.raises(SetupError, match="expected b179c9523d0e"):
        local.model_sha256("local/smollm2")
    assert local.model_sha256(f"local/{path}") == hashlib.sha256(b"other weights").hexdigest()


def test_changed_file_gets_a_new_hash(tmp_path):
    name = model(tmp_path, "one")
    first = local.model_sha256(name)
    model(tmp_path, "three")
    assert local.model_sha256(name) == hashlib.sha256(b"three").hexdigest() != first


def test_install_adds_wheels_without_dependencies():
    command = local.install_command()
    assert command[0] == sys.executable and "--no-deps" in command and Path(command[-1]).is_file()
