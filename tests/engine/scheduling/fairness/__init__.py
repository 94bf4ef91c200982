"""Tests of engine/scheduling/fairness/."""
