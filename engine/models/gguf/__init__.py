"""The reading of a model from one GGUF file, the format of llama.cpp.

Only `tensors` imports torch, so that the command line can describe a file without torch.
"""
