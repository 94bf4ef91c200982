"""What somebody who means harm sends to a real server, and what it may cost the others at most."""
