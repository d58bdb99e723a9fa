"""What the records prove: kernel lists, conversions, data flow, paired statistics. No torch."""
