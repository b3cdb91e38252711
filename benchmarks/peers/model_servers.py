"""Model servers that answer POST /step with an ONNX model, in batches of up to 64 rows.

python model_servers.py litserve|mosec|ray_serve PORT MODEL.onnx DTYPE SHAPE   # SHAPE: 84,84,4

A body is one row's raw bytes, the reply its first output's; LitServe reads JSON only, so there the
bytes are base64 in `{"x": ...}`. All run onnxruntime with one thread, as bray does.
"""

from __future__ import annotations

import base64
import contextlib
import os
import sys
from pathlib import Path

import numpy as np
import onnxruntime

BATCH = 64
WAIT_S = 0.001
"""How long a row waits for company; with none at all they answer rows one by one."""


class Network:
    """The model, by what this process was called with."""

    def __init__(self) -> None:
        path, dtype, shape = os.environ["BRAY_NETWORK"].split(":")
        self.dtype = np.dtype(dtype)
        self.shape = tuple(map(int, shape.split(",")))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self.name = self.session.get_inputs()[0].name

    def __call__(self, bodies: list[bytes]) -> list[bytes]:
        """Answer rows."""
        rows = np.frombuffer(b"".join(bodies), self.dtype).reshape(len(bodies), *self.shape)
        (outputs, *_) = self.session.run(None, {self.name: rows})
        return [row.tobytes() for row in outputs]


def litserve(port: int) -> None:
    """LitServe, one worker."""
    import litserve as module

    api = Api(max_batch_size=BATCH, batch_timeout=WAIT_S, api_path="/step")
    server = module.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=port, log_level="error", generate_client_file=False)


def mosec(port: int) -> None:
    """mosec, one worker behind its server in Rust."""
    import mosec as module
    import mosec.runtime

    # It looks for its own program in this Python's folder, which is not where uv has put it.
    program = Path(module.__file__).parents[4] / "bin" / "mosec"
    mosec.runtime.get_mosec_path = lambda: program
    sys.argv = ["mosec", "--address", "127.0.0.1", "--port", str(port)]
    server = module.Server()
    server.append_worker(
        Rows, num=1, max_batch_size=BATCH, max_wait_time=int(WAIT_S * 1e3), route="/step"
    )
    server.run()


def ray_serve(port: int) -> None:
    """Ray Serve, one replica with `@serve.batch`."""
    from frameworks import run_ray_serve
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import Response

    @serve.deployment(max_ongoing_requests=1000)
    class Answer:
        def __init__(self) -> None:
            self.network = Network()

        @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT_S)
        async def rows(self, bodies: list[bytes]) -> list[bytes]:
            return self.network(bodies)

        async def __call__(self, request: Request) -> Response:
            return Response(await self.rows(await request.body()))

    run_ray_serve(Answer.bind(), port)


# What worker processes find by name, each in its own framework's environment.

with contextlib.suppress(ImportError):
    from litserve import LitAPI

    class Api(LitAPI):
        """LitServe's model."""

        def setup(self, device: str) -> None:
            """Open the model."""
            self.network = Network()

        def decode_request(self, request):  # type: ignore[no-untyped-def]
            """Take the row out of the JSON; an annotation would change what LitServe passes."""
            return base64.b64decode(request["x"])

        def batch(self, inputs: list[bytes]) -> list[bytes]:
            """Keep rows as they are."""
            return inputs

        def predict(self, rows: list[bytes]) -> list[bytes]:
            """Answer rows."""
            return self.network(rows)

        def unbatch(self, output: list[bytes]) -> list[bytes]:
            """Keep rows as they are."""
            return output

        def encode_response(self, output: bytes) -> dict[str, str]:
            """Put the row into JSON."""
            return {"y": base64.b64encode(output).decode()}


with contextlib.suppress(ImportError):
    from mosec import Worker

    class Rows(Worker):
        """mosec's model."""

        def __init__(self) -> None:
            super().__init__()
            self.network = Network()

        def deserialize(self, data: bytes) -> bytes:
            """Take the body as it is."""
            return data

        def serialize(self, data: bytes) -> bytes:
            """Give the reply as it is."""
            return data

        def forward(self, data: list[bytes]) -> list[bytes]:
            """Answer rows."""
            return self.network(data)


if __name__ == "__main__":
    os.environ["BRAY_NETWORK"] = ":".join(sys.argv[3:6])
    {f.__name__: f for f in (litserve, mosec, ray_serve)}[sys.argv[1]](int(sys.argv[2]))
