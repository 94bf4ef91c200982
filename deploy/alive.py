#!/usr/bin/env python3
"""Exit with 0 if a URL answers 200 within three seconds, for the health checks of containers."""

import sys
import urllib.request

with urllib.request.urlopen(sys.argv[1], timeout=3) as answer:  # an error status raises
    sys.exit(0 if answer.status == 200 else 1)
