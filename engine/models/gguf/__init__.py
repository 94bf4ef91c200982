"""The header and the tensors of a model in one GGUF file, the format of llama.cpp.

Only `tensors` needs torch: the command line describes a file before anything is started.
"""
