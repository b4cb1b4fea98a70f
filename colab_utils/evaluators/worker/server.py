"""The fork server: imports libraries once, then forks a supervisor for each job.

Jobs come through a socket that no program can see: each is a descriptor of its own, on which
the supervisor reads the job as JSON and writes the result as JSON. The server ends when the
other side of its socket is gone.
"""

import contextlib
import gc
import importlib
import io
import json
import os
import signal
import socket
import sys
import traceback

from . import confine, job_sanitise, supervisor


def preload(modules: list[str]) -> dict:
    """Import modules, so that every job finds them loaded; what can't be is named, not fatal.

    A library that starts threads must not be forked from: it is named too, and its server is
    good for nothing else.
    """
    failed, threaded = {}, []
    for name in modules:
        before = confine.threads()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                importlib.import_module(name)
            except (KeyboardInterrupt, MemoryError):
                raise
            # A library may end in any way, SystemExit included; programs will see the same.
            except BaseException as error:
                failed[name] = f"{type(error).__name__}: {error}"[:300]
        if confine.threads() > before:
            threaded.append(name)
    return {"failed": failed, "threaded": threaded}


def main(descriptor: int, modules: list[str]) -> None:
    """Serve jobs until the other side is gone."""
    control = socket.socket(fileno=descriptor)
    confine.load_bindings()
    told = preload(modules)
    with contextlib.suppress(ImportError):
        job_sanitise.load()
    # Else the first collection in each child would copy all that the libraries have made.
    gc.collect()
    gc.freeze()
    control.sendall(json.dumps(told).encode("ascii") + b"\n")
    # Supervisors are nobody's business once they have answered.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = os.getpid()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            status = 1
            try:
                supervisor.serve(socket.socket(fileno=descriptors[0]), server)
                status = 0
            except Exception:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(status)
        os.close(descriptors[0])
