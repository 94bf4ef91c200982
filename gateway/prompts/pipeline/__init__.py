"""The admission pipeline, from `GenerationRequest` to `AdmittedRequest`; see `admission.py`."""
