"""The header and the tensors of a model in one GGUF file, the format of llama.cpp.

Only `tensors` imports torch, so the command line can describe a file without torch.
"""
