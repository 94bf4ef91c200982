"""The process of a rank other than 0: it loads its part of the model and obeys rank 0."""
