"""Client and server of split learning as two processes, over TCP on this machine (127.0.0.1).

A message is eight bytes of length and then a safetensors file in memory with one tensor, whose name is the kind of the
message. Nothing is unpickled, and a message that is too long, damaged or of another kind ends the connection with an
error. Every byte that crosses is counted, headers too. The connection is neither encrypted nor authenticated: it shows
what crosses, and is no product for two machines.
"""

import socket
import struct
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

from pipeline.core.errors import LaunchError
from pipeline.core.sizes import Size
from pipeline.models.encoder import ModelConfig, build_encoder
from pipeline.models.patches import Encoder
from pipeline.permutation.split import ANSWERS, Kind, ProtocolError, Server, SplitRecipe

LOOPBACK = "127.0.0.1"
LENGTH = struct.Struct(">Q")
MOST_BYTES = 2**32  # of a message; 128 images of 197 tokens of width 768 in float64 are 155 MB
PATIENCE_S = 600.0


@dataclass
class Wire:
    """One end of a connection, with the bytes that it sent and received, by kind."""

    connection: socket.socket
    num_bytes: Counter[str] = field(default_factory=Counter)
    num_messages: Counter[str] = field(default_factory=Counter)

    def send(self, kind: Kind, tensor: Tensor) -> None:
        content = save({kind: tensor.detach().cpu().contiguous()})
        try:
            self.connection.sendall(LENGTH.pack(len(content)) + content)
        except OSError as error:
            raise LaunchError(f"the other process of split learning ended while {kind} were sent ({error})") from None
        self._count(kind, len(content))

    def receive(self, kinds: Collection[str]) -> tuple[Kind, Tensor] | None:
        """The next message, of one of these kinds; None where the other side has ended in good order."""
        head = self._read(LENGTH.size)
        if not head:
            return None
        (length,) = LENGTH.unpack(head)
        if length > MOST_BYTES:
            raise ProtocolError(f"a message of {length:,} bytes was announced; expected at most {MOST_BYTES:,}")
        kind, tensor = _opened(self._read(length, is_rest=True), kinds)
        self._count(kind, length)
        return kind, tensor

    def _count(self, kind: str, length: int) -> None:
        self.num_bytes[kind] += LENGTH.size + length
        self.num_messages[kind] += 1

    def _read(self, length: int, is_rest: bool = False) -> bytes:
        """So many bytes; none at all at the end of the connection, unless they are the rest of a message."""
        content = bytearray()
        while len(content) < length:
            try:
                part = self.connection.recv(min(length - len(content), 2**20))
            except OSError as error:
                raise LaunchError(f"the other process of split learning does not answer ({error})") from None
            content += part
            if not part and (content or is_rest):
                raise LaunchError(f"the connection ended after {len(content)} of {length} bytes of a message")
            if not part:
                break
        return bytes(content)


def _opened(content: bytes, kinds: Collection[str]) -> tuple[Kind, Tensor]:
    expected = f"expected a safetensors file with one tensor (B, tokens, width), named {' or '.join(sorted(kinds))}"
    try:
        ((name, tensor),) = load(content).items()
    except (SafetensorError, ValueError, KeyError) as error:
        raise ProtocolError(f"a message cannot be read ({error}); {expected}") from None
    kind = next((known for known in kinds if known == name), None)
    if kind is None or tensor.ndim != 3 or not tensor.is_floating_point():
        shape = f"{tuple(tensor.shape)} of {tensor.dtype}"
        raise ProtocolError(f"a message has {name!r}, {shape}; {expected}")
    return kind, tensor  # type: ignore[return-value]


@dataclass
class RemoteServer:
    """The server as the client sees it: it answers over the wire."""

    wire: Wire

    def answer(self, kind: Kind, tensor: Tensor) -> Tensor:
        self.wire.send(kind, tensor)
        received = self.wire.receive([ANSWERS[kind]])
        if received is None:
            raise LaunchError("the server of split learning ended before it answered; see its own message")
        return received[1].to(tensor.device)


def serve(server: Server, wire: Wire, device: torch.device | str = "cpu") -> None:
    """Answer until the client closes the connection."""
    while received := wire.receive(ANSWERS):
        kind, tensor = received
        wire.send(ANSWERS[kind], server.answer(kind, tensor.to(device)))


@dataclass(frozen=True)
class ServerPlan:
    """What a server process needs to know before the first message; nothing in it comes from images or labels."""

    model: ModelConfig
    image_size: Size
    weights: Path  # safetensors: the blocks at the start
    trained: Path  # where the server leaves its blocks when the client has ended
    recipe: SplitRecipe | None = None  # none: it answers, and learns nothing
    epoch_steps: int = 1
    device: str = "cpu"
    num_threads: int = field(default_factory=torch.get_num_threads)


@contextmanager
def server_process(plan: ServerPlan) -> Iterator[RemoteServer]:
    """A server in a process of its own; when the block ends, so does it, and its weights are in `plan.trained`."""
    context = get_context("spawn")
    with closing(socket.create_server((LOOPBACK, 0))) as listener:
        process = context.Process(target=_serve_alone, args=(listener, plan), daemon=True)
        process.start()
        address = listener.getsockname()
    # The listener is now the server's alone: where that process dies, the client is told at once.
    try:
        with closing(socket.create_connection(address, PATIENCE_S)) as connection:
            connection.settimeout(PATIENCE_S)
            yield RemoteServer(Wire(connection))
        process.join(PATIENCE_S)
    finally:
        if process.is_alive():
            process.terminate()
        process.join()
    if process.exitcode:
        raise LaunchError(f"the server process of split learning ended with code {process.exitcode}")


def _serve_alone(listener: socket.socket, plan: ServerPlan) -> None:
    torch.set_num_threads(plan.num_threads)
    server = _built(plan)
    listener.settimeout(PATIENCE_S)
    with closing(listener), closing(listener.accept()[0]) as connection:
        connection.settimeout(PATIENCE_S)
        serve(server, Wire(connection), plan.device)
    save_file({name: value.cpu().contiguous() for name, value in server.state_dict().items()}, plan.trained)


def _built(plan: ServerPlan) -> Server:
    """In the precision of its weights."""
    state = load_file(plan.weights)
    encoder: Encoder = build_encoder(plan.model, plan.image_size, channels=1, num_classes=0)
    server = Server(encoder.blocks)
    server.to(next(iter(state.values())).dtype).load_state_dict(state)
    server.to(plan.device)
    if plan.recipe:
        server.train_with(plan.recipe, plan.epoch_steps)
    return server
