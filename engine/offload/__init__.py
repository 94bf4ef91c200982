"""The offloaded layers, whose weights stay in host memory: choice, memory, copies to the device."""
