"""The process of a rank from 1 on: it loads its part of the model and does what rank 0 says."""
