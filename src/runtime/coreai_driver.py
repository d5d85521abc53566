"""Runs functions of .aimodel assets on Apple's Core AI runtime, told what to do through a pipe.

A message is: length of the header (u32, little-endian), header (JSON), then the raw little-endian elements of
the tensors the header lists, in order; those that are marked `again` have come before. One reply for each request,
and one greeting before the first.
"""

import asyncio
import json
import os
import struct
import sys
from contextlib import AsyncExitStack

# The runtime logs to standard output. The pipe keeps the real one; everything else goes to standard error.
REPLIES = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
REQUESTS = os.fdopen(os.dup(0), "rb")

KINDS = {"f32": "<f4", "i32": "<i4"}


def send(header, payload=()):
    text = json.dumps(header).encode()
    REPLIES.write(struct.pack("<I", len(text)) + text)
    for part in payload:
        REPLIES.write(part)
    REPLIES.flush()


def receive():
    """The next request, or None when the other side has closed the pipe."""
    length = REQUESTS.read(4)
    if len(length) < 4:
        return None
    return json.loads(REQUESTS.read(struct.unpack("<I", length)[0]))


def receive_tensor(spec, held):
    """A tensor that is marked `again` is the one that came last under its name, and is not sent."""
    if spec.get("again"):
        return held[spec["name"]]
    kind = np.dtype(KINDS[spec["kind"]])
    count = int(np.prod(spec["shape"], dtype=np.int64))
    return np.frombuffer(REQUESTS.read(count * kind.itemsize), kind).reshape(spec["shape"])


def check_shape(what, shape, declared):
    """Extents that are not positive are free."""
    shape, declared = list(shape), list(declared)
    fits = len(shape) == len(declared) and all(d <= 0 or d == s for s, d in zip(shape, declared))
    if not fits:
        raise ValueError(f"{what} has shape {declared}, not {shape}")


class Loaded:
    """One asset with the functions used so far and its states."""

    def __init__(self, model):
        self.model = model
        self.functions = {}
        self.states = {}

    def function(self, name):
        if name not in self.functions:
            self.functions[name] = self.model.load_function(name)
        return self.functions[name]

    def reset(self, states):
        self.states = {}
        for state in states:
            name, shape = state["name"], state["shape"]
            desc = self.state_descriptor(name)
            check_shape(f"state `{name}`", shape, desc.shape)
            self.states[name] = rt.NDArray(np.zeros(shape, desc.dtype))

    def state_descriptor(self, name):
        for function in self.model.function_names:
            desc = self.function(function).desc
            if name in desc.state_names:
                return desc.state_descriptor(name)
        raise KeyError(f"no function has a state `{name}`")

    async def run(self, name, inputs, states):
        function = self.function(name)
        desc = function.desc
        if sorted(inputs) != sorted(desc.input_names):
            raise KeyError(f"inputs are {sorted(desc.input_names)}, not {sorted(inputs)}")
        if sorted(states) != sorted(desc.state_names):
            raise KeyError(f"states are {sorted(desc.state_names)}, not {sorted(states)}")
        for key, value in inputs.items():
            check_shape(f"input `{key}`", value.shape, desc.input_descriptor(key).shape)
        arrays = {
            key: rt.NDArray(np.ascontiguousarray(value.astype(desc.input_descriptor(key).dtype)))
            for key, value in inputs.items()
        }
        outputs = await function(inputs=arrays, state={key: self.states[key] for key in states})
        return {key: outputs[key].numpy() for key in desc.output_names}


def reply(outputs):
    specs, payload = [], []
    for name, value in outputs.items():
        kind = "i32" if np.issubdtype(value.dtype, np.integer) else "f32"
        specs.append({"name": name, "kind": kind, "shape": list(value.shape)})
        payload.append(np.ascontiguousarray(value.astype(KINDS[kind])).tobytes())
    send({"outputs": specs}, payload)


async def serve(stack):
    loaded, held = {}, {}
    while (request := receive()) is not None:
        inputs = {spec["name"]: receive_tensor(spec, held) for spec in request.get("inputs", ())}
        held.update(inputs)
        step = request["step"]
        try:
            if step == "load":
                model = await stack.enter_async_context(AIModelAsset.load(request["path"]).executable())
                loaded[request["asset"]] = Loaded(model)
                send({})
            elif step == "reset":
                loaded[request["asset"]].reset(request["states"])
                send({})
            else:
                reply(await loaded[request["asset"]].run(request["function"], inputs, request["states"]))
        except Exception as error:  # Whatever went wrong belongs to the other side.
            send({"error": f"{type(error).__name__}: {error}"})


async def main():
    async with AsyncExitStack() as stack:
        await serve(stack)


try:
    from importlib.metadata import version

    import coreai.runtime as rt
    import numpy as np
    from coreai.authoring.asset import AIModelAsset

    greeting = {"version": version("coreai-core")}
except Exception as error:
    send({"error": f"{type(error).__name__}: {error}"})
    sys.exit(0)

send(greeting)
asyncio.run(main())
