"""The LoRA adapters of requests: reading into host memory, copying to the device, waiting."""
