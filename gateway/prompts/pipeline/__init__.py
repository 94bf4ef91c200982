"""The way from `GenerationRequest` to `AdmittedRequest`; `admission.py` orders the steps."""
