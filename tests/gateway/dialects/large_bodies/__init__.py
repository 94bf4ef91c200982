"""Large and deep bodies, and large answers, in every dialect."""
