"""The LoRA adapters of requests: read into host memory, copied to the device, waited for."""
