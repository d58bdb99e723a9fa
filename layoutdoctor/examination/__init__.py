"""The facts that follow from a recording; ``examine`` finds them the same way wherever it comes from, without torch."""
