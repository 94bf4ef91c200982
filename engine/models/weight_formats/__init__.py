"""The weight formats: the tensors of a matrix, their names, their division, and the product."""
