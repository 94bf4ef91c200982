"""The header and the tensors of a model in one GGUF file, the format of llama.cpp.

Only `tensors` imports torch, so that the command line can describe a file without loading torch.
"""
