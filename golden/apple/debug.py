"""Makes golden/apple/debug.aimodel with Apple's `coreai-core`: operations with every kind of debug information."""
from pathlib import Path
from typing import Annotated
import sys

import coreai.authoring as ca
import numpy as np
from coreai.authoring.asset import AIProgram
from coreai.authoring.constant import constant

half = ca.TensorType([2, 3], ca.float16, name="x")
image = ca.TensorType([1, 1, 4, 4], ca.float32, name="image")
result = ca.TensorType([2, 3], ca.float16, name="y")
active = ca.TensorType([1, 1, 4, 4], ca.float32, name="active")

source = ca.FileInfo("model.py")
unit = ca.CompileUnitScope(source, optimized=True, flags="-O2")
forward = ca.SubprogramScope("forward", source, unit, linkage_name="_forward", mlir_type_str="() -> ()")
caller = ca.DebugInfo.file("model.py", 7, 1).with_scope(forward)
here = ca.DebugInfo.file("model.py", 3, 5, end=(4, 20)).with_scope(forward)
here = here.with_op_id("torch", 12).with_metadata("layer.0").with_inlined_at(caller)

module = ca.Module.create()
with module:

    @ca.graph
    def main(
        x: Annotated[ca.Value, half], image: Annotated[ca.Value, image]
    ) -> tuple[Annotated[ca.Value, result], Annotated[ca.Value, active]]:
        table = constant(np.arange(6, dtype=np.float16).reshape(2, 3))
        y = ca.softmax(ca.broadcasting_add(x, table, loc=here), np.int32(1), loc=here)
        return y, ca.gelu(image, loc=ca.DebugInfo.metadata_only(["activation"]))


AIProgram(module).save_asset(Path(sys.argv[1]))
