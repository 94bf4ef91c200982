"""What each owner may hold, and whose blocks are evicted first."""
