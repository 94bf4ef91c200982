"""The header and the tensors of a model in one GGUF file, as llama.cpp's users have them.

All but `tensors` knows no torch: the command line describes a file before anything is started.
"""
