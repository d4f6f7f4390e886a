"""A server of split learning in a thread, for tests that need the wire and not the seconds that a process takes."""

import socket
import threading
from contextlib import closing, contextmanager

from safetensors.torch import save_file

from pipeline.permutation.wire import RemoteServer, Wire, _built, serve


@contextmanager
def server_in_a_thread(plan):
    """Instead of `server_process`."""
    here, there = socket.socketpair()
    server = _built(plan)
    thread = threading.Thread(target=serve, args=(server, Wire(there)))
    thread.start()
    with closing(there):
        with closing(here):
            yield RemoteServer(Wire(here))
        thread.join()
    save_file(server.state_dict(), plan.trained)
