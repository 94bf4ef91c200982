"""The sending of answers, whole or as a stream, within limits of memory."""
