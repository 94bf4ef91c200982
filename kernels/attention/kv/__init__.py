"""The keys and values in their blocks: written, copied, and packed in fp8."""
