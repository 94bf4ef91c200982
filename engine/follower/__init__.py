"""The process of a rank other than 0, which loads its part of the model and obeys rank 0."""
