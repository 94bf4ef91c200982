"""The admission pipeline, from `GenerationRequest` to `AdmittedRequest` (`admission.py`)."""
