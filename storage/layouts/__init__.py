"""Layouts: the bytes of a KV block, a recurrent state and a ring of KV."""
