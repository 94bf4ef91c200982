"""Which algorithm of cuBLASLt computes a product fastest, on an H200.

Made by `python -m benchmarks.tune_products`. By the weight's (features, width) and the number of
rows: the library's ids of tile, cluster and further option.
"""

from __future__ import annotations

VERSION = 130100  # of the library: ids may mean something else in another

TABLE: dict[tuple[int, int], dict[int, tuple[int, int, int]]] = {
    (6144, 4096): {  # qkv
        152: (400, 5, 5),
        168: (328, 2, 3),
        224: (403, 7, 1),
        232: (28, 5, 2),
        320: (226, 2, 0),
    },
    (4096, 4096): {  # output
        120: (143, 5, 2),
        128: (134, 7, 0),
        144: (318, 2, 5),
        152: (318, 5, 1),
        160: (18, 2, 5),
        168: (319, 5, 1),
        184: (26, 2, 1),
        192: (26, 2, 1),
        200: (320, 2, 1),
        208: (320, 2, 1),
        216: (321, 5, 3),
        224: (321, 5, 3),
        232: (322, 2, 1),
        240: (322, 2, 1),
        248: (18, 2, 0),
        256: (18, 2, 0),
        1280: (425, 2, 5),
    },
    (28672, 4096): {  # gate_up
        128: (221, 2, 6),
        192: (166, 2, 2),
        256: (227, 7, 6),
    },
    (4096, 14336): {  # down
        120: (134, 7, 0),
        152: (318, 5, 1),
        160: (318, 5, 1),
        192: (157, 2, 0),
        200: (320, 2, 1),
        208: (320, 2, 1),
        224: (321, 5, 3),
        240: (18, 3, 0),
        248: (17, 5, 3),
        256: (18, 2, 0),
        1280: (502, 2, 5),
    },
}
