"""Tests have the rooms' structure; `seams` tests several rooms together."""
