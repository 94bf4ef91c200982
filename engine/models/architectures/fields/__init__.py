"""The fields of config.json that several families share: rope and sliding windows."""
