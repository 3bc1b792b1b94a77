"""A stop string in a text that grows."""

from __future__ import annotations


class StopString:
    """Looks for one string of bytes in a text given piece by piece, and looks at each byte once.

    The automaton of Knuth, Morris, Pratt, "Fast Pattern Matching in Strings", SIAM J. Comput. 6 (1977).

    Attributes:
        num_matched: how many bytes at the end of the text are a beginning of the string: they may not be shown yet.
    """

    def __init__(self, stop: bytes) -> None:
        self._stop = stop
        self._shorter = _shorter_matches(stop)
        self.num_matched = 0

    def __len__(self) -> int:
        """How many bytes it has."""
        return len(self._stop)

    def find_end(self, piece: bytes) -> int:
        """Append a piece. Where in it the string is complete for the first time: behind that byte; -1 if it is not."""
        stop, matched = self._stop, self.num_matched
        if not matched and stop[0] not in piece:
            return -1
        for end, byte in enumerate(piece, 1):
            while matched and stop[matched] != byte:
                matched = self._shorter[matched - 1]
            matched += stop[matched] == byte
            if matched == len(stop):
                return end
        self.num_matched = matched
        return -1


def _shorter_matches(stop: bytes) -> list[int]:
    """Of each beginning of the string: how long the longest shorter one is that it ends with."""
    shorter = [0]
    for byte in stop[1:]:
        matched = shorter[-1]
        while matched and stop[matched] != byte:
            matched = shorter[matched - 1]
        shorter.append(matched + (stop[matched] == byte))
    return shorter
