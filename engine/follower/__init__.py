"""The process of a rank other than 0. It loads its part of the model and follows rank 0."""
