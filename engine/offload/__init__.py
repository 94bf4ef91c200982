"""The weights that stay in host memory: choice of layers, their memory, copies to the device."""
