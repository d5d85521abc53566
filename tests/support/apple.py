"""Prints as JSON what Apple's loader, verifier and compiler make of an asset, given by its path.

Everything is taken from the program as Apple's printer writes it; the bytes of the resources are hashed.
"""

import asyncio
import hashlib
import json
import os
import re
import sys

# Apple's runtime logs to standard output.
ANSWER = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

from coreai.authoring.asset import AIModelAsset

GRAPH = re.compile(r'  coreai\.graph (private )?(?:noinline )?@("[^"]*"|[\w.]+)\((.*)\) -> \((.*)\)(?: attributes .*)? \{$')
PORT = re.compile(r'(?:%arg\d+: )?(!?[\w.]*<?tensor<[^>]*>>?) \{([^}]*)\}')
NAME = re.compile(r'coreai\.name = "([^"]*)"')
KERNEL = re.compile(r'kernel_name = "([^"]*)", kernel_source = "((?:[^"\\]|\\.)*)"\}? : (.*)$')
TENSOR = re.compile(r"tensor<(\w+)")
RESOURCE = re.compile(r'^ +([\w."]+): "0x([0-9A-Fa-f]*)",?$')
USE = re.compile(r"dense_resource<([^>]*)>")


def unescape(text):
    return re.sub(rb"\\([0-9A-F]{2}|.)", unescape_one, text.encode()).decode()


def unescape_one(match):
    escaped = match.group(1)
    return bytes.fromhex(escaped.decode()) if len(escaped) == 2 else escaped


def ports(text):
    return [{"name": NAME.search(attributes).group(1), "type": ty} for ty, attributes in PORT.findall(text)]


def kernel(line):
    name, source, types = KERNEL.search(line).groups()
    return {"name": name, "source": unescape(source), "shapes": TENSOR.findall(types)}


def graphs(text):
    """Each graph with its ports, the keys of the resources it uses, and its kernels."""
    found = []
    for line in text.splitlines():
        if line.startswith("  coreai.graph "):
            private, name, inputs, outputs = GRAPH.match(line).groups()
            ins = ports(inputs)
            found.append({
                "name": name.strip('"'),
                "private": bool(private),
                "inputs": [port for port in ins if not port["type"].startswith("!")],
                "states": [port for port in ins if port["type"].startswith("!")],
                "outputs": ports(outputs),
                "resources": [],
                "kernels": [],
            })
        elif found:
            found[-1]["resources"] += [key.strip('"') for key in USE.findall(line)]
            if "coreai.metal4_kernel" in line:
                found[-1]["kernels"].append(kernel(line))
    return found


def resources(text):
    """Each resource's key, number of bytes and hash; the first four bytes of a blob are its alignment."""
    blobs = [RESOURCE.match(line) for line in text.splitlines()]
    blobs = [(match.group(1).strip('"'), bytes.fromhex(match.group(2))[4:]) for match in blobs if match]
    return [{"key": key, "bytes": len(blob), "hash": hashlib.sha256(blob).hexdigest()} for key, blob in blobs]


async def load(asset):
    """Compiles the asset and loads its functions; why a function does not load, where it does not."""
    async with asset.executable() as model:
        return {name: load_function(model, name) for name in model.function_names}


def load_function(model, name):
    try:
        model.load_function(name)
    except RuntimeError as error:
        return str(error)
    return None


asset = AIModelAsset.load(sys.argv[1])
program, _, blobs = str(asset.program).partition("\n{-#\n")
answer = {
    "valid": AIModelAsset.is_valid(sys.argv[1]),
    "graphs": graphs(program),
    "resources": resources(blobs),
    "functions": asyncio.run(load(asset)),
}
json.dump(answer, ANSWER)
ANSWER.close()
