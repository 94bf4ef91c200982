"""From a `GenerationRequest` to an `AdmittedRequest`; `admission.py` has the order of the steps."""
