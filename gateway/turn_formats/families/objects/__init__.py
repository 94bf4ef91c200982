"""The families that write a call as a JSON object, which has the name and the arguments."""
