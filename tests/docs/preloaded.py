"""``recollect`` without the seconds that a new Python process imports for: a server that has imported everything forks.

python preloaded.py serve SOCKET            prints "ready", then answers until it is killed
python preloaded.py SOCKET ARGUMENTS...     as ``python -m recollect ARGUMENTS...`` here, with this input and output
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from pathlib import Path

_MOST = 2**20  # bytes of arguments and environment


def ask(place: str, arguments: list[str]) -> int:
    """Have a command run; returns its exit code."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(place)
        asked = {"arguments": arguments, "folder": str(Path.cwd()), "environment": dict(os.environ)}
        socket.send_fds(server, [json.dumps(asked).encode() + b"\n"], [0, 1, 2])
        return int(server.recv(16) or b"1")


def serve(place: str) -> None:
    """Answer each request in a fork."""
    from faults.trials import prepare
    from recollect.common import machine

    machine.SECONDS = 0.0  # plans of one measurement, as in tests/conftest.py
    prepare()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen()
        print("ready", flush=True)
        while True:
            asking, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _answer(asking)
            asking.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:  # those that have ended
                    pass


def _answer(asking: socket.socket) -> None:
    text, handles, *_ = socket.recv_fds(asking, _MOST, 3)
    while not text.endswith(b"\n"):
        text += asking.recv(_MOST)
    pid = os.fork()
    if pid == 0:
        asking.close()
        for number, handle in enumerate(handles):
            os.dup2(handle, number)
            os.close(handle)
        _run(**json.loads(text))
    _, status = os.waitpid(pid, 0)
    asking.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _run(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    import runpy

    code = 1
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["recollect", *arguments]
        sys.path[0] = folder
        runpy.run_module("recollect", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
