"""How the processes of several ranks find each other at the start, and which groups they make."""
