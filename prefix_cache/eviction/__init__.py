"""The eviction order of cached blocks: policies, owners' quotas, reference counts."""
