#!/bin/bash
# triton 3.7.1: `do_not_specialize` has no effect within a tuple. A number passed as a separate argument is an i32
# whatever its value. In a tuple that `do_not_specialize` names, a 1 becomes a constant and a multiple of 16 is marked
# as one. So each of these kinds of values compiles a separate variant, at its first launch. Needs no GPU: the script
# asks what a launch would compile for. Fails once this behaviour changes.
set -e
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check triton==3.7.1
cat > "$place/kernel.py" <<'PYTHON'
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import create_function_from_signature


@triton.jit(do_not_specialize=["pair", "alone"])
def kernel(pair, alone):
    pass


backend = CUDABackend(GPUTarget("cuda", 90, 32))
bind = create_function_from_signature(kernel.signature, kernel.params, backend)
in_tuple, alone = [], []
for number in (1, 7, 32):
    pair, single = bind((number, number), number)[1]
    print(f"triton {triton.__version__}: {number} in a tuple {pair}, alone {single}")
    in_tuple.append(pair)
    alone.append(single)
sys.exit(len(set(in_tuple)) != 3 or len(set(alone)) != 1)
PYTHON
"$place/venv/bin/python" "$place/kernel.py"
