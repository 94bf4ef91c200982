"""The LoRA adapters of requests: how they are read into host memory and copied to the device."""
