"""How kernels are compiled and launched."""
