"""The process of another rank than 0: it loads its part of the model and obeys rank 0."""
