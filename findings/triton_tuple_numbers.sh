#!/bin/bash
# triton 3.7.1: `do_not_specialize` ends at a tuple. A number that is an argument of its own is an i32
# whatever it is; the same number in a tuple named there becomes a constant where it is 1 and is marked
# where it is a multiple of 16, so each of these values compiles a variant of its own, at its first
# launch. Needs no GPU: it asks what a launch would compile for. Fails once that changes.
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
