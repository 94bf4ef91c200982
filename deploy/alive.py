#!/usr/bin/env python3
"""Exit with 0 if a URL answers 200 within three seconds. For the containers' health checks."""

import sys
import urllib.request

with urllib.request.urlopen(sys.argv[1], timeout=3) as answer:  # any other status raises
    sys.exit(0 if answer.status == 200 else 1)
